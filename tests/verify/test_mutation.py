"""Planted mistakes: each is found and its line named; the sound programs raise nothing.

Ten were written before the judge was finished, ten after: of those the unchanged judge found
eight at first sight, one of them a line off, and said something false of one sound program. Those
of `style_mutants` and `style_libraries` came later, and the twenty of `FRESH` after the findings
that the last three of `STYLES` asked for; those of `OTHERS` after fixes became data, and those of
`LAST` after the last change to the findings. A fix is applied by the sound form of each mistake,
and where it is data just as it says.
"""

import importlib.util
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from rooflight.compile.aot.program import ProgramVerdict, verify_program
from rooflight.hardware.mesh import Mesh, parse_mesh

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)

HERE = Path(__file__).parent
MESH = parse_mesh("X=2,Y=4", on="v5e:2x4")
SLICES = parse_mesh("D=2@dcn,X=2,Y=2", on="2*v5e:2x2")


@dataclass(frozen=True)
class Case:
    """A program, the kind of its finding ("" if it is sound), and the mark of the line."""

    build: str
    arguments: dict[str, object]
    kind: str = ""
    mark: str = ""
    is_large: bool = False  # judged at the schedule, for its memory
    fix: str = ""  # words of the fix, which the sound form applies
    mesh: Mesh = MESH

    @property
    def name(self) -> str:
        return f"{self.mark} {self.build.partition(':')[2]}" if self.kind else f"sound {self.build}"


def _early(build: str, mistake: str, kind: str, **more: object) -> Case:
    return Case(f"mutants:{build}", {"mistake": mistake, **more}, kind, mistake)


def _later(build: str, kind: str) -> Case:
    return Case(
        f"later_mutants:{build}", {"mistaken": True}, kind, build, is_large=build == "lost_remat"
    )


EARLY = (
    _early("train", "missing constraint", "repeated", microbatches=2),
    _early("train", "transposed spec", "wrong_axis"),
    _early("train", "uneven heads", "repeated"),
    _early("train", "unsharded embedding", "replicated"),
    _early("train", "reshard before an einsum", "batch_gathered"),
    _early("train", "replicated moment", "replicated"),
    _early("train", "whole batch", "repeated"),
    _early("train", "gathered logits", "batch_gathered"),
    _early("decode", "fsdp left on in decode", "weight_moved"),
    _early("decode", "gather of K over batch", "batch_gathered"),
)
LATER = (
    _later("vocabulary_axis", "repeated"),
    _later("wide_sum", "wide"),
    _later("sum_in_each_round", "each_round"),
    _later("cache_by_sequence", "resharded"),
    _later("whole_results", "returned_whole"),
    _later("whole_experts", "replicated"),
    _later("sorted_vocabulary", "resharded"),
    _later("whole_bias", "replicated"),
    _later("shuffled_batch", "resharded"),
    _later("lost_remat", "out_of_memory"),
)
_LIBRARIES = {
    "optax": "optax",
    "equinox": "equinox",
    "haiku": "haiku",
    "nnx": "flax",
    "linen": "flax",
}


def _style(build: str, kind: str, module: str = "style_mutants") -> Case:
    return Case(f"{module}:{build}", {"mistaken": True}, kind, build)


STYLES = (
    _style("narrow_tp", "wrong_axis"),
    _style("wide_decode", "wrong_axis"),
    _style("transposed_down", "wrong_axis"),
    _style("stacked_across", "wrong_axis"),
    _style("replicated_up", "replicated"),
    _style("kept_cache", "not_donated"),
    _style("kept_state", "not_donated"),
    _style("whole_cache", "replicated"),
    _style("manual_tp", "repeated"),
    _style("explicit_hidden", "cut_again"),
    _style("split_layers", "wrong_axis"),
    _style("joined_batches", "resharded"),
    _style("optax_state", "not_donated", "style_libraries"),
    _style("optax_moments", "replicated", "style_libraries"),
    _style("nnx_mlp", "wrong_axis", "style_libraries"),
    _style("nnx_head", "replicated", "style_libraries"),
    _style("equinox_mlp", "repeated", "style_libraries"),
    _style("haiku_mlp", "repeated", "style_libraries"),
    _style("stale_constraint", "stale_constraint"),
    _style("leaked_f32", "wide"),
    _style("host_callback", "host_callback"),
    replace(_style("small_kernel", "padding", "fresh_mutants"), is_large=True),
)


def _fresh(build: str, kind: str, fix: str, module: str = "fresh_mutants") -> Case:
    return replace(_style(build, kind, module), fix=fix)


FRESH = (
    _fresh("stale_heads", "resharded", "take this constraint out"),
    _fresh("stale_rows", "cut_again", "take this constraint out"),
    _fresh("stale_experts", "resharded", "take this constraint out"),
    _fresh("leaked_rope", "wide", "cast back to bf16 before the matmul"),
    _fresh("leaked_norm", "wide", "cast back to bf16 before the matmul"),
    _fresh("leaked_gate", "wide", "cast back to bf16 before the matmul"),
    _fresh("printed_layers", "host_callback", "a jax.lax.cond that few steps enter"),
    _fresh("host_sampling", "host_callback", "use it on the host after the step"),
    _fresh("odd_vocabulary", "repeated", "(padded, if no dim of it divides by 4)"),
    _fresh("manual_cache", "not_donated", "donate_argnames='cache'"),
    _fresh("whole_logits", "weight_moved", "take this constraint out"),
    _fresh("tied_table", "resharded", "the sharding that the matmul on this line wants"),
    _fresh("gathered_experts", "weight_moved", "leave it where it is and move the activations"),
    _fresh("linen_across", "wrong_axis", "P(None, 'Y')", "fresh_libraries"),
    _fresh("linen_sibling", "replicated", "P(None, 'Y')", "fresh_libraries"),
    _fresh("linen_gradients", "returned_whole", "P('Y', 'X')", "fresh_libraries"),
    _fresh("nnx_state", "not_donated", "donate_argnames='params'", "fresh_libraries"),
    _fresh("nnx_wide", "wide", "cast before the all-reduce", "fresh_libraries"),
    _fresh("equinox_idle", "repeated", "split a dim of an operand over Y", "fresh_libraries"),
    _fresh("equinox_sibling", "replicated", "P('Y', None)", "fresh_libraries"),
)


def _other(build: str, kind: str) -> Case:
    return _style(build, kind, "other_mutants")


OTHERS = (
    *(_other(name, "repeated") for name in ("conv_idle", "conv_channels", "dpo_reference")),
    *(_other(name, "repeated") for name in ("ensemble_whole", "chunked_rows", "picked_logit")),
    *(_other(name, "resharded") for name in ("ssm_time", "fused_gate", "fused_qkv")),
    *(_other(name, "split_dim") for name in ("split_head_dim", "fft_split", "lstm_whole")),
    *(_other(name, "split_dim") for name in ("beam_flat", "graph_nodes")),
    _other("muon_whole", "cut_again"),
    _other("recsys_table", "replicated"),
    _other("lora_wide", "wide"),
    _other("patches_turned", "cut_again"),
)


def _last(build: str, kind: str, module: str = "last_mutants") -> Case:
    return replace(_style(build, kind, module), mesh=SLICES if "slices" in build else MESH)


LAST = (
    *(_last(name, "repeated") for name in ("manual_rows", "experts_everywhere", "pairs_whole")),
    _last("slices_rows", "repeated"),
    _last("experts_sorted", "resharded"),
    _last("cross_states", "cut_again"),
    _last("nnx_cache", "not_donated", "last_libraries"),
    _last("equinox_attention", "repeated", "last_libraries"),
    _last("optax_steps", "replicated", "last_libraries"),
    _last("optax_average", "not_donated", "last_libraries"),
)
# Sound forms of those that were not found, or not at their line (docs/verify.md says why).
_SOUND_LAST = (
    *(_last(name, "") for name in ("slices_weights", "manual_cut", "ring_wide", "stages_whole")),
    *(_last(name, "") for name in ("explicit_logits", "paged_pages")),
    replace(_last("rolled_cache", ""), is_large=True),
    _last("linen_rules", "", "last_libraries"),
)
# Sound forms of mistakes that XLA mends by itself.
_SOUND_OTHERS = ("int8_gathered", "accumulated")
_SOUND_STYLES = (
    *("ring", "gathered_matmul", "manual_experts", "explicit_transformer", "saved_names"),
    *("saved_dots", "kernel", "pipeline", "data_parallel", "weight_stationary"),
)
SOUND = (
    Case("mutants:train", {}),
    Case("mutants:train", {"microbatches": 2}),
    Case("mutants:decode", {}),
    *(
        Case(c.build, {"mistaken": False}, is_large=c.is_large, mesh=c.mesh)
        for c in (*LATER, *STYLES, *FRESH, *OTHERS, *LAST, *_SOUND_LAST)
    ),
    *(Case(f"other_mutants:{name}", {"mistaken": False}) for name in _SOUND_OTHERS),
    *(Case(f"style_sound:{name}", {}) for name in _SOUND_STYLES),
    *(Case(f"kernels_sound:{name}", {}) for name in ("flash", "splash", "megablox", "paged")),
)
QUICK = (
    *(EARLY[1], EARLY[5], EARLY[8], LATER[1], LATER[2], LATER[4], SOUND[1], SOUND[2], SOUND[-2]),
    *(STYLES[1], STYLES[5], STYLES[18], FRESH[2], FRESH[5], FRESH[6]),
)


ONE_OF_EACH = ("kept_cache", "replicated_up", "linen_gradients", "stale_constraint", "stale_heads")


def _marks(case: Case, is_quick: bool) -> list[pytest.MarkDecorator]:
    marks = [] if is_quick else [pytest.mark.full]
    module, _, build = case.build.partition(":")
    needed = _LIBRARIES[build.partition("_")[0]] if module.endswith("_libraries") else "jax"
    is_there = importlib.util.find_spec(needed) is not None
    return [*marks, pytest.mark.skipif(not is_there, reason=f"{needed} is not installed")]


CASES = [
    pytest.param(case, id=f"{case.name} {at}", marks=_marks(case, case in QUICK))
    for at, case in enumerate((*EARLY, *LATER, *STYLES, *FRESH, *OTHERS, *LAST, *SOUND))
]


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[ProgramVerdict]]]:
    """The cases of this run, two compiles at a time."""
    cache = tmp_path_factory.mktemp("cache")
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    asked = {spec.id for spec in specs if spec}
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {
            str(param.id): pool.submit(_judge, param.values[0], cache)
            for param in CASES
            if param.id in asked
        }


def _judge(case: object, cache: Path) -> ProgramVerdict:
    assert isinstance(case, Case)
    return verify_program(
        case.build,
        case.mesh,
        until="scheduled" if case.is_large else "partitioned",
        folder=str(HERE),
        arguments=case.arguments,
        cache=cache,
    )


@pytest.mark.parametrize("case", CASES)
def test_a_planted_mistake_is_found_with_its_line_and_a_sound_program_raises_nothing(
    case: Case, verdicts: dict[str, Future[ProgramVerdict]], request: pytest.FixtureRequest
) -> None:
    verdict = verdicts[request.node.callspec.id].result()
    said = "\n".join(f"{f.kind}: {f}" for f in verdict.findings)
    assert verdict.partitioned is not None, verdict.done[0].words
    if not case.kind:
        assert not verdict.findings, said
        return
    lines = _marked(case.mark)
    named = [f for f in verdict.findings if f.kind == case.kind and f.place in lines]
    assert named, f"{lines} not in\n{said}"
    assert all(f.fix and (f.seconds or f.nbytes) for f in named)
    assert any(case.fix in f.fix for f in named), said


MECHANICAL = (
    *("transposed spec", "unsharded embedding", "replicated moment", "whole_experts", "whole_bias"),
    *("narrow_tp", "transposed_down", "stacked_across", "replicated_up"),
    *("kept_cache", "kept_state", "whole_cache", "optax_state"),
    *("optax_moments", "nnx_mlp", "nnx_head", "stale_constraint", "stale_heads", "stale_rows"),
    *("stale_experts", "manual_cache", "whole_logits", "linen_across", "linen_sibling"),
    *("linen_gradients", "nnx_state", "equinox_sibling", "wide_decode", "muon_whole"),
    *("cross_states", "nnx_cache", "optax_steps", "optax_average"),
)
EDITED = [
    pytest.param(case, id=f"{case.name} {at} edited", marks=_marks(case, case.mark in ONE_OF_EACH))
    for at, case in enumerate((*EARLY, *LATER, *STYLES, *FRESH, *OTHERS, *LAST))
    if case.mark in MECHANICAL
]


@pytest.mark.parametrize("case", EDITED)
def test_the_fix_as_data_made_to_the_program_removes_the_finding(
    case: Case, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The program as it is, with the edits of its findings and nothing else."""
    cache = tmp_path_factory.getbasetemp() / "edited"
    verdict = _judge(case, cache)
    named = [f for f in verdict.findings if f.kind == case.kind and f.place in _marked(case.mark)]
    edits = [asdict(edit) for finding in named for edit in finding.edits]
    assert edits, [str(f) for f in named]
    given: dict[str, object] = {"program": case.build, "arguments": case.arguments, "edits": edits}
    edited = _judge(Case("applied:build", given), cache)
    assert edited.partitioned is not None, edited.done[0].words
    places = {(f.kind, f.place) for f in named}
    left = [f for f in edited.findings if (f.kind, f.place) in places]
    assert not left, [f"{f.kind}: {f}" for f in left]
    assert edited.step_s and verdict.step_s
    costs_time = any(f.seconds for f in named)  # what costs memory may be split for a little time
    assert edited.step_s <= (1.001 if costs_time else 1.05) * verdict.step_s


def _marked(mark: str) -> set[str]:
    """The lines whose comment names a mistake, as `file:line`."""
    files = [*HERE.glob("*mutants.py"), *HERE.glob("*_libraries.py")]
    return {
        f"{file.name}:{at}"
        for file in files
        for at, line in enumerate(file.read_text().splitlines(), start=1)
        if mark in line.partition("  # ")[2].split(", ")
    }


def test_there_are_ninety_mistakes_and_every_one_has_a_line() -> None:
    names = [case.mark for case in (*EARLY, *LATER, *STYLES, *FRESH, *OTHERS, *LAST)]
    assert len(set(names)) == 90 and len(FRESH) == 20
    assert len({(case.build, str(case.arguments)) for case in SOUND}) == 107
    assert all(_marked(name) for name in names)
