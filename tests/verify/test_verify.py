"""Sound programs raise no finding, mistaken ones do: real compiles, two at a time."""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from plans import EXAMPLE, small_plan

from rooflight.cli.main import main
from rooflight.cli.program import verify
from rooflight.compile.aot.run import Watch
from rooflight.compile.expected.train import expected_weights
from rooflight.compile.findings.document import known_of, verdict_document
from rooflight.compile.findings.subject import subject_of
from rooflight.compile.findings.verify import Verdict
from rooflight.compile.findings.verify import verify as verify_plan
from rooflight.errors import ShardingError, UsageError
from rooflight.plan.file.record import Plan, to_json
from rooflight.ui.answers.verdict import verdict_answer
from rooflight.ui.html.compiled import verdict_page
from rooflight.ui.text.answer import answer_text

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)

HERE = Path(__file__).parent
FSDP = small_plan("fsdp=X", "X=16")
SOUND = {
    "fsdp": FSDP,
    "fsdp, sp": small_plan("fsdp=X,sp=Y", "X=4,Y=4"),
    "fsdp, ulysses": small_plan("fsdp=X,ulysses=Y", "X=4,Y=4", remat="none"),
    "dp, fsdp, tp": small_plan("dp=Z,fsdp=X,tp=Y", "Z=2,X=2,Y=4", remat="dots", microbatches=2),
}
MISTAKES = {  # with what the judge must say of each
    "unsharded_weight": "['mlp.W_out'] is larger than planned",
    "transposed_weight": "the compiler: not built",
    "wrong_layout": ".frame['embedding.W_embed'] is larger than planned",
    "wide_matmuls": "missing: AllGather_X W_in[D_X,F] -> W_in[D,F]",
    "no_remat": "the plan has remat block, and no matmul is recomputed",
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    cache = tmp_path_factory.mktemp("cache")

    def sound(name: str) -> Verdict:
        until = "scheduled" if name == "fsdp" else "partitioned"
        return verify_plan(SOUND[name], until=until, cache=cache)

    def mistaken(name: str) -> Verdict:
        return verify_plan(FSDP, build=f"mistakes:{name}", folder=str(HERE), cache=cache)

    with ThreadPoolExecutor(max_workers=2) as pool:
        found = [pool.submit(sound, name) for name in SOUND]
        found += [pool.submit(mistaken, name) for name in MISTAKES]
        names = (*SOUND, *MISTAKES)
        return {name: one.result() for name, one in zip(names, found, strict=True)}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_program_has_the_collectives_of_its_derivation(
    name: str, verdicts: dict[str, Verdict]
) -> None:
    verdict = verdicts[name]
    assert verdict.findings == ()
    assert verdict.matching and verdict.matching.matched_share > 0.998
    runs = sum(e.count for e in subject_of(verdict.plan).expected())
    assert verdict.matching.matched_count == runs > 0
    assert len(verdict.matching.named) <= 3


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistaken_program_is_found_out(name: str, verdicts: dict[str, Verdict]) -> None:
    findings = verdicts[name].findings
    assert any(MISTAKES[name] in finding.words for finding in findings), findings
    assert all(finding.fix for finding in findings)
    assert (verdicts[name].failed is None) == (name != "transposed_weight")


def test_a_weight_that_was_left_whole_is_named(verdicts: dict[str, Verdict]) -> None:
    (weight,) = verdicts["unsharded_weight"].replicated
    assert weight.name == "state.params.layers[0][0]['mlp.W_out']"
    assert weight.nbytes == 16 * weight.expected_bytes == 4 * 2 * 4096 * 1024


def test_a_surprise_comes_with_its_op_and_its_line(verdicts: dict[str, Verdict]) -> None:
    matching = verdicts["wide_matmuls"].matching
    assert matching and {s.op for s in matching.surprises} > {"mlp.in", "attention.q"}
    priced = [f for f in verdicts["wide_matmuls"].findings if f.kind == "unexpected"]
    assert priced and all(f.seconds and ".py:" in f.where for f in priced)
    assert all(".py:" in s.collective.source for s in matching.surprises)


def test_memory_is_the_compilers_own_at_the_schedule(verdicts: dict[str, Verdict]) -> None:
    assert verdicts["fsdp, sp"].memory is None
    memory = verdicts["fsdp"].memory
    state = 3 * sum(expected_weights(FSDP).values())  # fp32, as its two moments are
    assert memory and memory.by_category["arguments"] == pytest.approx(state, rel=0.02)


@pytest.mark.parametrize("name", [*SOUND, *MISTAKES])
def test_the_page_says_what_is_as_planned(name: str, verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts[name]
    text = answer_text(verdict_answer(known_of(verdict), most=None))
    assert ("the collectives are as planned" in text) == (name in SOUND)
    assert ("the step fits" in text) == (name == "fsdp")  # the one asked for its memory
    shown = json.loads(json.dumps(verdict_document(verdict)))
    assert len(shown["findings"]) == len(verdict.findings)
    assert all(r.name in text for r in verdict.replicated)


@pytest.mark.parametrize("name", [*SOUND, *MISTAKES])
def test_a_finding_is_the_exit_code_of_the_verb(
    name: str,
    verdicts: dict[str, Verdict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def found(plan: Plan, *, until: str, compiler: str, watch: Watch | None) -> Verdict:
        del until, compiler, watch
        assert plan == verdicts[name].plan
        return verdicts[name]

    monkeypatch.setattr(verify, "verify", found)
    file = tmp_path / "plan.json"
    plan = verdicts[name].plan
    assert isinstance(plan, Plan)
    file.write_text(to_json(plan))
    assert main(["verify", str(file), "--json"]) == (0 if name in SOUND else 1)
    assert (json.loads(capsys.readouterr().out)["findings"] == []) == (name in SOUND)


@pytest.mark.parametrize("name", [*SOUND, *MISTAKES])
def test_a_saved_verdict_says_what_the_terminal_says(
    name: str, verdicts: dict[str, Verdict]
) -> None:
    """All but the names and seconds of the plan, which its document does not have."""
    saved = verdict_answer(json.loads(json.dumps(verdict_document(verdicts[name]))))
    live = verdict_answer(known_of(verdicts[name]))
    words = [answer_text(replace(one, sentences=one.sentences[1:])) for one in (saved, live)]
    if not verdicts[name].failed:
        assert words[0] == words[1]
    assert (saved.facts, saved.tables) == (live.facts, live.tables)
    assert saved.sentences[0].startswith(f"plan {verdicts[name].hash} on v5e:4x4: ")
    assert live.sentences[0].startswith(f"{verdicts[name].plan.model.name}, ")


def test_a_page_has_every_finding_in_a_table_and_the_program(
    verdicts: dict[str, Verdict],
) -> None:
    for name in ("wide_matmuls", "transposed_weight", "fsdp"):
        page = verdict_page(verdicts[name])
        found = verdicts[name].findings
        assert page.count("<svg") == (1 if name == "fsdp" else 0), "live memory"
        assert ("The program" in page) == (name != "transposed_weight")
        assert all(escape(finding.words) in page for finding in found)


def test_a_program_that_cannot_be_built_says_why(verdicts: dict[str, Verdict]) -> None:
    said = answer_text(verdict_answer(known_of(verdicts["transposed_weight"])))
    assert "not built" in said and "ShardingTypeError" in said


def test_a_plan_that_cannot_be_judged_is_refused_with_a_reason() -> None:
    with pytest.raises(UsageError, match="fp8"):
        verify_plan(replace(EXAMPLE, dtype="fp8"))
    with pytest.raises(ShardingError, match="does not split"):
        verify_plan(small_plan("fsdp=X", "X=16", microbatches=8))
