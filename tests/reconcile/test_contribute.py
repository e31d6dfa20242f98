"""Logs of training programs as rows: read as they are written, asked as they ran, and counted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.api.training import training_question
from rooflight.errors import ParseError, UsageError
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.rows import read_rows
from rooflight.measure.reconcile.contribute import (
    Contribution,
    contribution,
    moved_by,
    with_row,
)
from rooflight.measure.reconcile.logs import logged_steps, read_log, steady
from rooflight.models.presets import load_model
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, repeats
from rooflight.plan.training.search.candidate import run_of

from ..cli.command import run

# As the programs write them: with the colours, ranks and launchers before them.
MEGATRON = (
    "[default0]: [2026-05-27 15:23:07] iteration {step:8d}/   24000 | consumed samples:"
    " {samples:12d} | elapsed time per iteration (ms): {ms:.1f} | throughput per GPU"
    " (TFLOP/s/GPU): 412.3 | learning rate: 1.500000E-06 | global batch size:  1024 |"
    " lm loss: 1.192634E+01 | grad norm: 5.960 |"
)
AVERAGED = " iteration {step:8d}/ 5000 | elapsed time per iteration (ms): {ms:.1f}/9999.9 | x: 1 |"
MAXTEXT = (
    "I0527 10:00:00.000 completed step: {step}, seconds: {s:.3f}, TFLOP/s/device: 210.1,"
    " Tokens/s/device: 3456.7, total_weights: 1048576, loss: 9.876"
)
TITAN = (
    "[rank0]:\x1b[36m[titan] - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  8.12"
    "  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 408.21  \x1b[35mmfu: 41.28%\x1b[39m"
)
NEMO = "0: Step {step} train_step_timing {s:.4f} timestamp: 1713522620986.0247"
TOKENS, CHIPS = 4_194_304, 64


def _lines(form: str, seconds: list[float]) -> list[str]:
    return [
        form.format(step=n, samples=n * 1024, ms=s * 1e3, s=s, tps=round(TOKENS / CHIPS / s))
        for n, s in enumerate(seconds, start=1)
    ]


@pytest.mark.parametrize(
    ("program", "form", "batch"),
    [
        ("Megatron-LM", MEGATRON, 1024),
        ("Megatron-LM", AVERAGED, None),
        ("MaxText", MAXTEXT, None),
        ("torchtitan", TITAN, None),
        ("NeMo", NEMO, None),
    ],
)
@given(seconds=st.lists(st.floats(0.1, 900.0), min_size=1, max_size=20), ranks=st.integers(1, 3))
def test_every_step_of_a_log_is_read_once(
    program: str, form: str, batch: int | None, seconds: list[float], ranks: int
) -> None:
    lines = [line for line in _lines(form, seconds) for _ in range(ranks)]
    noise = ["step: the first\n", "INFO iteration 7 begins", "", "Loading step 3/9"]
    found = logged_steps([*noise, *lines], tokens=TOKENS, chips=CHIPS)
    assert found[0] == program
    assert found[1] == pytest.approx(seconds, rel=0.02, abs=6e-4)
    assert found[2] == batch


def _event(key: str, ms: float, value: object = None, **about: object) -> str:
    event = {"namespace": "", "time_ms": ms, "key": key, "value": value, "metadata": about}
    return f" 0: :::MLLOG {json.dumps(event)}"


@given(st.lists(st.floats(0.1, 60.0), min_size=1, max_size=12), st.integers(1, 40))
def test_blocks_between_evaluations_are_means_of_their_steps(
    seconds: list[float], steps: int
) -> None:
    lines, now, samples = [_event("global_batch_size", 0, 768)], 0.0, 0
    for s in seconds:
        lines.append(_event("block_start", now, samples_count=samples))
        now, samples = now + 1e3 * s * steps, samples + 768 * steps
        lines += [_event("tracked_stats", now, {"throughput": 1.0}, step=samples)]
        lines.append(_event("block_stop", now, samples_count=samples))
        now += 30_000  # an evaluation
    program, found, batch = logged_steps(lines, tokens=1, chips=1)
    assert (program, batch) == ("MLPerf", 768) and found == pytest.approx(seconds)


def test_steps_that_mlperf_tells_one_by_one_are_taken() -> None:
    lines = [_event("global_batch_size", 0, 16)]
    lines += [_event("tracked_stats", 9, {"train_step_time": s}, step=1) for s in (2.0, 3.0)]
    assert logged_steps(lines, tokens=1, chips=1) == ("MLPerf", [2.0, 3.0], 16)


def test_a_log_without_steps_and_one_of_few_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("hello\n")
    with pytest.raises(ParseError, match="no line of the log"):
        read_log(path, tokens=1, chips=1)
    path.write_text("\n".join(_lines(MAXTEXT, [1.0] * 5)))
    with pytest.raises(UsageError, match="tells of 5 steps"):
        read_log(path, tokens=1, chips=1)


@given(
    st.lists(
        st.sampled_from(
            (
                ":::MLLOG [1]",
                ":::MLLOG {}",
                ':::MLLOG {"key": "tracked_stats", "value": null}',
                ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": "slow"}}',
                ':::MLLOG {"key": "global_batch_size", "value": "many"}',
                ':::MLLOG {"key": "global_batch_size", "value": 8}',
                ':::MLLOG {"key": "block_start", "metadata": null}',
                ':::MLLOG {"key": "block_start", "time_ms": 0}',
                ':::MLLOG {"key": "block_stop", "metadata": {"samples_count": 80}}',
                ":::MLLOG {not JSON}",
                "step: 3  loss: 1  tps: 0  mfu: 0",
                "completed step: 4, seconds: ,",
                "completed step: 5, seconds: 0.000",
                "completed step: 6, seconds: 1.5",
                "Step 7 train_step_timing 0.0",
            )
        ),
        max_size=12,
    )
)
def test_a_damaged_log_gives_seconds_or_a_sentence(lines: list[str]) -> None:
    try:
        _, seconds, _ = logged_steps(lines, tokens=TOKENS, chips=CHIPS)
    except ParseError as error:
        assert error.hint
    else:
        assert all(s > 0 for s in seconds)


def test_the_first_steps_do_not_count() -> None:
    found = steady("MaxText", [90.0, 60.0, *[2.0] * 18], None, "")
    assert found.left_out == 2 and found.median_s == 2.0 and found.spread == 0


ASKED = (  # as people would: other chips, places, schemes and programs
    ("llama3-70b", "h100:8x64", "tp=8@node,pp=4,vp=5,dp=16", "4Mi", "8192", "megatron"),
    ("llama3-8b", "v5e:16x16", "fsdp=64,tp=4", "4Mi", "4096", "maxtext"),
    ("llama3-8b", "2*v5e:16x16", "dp=2,fsdp=256", "8Mi", "4096", "maxtext"),
    ("mixtral-8x7b", "h100:8x16", "tp=2,pp=4,vp=2,dp=16,ep=8", "2Mi", "4096", "megatron"),
)


def _own(asked: tuple[str, ...], *slower: float) -> tuple[list[Contribution], float]:
    """A row for each factor on the forecast, and the forecast."""
    model, on, layout, batch, seq, framework = asked
    question = training_question(model, on=on, batch=batch, seq=seq, framework=framework)
    question = question.within(layout)
    mine = question.search(count=1).candidates[0]
    ran = run_of(question.question, mine.layout, mine.mesh, mine.micro, mine.remat)
    logs = [steady("MaxText", [mine.forecast.seconds * s] * 10, None, "") for s in slower]
    named = {"name": "mine", "date": "2026-11-19"}
    rows = [contribution(ran, question.model, framework, log, **named) for log in logs]
    return rows, mine.forecast.seconds


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked[0]} {asked[2]}")
def test_a_row_is_asked_as_it_was_planned_and_draws_the_constants(asked: tuple[str, ...]) -> None:
    (exact, late), forecast_s = _own(asked, 1.0, 1.2)
    same = moved_by(exact)
    assert same.said.predicted_s == pytest.approx(forecast_s, rel=1e-9)
    assert not same.moves and same.said.is_inside
    moved = moved_by(late)
    assert forecast_s < moved.after_s <= 1.2 * forecast_s * 1.001
    better = {name: new - old for name, old, new in moved.moves}
    assert better["matmul_bf16"] < 0 < better["step_s"]  # less of the peak, more by the host


def _model(*blocks: Block) -> ModelSpec:
    return ModelSpec("mine-1b", "Mine", 1024, 32000, repeats(blocks), is_tied=True)


def test_a_model_of_ones_own_is_in_the_row_whole(tmp_path: Path) -> None:
    plain, experts = Mlp(4096), Moe(8, 2, Mlp(512), shared=Mlp(1024))
    attention = Attention(16, 4, 64)
    routed = _model(Block(attention, plain), *[Block(attention, experts)] * 3)
    odd = _model(Block(attention, plain), Block(Attention(8, 8, 128, window=512), plain))
    cut = replace(load_model("llama3.2-1b"), vocab=32_000)  # a preset's name, another model
    for model in (routed, odd, cut):
        question = training_question(
            model, on="h100:8", batch="64Ki", seq=2048, framework="megatron"
        )
        mine = question.search(count=1).candidates[0]
        ran = run_of(question.question, mine.layout, mine.mesh, mine.micro, mine.remat)
        steps = steady("NeMo", [mine.forecast.seconds] * 10, None, "")
        given = contribution(ran, model, "megatron", steps, name="mine", date="2026-11-19")
        assert moved_by(given).said.predicted_s == pytest.approx(mine.forecast.seconds, rel=1e-9)
        path = tmp_path / "rows.json"
        path.write_text(with_row(path, given))
        rows = read_rows(path)
        assert sized_model(rows.runs[-1], rows.models).spec == model


def test_rows_gather_in_a_file_that_the_other_verbs_read(tmp_path: Path) -> None:
    log, rows, folder = tmp_path / "night.log", tmp_path / "mine.json", tmp_path / "constants"
    folder.mkdir()
    words = ["contribute", str(log), "llama3-8b", "--on", "h100:8x2", "--batch", "1Mi", "--seq"]
    words += ["8k", "--framework", "megatron", "--write", str(rows)]
    log.write_text("\n".join(_lines(MAXTEXT, [30.0, *[7.0] * 19])))
    first = run([*words, "--layout", "fsdp=16"])
    assert first.code == 0 and "measured: 7 s per step" in first.out
    assert "next: rooflight calibrate" in first.err
    whole = ["--layout", "tp=2,dp=8,remat=none,microbatches=8", "--name", "split"]
    assert run([*words, *whole]).code == 0
    assert run([*words, *whole]).code == 0  # once more: replaced
    log.write_text("\n".join(_lines(MAXTEXT, [8.0] * 20)))
    other = run([*words, *whole])  # another log of that name replaces nothing
    assert other.code == 2 and "has another run called split" in other.err
    document = json.loads(rows.read_text())
    assert [one["id"] for one in document["runs"]] == ["night", "split"]
    assert len(document["sources"]["own"]["night"]["sha256"]) == 64
    silent, said = document["runs"]  # what the planner chose is no fact of the run
    assert {word.partition("=")[0] for word in silent["assumed"]} == {"remat", "microbatches"}
    assert "assumed" not in said and f"assumed: {silent['assumed'][0]}" in first.out
    checked = run(["validate", "--rows", str(rows)])
    assert checked.out.startswith("2 of 2 rows answered")
    fitted = run(["calibrate", str(rows), "--write", str(folder)])
    assert fitted.code == 0 and (folder / "h100_sxm.toml").is_file()


def test_one_row_alone_calibrates(tmp_path: Path) -> None:
    (given,), _ = _own(ASKED[1], 1.1)
    rows = tmp_path / "one.json"
    rows.write_text(json.dumps({"runs": [dict(given.row)]}))
    found = run(["calibrate", str(rows), "--json"])
    assert found.code == 0, found.err
    (own,) = [c for c in json.loads(found.out)["calibrations"] if c["chip"] == "tpu_v5e"]
    assert own["rows"] == 1 and own["median_error"] == pytest.approx(1 - 1 / 1.1)


def test_a_log_of_another_batch_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "night.log"
    log.write_text("\n".join(_lines(MEGATRON, [7.0] * 20)))
    words = ["contribute", str(log), "llama3-8b", "--on", "h100:8x2", "--layout", "dp=16"]
    found = run([*words, "--batch", "1Mi", "--seq", "8k", "--framework", "megatron"])
    assert found.code == 2 and "1024 sequences per step, the layout 128" in found.err
    assert run(["contribute", str(log)]).code == 2
    assert "no log and no folder" in run(["contribute", str(tmp_path / "gone")]).err


@pytest.mark.parametrize("script", ["gpt3-175b.sh", "deepseek-v3.sh"])
def test_the_script_that_ran_says_the_layout(script: str, tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "interop" / "launch" / script
    log = tmp_path / "night.log"
    log.write_text("\n".join(_lines(MAXTEXT, [7.0] * 20)))
    words = ["--from", str(path), "--on", "h100:8x128", "--json"]
    found = run(["contribute", str(log), *words])
    assert found.code == 0, found.err
    document = json.loads(found.out)
    assert document["row"]["engine"] == "megatron"
    forecast = json.loads(run(["forecast", *words]).out)["forecast"]
    assert document["forecast"]["predicted_s"] == pytest.approx(forecast["step_s"], rel=1e-9)
