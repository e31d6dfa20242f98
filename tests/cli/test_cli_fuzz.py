"""Bad input never prints a traceback: random command lines, slices and meshes."""

import json
import re
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.api.traffic import TrafficLoad
from rooflight.cli.verbs import VERBS, load_verb, verb_names
from rooflight.errors import RooflightError
from rooflight.hardware.calibration import Calibration, shipped_calibrations
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.measure.load.tally import LoadTally, Measured
from rooflight.measure.load.target import Dialect
from rooflight.measure.published.replay import CaseSet
from rooflight.measure.published.rows import PublishedFile
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.training.forecast.calibrated import part_table

from .command import run

IS_LARGE = settings().max_examples > 30  # of the profile
PER_VERB, PER_PARSER = (1200, 3000) if IS_LARGE else (60, 120)
SLOW = {"plan serve": 5, "contribute": 4, "tune": 4}  # a line that stands is searched or simulated

FLAGS = (
    *("--on", "--mesh", "--dims", "--dtype", "--bytes", "--plot", "--axes", "--matmul", "--memory"),
    *("--json", "-v", "--verbose", "--toml", "--pad", "--trace", "--in-network-reduction"),
    *("--help", "--check", "--best", "--", "-", "--on=v5e", "--bytes=1e9", "--version"),
)
VALUES = (
    *("v5e", "v5p", "h100", "this-host", "v5e:4x4", "v5p:4x4x4", "2*v5e:4x4", "h100:8x4", "v5e:16"),
    *(
        "X=4,Y=4",
        "X=16",
        "X=2@x,Y=8",
        "X=4@q",
        "X=0",
        "I=8192,J=8192,K=32768",
        "I=1",
        "X",
        "XY",
        "",
    ),
    *("bf16", "int4", "nvfp4", "f64", "34MB", "0", "1e99P", "1.001MB", "9" * 60, "-1", "nan"),
    *("128x128x128", "0x1x1", "1x2", "hbm", "vmem", "pcie", "bash", "zsh", "3.2", "all"),
    *("all-gather", "all-reduce", "all-to-all", "permute", "reduce-scatter", "picture.svg"),
    *("A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]", "A[I_X, J]", "A[I_XX]", "A[I_X]{U_Y}", "no/such/file"),
)


def _mutate(text: str, at: int, extra: str) -> str:
    """Replaces one character by zero to two others."""
    at %= len(text) + 1
    return text[:at] + extra + text[at + 1 :]


_mutated = st.builds(
    _mutate,
    st.sampled_from([*FLAGS, *VALUES, *VERBS]),
    st.integers(0, 40),
    st.text(max_size=2),
)
_word = st.one_of(
    st.sampled_from(FLAGS), st.sampled_from(VALUES), st.sampled_from(VALUES), _mutated
)
TRACE = str(Path(__file__).parent / "traces" / "three.csv")  # short, whatever is spoilt
LOG = str(Path(__file__).parent / "logs" / "maxtext.log")
PLAN = str(files("rooflight.compile") / "example_plan.json")
DUMP = str(Path(__file__).parents[1] / "verify" / "dumps" / "psum")
# Near enough to right that the verbs really run, then spoilt with a word or two.
PLAUSIBLE = {
    "chips": ["v5e"],
    "slice": ["v5p:4x4x4", "--mesh", "X=16,Y=4"],
    "roofline": ["--on", "v5e", "--matmul", "128x8192x8192", "--memory", "hbm"],
    "collective": ["all-gather", "--bytes", "34MB", "--on", "v5e:4x4", "--axes", "X"],
    "matmul": [
        *("A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]", "--on", "v5e:4x4", "--mesh", "X=4,Y=4"),
        *("--dims", "I=8192,J=8192,K=32768"),
    ],
    "shard": ["A[I_X,J]", "--on", "v5e:4x4", "--mesh", "X=4,Y=4", "--dims", "I=64,J=64"],
    "model": ["llama3-8b", "--seq", "4096"],
    "mfu": ["llama3-8b", "--on", "v5e:4x4", "--tokens-per-s", "20k", "--seq", "4096"],
    "plan train": ["llama3.2-1b", "--on", "v5e:2x2", "--batch", "16Ki", "--seq", "4096"],
    "forecast": [
        *("llama3.2-1b", "--on", "v5e:2x2", "--layout", "fsdp=2,tp=2", "--batch", "16Ki"),
        *("--seq", "4096", "--framework", "rooflight", "--hbm-margin", "5%"),
    ],
    "plan serve": [
        *("llama3.2-1b", "--rate", "4", "--isl", "64", "--osl", "8", "--ttft", "1s", "--requests"),
        *("100", "--on", "v5e:1x1", "--layout", "tp=1", "--policy", "continuous"),
        *("--hourly", "2,4", "--cold-start", "3min", "--adapters", "2"),
    ],
    "explain train": [
        *("gpt3-175b", "--layout", "fsdp=X,tp=Y", "--on", "v5p:4x4x4", "--mesh", "X=16,Y=4"),
        *("--batch", "128Ki", "--seq", "2048", "--part", "mlp"),
    ],
    "fit train": [
        *("llama3-8b", "--layout", "fsdp=X,tp=Y", "--on", "v5e:4x4", "--mesh", "X=4,Y=4"),
        *("--batch", "128Ki", "--seq", "4096", "--remat", "dots", "--zero", "1"),
    ],
    "explain serve": [
        *("llama3-8b", "--layout", "tp=4", "--on", "v5e:2x2", "--sequences", "8", "--seq", "2048"),
        *("--phase", "prefill", "--dtypes", "int8"),
    ],
    "fit serve": [
        *("llama3-8b", "--layout", "tp=4", "--on", "v5e:2x2", "--seq", "2048", "--solve", "batch"),
        *("--dtypes", "int8"),
    ],
    "frontier": [
        *("llama3-8b", "--on", "v5e:2x2", "--layout", "tp=4", "--context", "2048", "--most", "64"),
        *("--dtypes", "int8", "--bound", "matmuls", "--price", "1.2", "--adapters", "2"),
    ],
    "budget": [
        *("llama3-8b", "--on", "v5e:4x4", "--tokens", "15T", "--mfu", "40%", "--seq", "4096"),
        *("--price", "1.2", "--mtbf-hours", "50k"),
    ],
    "pipeline": ["1f1b", "--stages", "4", "--microbatches", "8", "--times", "1,1,1", "--compare"],
    "export": ["--to", "megatron"],
    "import": [
        *("model.flavor=8B", "parallelism.tensor_parallel_degree=4", "training.seq_len=4096"),
        *("--from", "torchtitan", "--on", "h100:8x4", "--model", "llama3-8b"),
    ],
    "verify": ["--expect", "--until", "scheduled", "-v"],
    "hlo": [DUMP, "--mesh", "X=4,Y=4", "--stage", "executable"],
    "simulate": [
        *("llama3-8b", "--on", "v5e:2x4", "--trace", TRACE, "--ttft", "1s"),
        *("--policy", "continuous", "--host-memory", "9GB", "--hit-curve", "--ssd", "1TB"),
    ],
    "route": [
        *("--replica", "http://127.0.0.1:9", "--replica", "http://127.0.0.1:10"),
        *("--bound", "8", "--drain", "1s", "--dry-run"),
    ],
    "bench": [
        *("llama3-8b", "--on", "v5e:2x4", "--url", "http://127.0.0.1:9", "--trace", TRACE),
        *("--ttft", "1s", "--time-limit", "60s", "--dry-run"),
    ],
    "serve": [
        *("llama3-8b", "--on", "v5e:2x4", "--dtypes", "bf16", "--ttft", "1s", "--rows", "64"),
        *("--max-tokens", "4Ki", "--port", "0", "--prefill-from", "http://127.0.0.1:9"),
        *("--prefill-timeout", "2s", "--transfer", "bytes", "--dry-run"),
    ],
    "tokens": ["text.txt", "--out", "tokens", "--vocab", "300"],
    "train": [
        *(PLAN, "--data", "tokens", "--out", "run", "--steps", "10", "--save-every", "5", "--cpu"),
        *("--learning-rate", "1e-3", "--seed", "7", "--profile-at", "4"),
    ],
    "launch": [
        *(PLAN, "--data", "tokens", "--out", "run", "--steps", "10", "--processes", "2"),
        *("--hosts", "2", "--host", "1", "--leader", "10.0.0.1:8476", "--retries", "3"),
        *("--patience", "60s", "--write", "slurm"),
    ],
    "ckpt": ["show", ".", "--on", "v5p:4x4x4"],
    "profile": ["--by", "layer", "--step", "1", "--on", "v5e", "--dtype", "int8", "-v"],
    "reconcile": [".", "--on", "this-host:8"],
    "measure": ["--devices", "2"],
    "intensity": ["rooflight.measure.microbench.example:build", "--on", "v5e"],
    "validate": ["--by", "chip"],
    "calibrate": ["shipped", "--chip", "tpu_v4"],
    "contribute": [
        *(LOG, "llama3-8b", "--on", "v5e:16x16", "--layout", "fsdp=256", "--batch", "4Mi"),
        *("--seq", "4k", "--framework", "maxtext", "--name", "night"),
    ],
    "tune": [
        *("llama3-8b", "--on", "v5e:2x4", "--rate", "4", "--isl", "64", "--osl", "8"),
        *("--command", "serve {port} {rows}", "--rows", "8,64", "--requests", "20", "--tries", "1"),
    ],
    "doctor": [],
    "explore": ["train", "--port", "0", "--no-open", "--open", PLAN, "--dry-run"],
    "book": ["3.2"],
    "completion": ["bash"],
}

MEASURED = {
    "measure": {
        "matmuls": [{"m": 1, "k": 1024, "n": 1024, "seconds": 1e-3}],
        "collectives": [
            {"kind": "all_reduce", "nbytes": 4096, "seconds": 1e-4},
            {"kind": "all_reduce", "nbytes": 4 << 20, "seconds": 1e-2},
        ],
    },
    "intensity": {
        "matmul_flops": 10,
        "other_flops": 1,
        "most_bytes": 20,
        "least_bytes": 5,
        "loops_of_unknown_length": 0,
        "matmuls": {"1x1 * 1x5": 10},
    },
}


@st.composite
def _spoilt(draw: st.DrawFn, words: list[str]) -> list[str]:
    spoilt = list(words)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(spoilt)))
        replaced = draw(st.integers(0, 2))
        spoilt[at : at + replaced] = draw(st.lists(_word, max_size=2))
    return spoilt


def _check(argv: list[str], hints_that_ran: set[str]) -> None:
    outcome = run(argv)
    assert outcome.code in (0, 1, 2), outcome.err
    assert "Traceback" not in outcome.err
    if outcome.code == 2:
        assert outcome.out == "" and outcome.err.startswith("error: ")
    elif "--json" in argv and outcome.out.startswith("{"):
        assert json.loads(outcome.out)["schema"] == 2
    hint = outcome.err.partition("\n\nhint: ")[2]
    for command in set(re.findall(r"`(rooflight [^`]+)`", hint)) - hints_that_ran:
        hints_that_ran.add(command)
        assert run(shlex.split(command)[1:]).code == 0, command


def _not_started(*words: object) -> int:
    return 0


def _no_answers(args: object, load: TrafficLoad, *words: object) -> tuple[Measured, Dialect]:
    """Of a server that nobody asks: what is driven for real is in tests/bench."""
    return LoadTally(Slo()).result(load.num_requests), Dialect(
        "m", takes_ids=True, ignores_eos=True
    )


def _no_server(*words: object, **asked: object) -> Measured:
    return LoadTally(Slo()).result(20)


def _asked(rows: PublishedFile) -> CaseSet:
    return CaseSet((), (), part_table([]))


def _fitted(asked: CaseSet, *, made: str) -> tuple[Calibration, ...]:
    return tuple(shipped_calibrations().values())[:2]


@pytest.fixture(autouse=True, scope="module")
def no_explorer() -> Iterator[None]:
    """It starts with no word at all; a real one is in tests/explore."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_verb("explore"), "_serve", _not_started)
        yield


def test_every_verb_has_a_plausible_line() -> None:
    assert set(PLAUSIBLE) == set(verb_names())


@pytest.mark.parametrize("verb", PLAUSIBLE)
def test_no_command_line_of_a_verb_raises(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if verb == "calibrate":  # fitted in tests/reconcile; here only the words are tried
        monkeypatch.setattr(load_verb(verb), "_ask", _asked)
        monkeypatch.setattr(load_verb(verb), "fit_calibrations", _fitted)
    if verb in ("train", "launch"):
        monkeypatch.setattr(load_verb(verb), f"_{verb}", _not_started)
    if verb == "route":
        monkeypatch.setattr(load_verb(verb), "_route", _not_started)
    if verb == "bench":
        monkeypatch.setattr(load_verb(verb), "_drive", _no_answers)
    if verb == "tune":  # what a line says is not run: real servers are started in tests/bench
        monkeypatch.setattr(load_verb(verb), "_measured", _no_server)
    if verb in MEASURED:  # the words are tried here; real processes measure in tests/measure

        def measured(*words: object, **arguments: object) -> object:
            del words, arguments
            return MEASURED[verb]

        monkeypatch.setattr(load_verb(verb), "measure", measured)
    ran: set[str] = set()

    @settings(max_examples=PER_VERB // SLOW.get(verb, 1))
    @given(_spoilt(PLAUSIBLE[verb]))
    def check(words: list[str]) -> None:
        _check([*verb.split(), *words], ran)

    check()


@settings(max_examples=PER_PARSER, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(_mutated, st.text(max_size=6)), max_size=3))
def test_no_first_word_raises(words: list[str]) -> None:
    _check(words, set())


@settings(max_examples=PER_PARSER)
@given(st.sampled_from(list(VERBS)), st.lists(_word, max_size=4))
def test_completion_answers_every_line_without_an_error(verb: str, words: list[str]) -> None:
    outcome = run(["--complete-words", verb, *words])
    assert (outcome.code, outcome.err) == (0, "")


def _shape(sizes: list[int], colon: str) -> str:
    return colon + "x".join(map(str, sizes))


_slice_text = st.one_of(
    st.text(max_size=20),
    st.text("0123456789x*: v5ep", max_size=16),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(("", "2*", "0*", "999999*", "*")),
        st.sampled_from(("v5e", "v5p", "H100", "tpu7x", "gb200", "this-host", "7x", "v9", "")),
        st.builds(
            _shape,
            st.lists(st.sampled_from((0, 1, 2, 3, 4, 8, 16, 28, 576, 999999)), max_size=4),
            st.sampled_from((":", "", "::", " : ")),
        ),
    ),
)


@settings(max_examples=PER_PARSER)
@given(_slice_text)
def test_parse_slice_returns_a_slice_or_one_of_our_errors(text: str) -> None:
    try:
        found = parse_slice(text)
    except RooflightError as error:
        assert error.hint
        return
    assert isinstance(found, Slice) and parse_slice(str(found)) == found
    assert run(["slice", str(found)]).code in (0, 2)  # 2: no DCN between such slices


_axis_text = st.builds(
    "{}={}{}".format,
    st.sampled_from(("X", "Y", "Z", "data", "x1", "", "1", "X Y")),
    st.sampled_from((0, 1, 2, 3, 4, 8, 16, 64, 256, 999999999, -1)),
    st.sampled_from(("", "", "", "@x", "@y", "@x+y", "@q", "@", "@node", "@x+x")),
)
_mesh_text = st.one_of(
    st.text(max_size=16),
    st.text("XYZ=,@+xyz0123456789 ", max_size=20),
    st.lists(_axis_text, max_size=4).map(",".join),
)


@settings(max_examples=PER_PARSER)
@given(_mesh_text, st.sampled_from(("v5e:4x4", "v5e:16x16", "v5p:4x4x4", "h100:8x4", "2*v5e:4x4")))
def test_parse_mesh_returns_a_mesh_or_one_of_our_errors(text: str, on: str) -> None:
    try:
        mesh = parse_mesh(text, on=on)
    except RooflightError as error:
        assert error.hint
        return
    assert isinstance(mesh, Mesh) and mesh.group(list(mesh.axes)).size == mesh.slice.num_chips
    assert parse_mesh(str(mesh), on=on).axes == mesh.axes
