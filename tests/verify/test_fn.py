"""`rooflight verify --fn` on programs that were not written for us: the right findings alone."""

import importlib.util
import json
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.cli.program import verify
from rooflight.compile.aot.program import ProgramVerdict, parse_build, verify_program
from rooflight.compile.findings.baseline import compare
from rooflight.compile.findings.document import known_of, verdict_document
from rooflight.errors import UsageError
from rooflight.hardware.mesh import parse_mesh
from rooflight.ui.answers.verdict import verdict_answer
from rooflight.ui.text.answer import answer_text

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)

HERE = Path(__file__).parent
STRANGERS = HERE / "strangers.py"
MESHES = {"experts": "X=8", "loose_experts": "X=8"}
QUICK = ("experts", "loose_experts", "merged_batch")
SLOW = ("vit", "ulysses")  # twelve layers unrolled; 64 rounds of a long sequence


def _judge(name: str, cache: Path) -> ProgramVerdict:
    mesh = parse_mesh(MESHES.get(name, "X=2,Y=4"), on="v5e:2x4")
    return verify_program(f"strangers:{name}", mesh, folder=str(HERE), cache=cache)


def _judge_all(names: tuple[str, ...], cache: Path) -> dict[str, ProgramVerdict]:
    return {name: _judge(name, cache) for name in names}  # each is two compiles at a time


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProgramVerdict]:
    return _judge_all(QUICK, tmp_path_factory.mktemp("cache"))


def _line(mark: str) -> str:
    """`file:line` of the first line that has these words."""
    lines = STRANGERS.read_text().splitlines()
    return f"strangers.py:{next(at for at, text in enumerate(lines, 1) if mark in text)}"


def test_a_sound_program_has_no_finding_and_the_collectives_it_asks_for(
    verdicts: dict[str, ProgramVerdict],
) -> None:
    verdict = verdicts["experts"]
    assert verdict.findings == () and verdict.partitioned and verdict.memory
    large = [c for c in verdict.partitioned.collectives if c.nbytes > 10**7]
    assert {(c.kind, c.axes) for c in large} == {("all_to_all", ("X",))}
    # Tokens go to experts and back, and so does one of the two gradients: x has none.
    assert sum(c.count or 0 for c in large) == 3
    assert large[0].nbytes == 2 * 16 * 32 * 256 * 2048  # bf16[expert, group, capacity, width]


def test_a_missing_constraint_is_found_where_the_tokens_are_gathered(
    verdicts: dict[str, ProgramVerdict],
) -> None:
    (finding,) = verdicts["loose_experts"].findings
    assert finding.kind == "weight_moved" and "x_gsd is gathered over X" in finding.words
    assert finding.place == _line("scores = jax.nn.softmax((x_gsd")
    assert finding.seconds and finding.seconds > 1e-3


def test_a_dim_that_joins_batch_and_heads_is_named_with_its_line(
    verdicts: dict[str, ProgramVerdict],
) -> None:
    found = {f.kind: f for f in verdicts["merged_batch"].findings}
    assert found["resharded"].place == _line("y = y.reshape(seq, heads * batch, dim)")
    assert "over X (all-to-all)" in found["resharded"].words


def test_a_builder_that_returns_something_else_is_told_what_is_expected(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="it returned PjitFunction") as caught:
        _judge("wrong", tmp_path)
    assert "must return (function, (argument, ...))" in str(caught.value)


@pytest.mark.parametrize("name", QUICK)
def test_the_page_and_the_document_say_every_finding(
    name: str, verdicts: dict[str, ProgramVerdict]
) -> None:
    verdict = verdicts[name]
    text = answer_text(verdict_answer(known_of(verdict), most=None))
    assert all(f.words in text and f.fix in text for f in verdict.findings)
    assert "Memory: " in text
    shown = json.loads(json.dumps(verdict_document(verdict)))
    assert [f["kind"] for f in shown["findings"]] == [f.kind for f in verdict.findings]


def test_a_change_that_adds_gathers_fails_against_the_earlier_verdict(
    verdicts: dict[str, ProgramVerdict],
) -> None:
    before, after = (
        json.loads(json.dumps({"verb": "verify", **verdict_document(verdicts[name])}))
        for name in ("experts", "loose_experts")
    )
    added = compare(before, after).added
    assert {f.words.partition(":")[0] for f in added} >= {"all-gather over X"}
    assert all(f.where.rpartition("/")[2].startswith("strangers.py:") for f in added)
    assert any("all-to-all over X" in text for text in compare(before, after).better)


@pytest.mark.parametrize("name", QUICK)
def test_the_exit_code_is_that_of_the_findings_or_of_the_baseline(
    name: str,
    verdicts: dict[str, ProgramVerdict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def found(*_: object, **__: object) -> ProgramVerdict:
        return verdicts[name]

    monkeypatch.setattr(verify, "verify_function", found)
    command = ["verify", "--fn", f"{STRANGERS}:{name}", "--on", "v5e:2x4", "--json"]
    assert main(command) == (0 if name == "experts" else 1)
    earlier = tmp_path / "verify.json"
    earlier.write_text(capsys.readouterr().out)
    assert main([*command, "--baseline", str(earlier)]) == 0
    compared = json.loads(capsys.readouterr().out)["baseline"]
    assert compared == {"added": [], "better": [], "changed": []}


def test_a_build_is_a_module_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_build("package.steps:build") == ("package.steps:build", str(tmp_path))
    assert parse_build(f"{STRANGERS}:vit") == ("strangers:vit", str(HERE))
    for text in ("steps", "steps:", ":build", "steps:a.b", "none/such.py:build"):
        with pytest.raises(UsageError):
            parse_build(text)


@pytest.mark.full
def test_other_habits_are_understood_too(tmp_path: Path) -> None:
    found = _judge_all(SLOW, tmp_path)
    for name in SLOW:
        assert found[name].findings == (), [str(f) for f in found[name].findings]
        assert found[name].memory
    with pytest.raises(UsageError, match="no argument of strangers:concrete has a sharding"):
        _judge("concrete", tmp_path)


_FLAGGED = """
import os
def build(mesh):
    import jax, jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec as P
    os.environ["XLA_FLAGS"] = "{flags}"
    like = jax.ShapeDtypeStruct((128, 128), jnp.bfloat16, sharding=NamedSharding(mesh, P("X")))
    return jax.jit(lambda x: x @ x), (like,)
"""


def test_flags_that_a_program_sets_for_dumps_of_its_own_hide_nothing(tmp_path: Path) -> None:
    flags = (
        "--xla_dump_hlo_module_re=train_step --xla_dump_hlo_as_proto --xla_dump_hlo_to_subfolder"
    )
    (tmp_path / "flagged.py").write_text(_FLAGGED.format(flags=flags))
    verdict = verify_program(
        "flagged:build",
        parse_mesh("X=4", on="v5e:2x2"),
        until="partitioned",
        folder=str(tmp_path),
        cache=tmp_path / "cache",
    )
    assert verdict.partitioned and verdict.partitioned.known_flops == 2 * 128**3 / 4


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="needs flax")
def test_a_flax_model_is_sound_and_its_mistake_is_found_where_it_is(tmp_path: Path) -> None:
    mesh = parse_mesh("data=2,model=4", on="v5e:2x4")
    names = ("sound", "whole_hidden")
    sound, mistaken = (
        verify_program(f"strangers_flax:{name}", mesh, folder=str(HERE), cache=tmp_path)
        for name in names
    )
    assert sound.findings == () and sound.memory
    found = {f.kind: f for f in mistaken.findings}
    assert found["cut_again"].place.startswith("strangers_flax.py:")
    assert "is gathered over model and cut over model again" in found["cut_again"].words
    lines = (HERE / "strangers_flax.py").read_text().splitlines()
    line = int(found["cut_again"].place.rpartition(":")[2])
    assert "what the MLP keeps" in lines[line - 1]
    assert "repeated" in found  # and so the matmuls after it
