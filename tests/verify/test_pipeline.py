"""Plans with pipeline stages: what they expect, by counting; and held against real compiles."""

import importlib.util
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from plans import EXAMPLE, small_plan

from rooflight.compile.expected.train import Expected, expected_collectives, expected_weights
from rooflight.compile.findings.verify import Verdict, verify
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.file.record import Plan
from rooflight.program.from_plan.setting import rounds_of

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)
HERE = Path(__file__).parent


def staged(
    layout: str, mesh: str, schedule: str = "1f1b", *, virtual: int = 1, layers: int = 2
) -> Plan:
    """Two stages, four microbatches."""
    plan = small_plan(layout, mesh, microbatches=4)
    runs = (replace(plan.model.layers[0], times=layers),)
    model = replace(plan.model, layers=runs)
    return replace(plan, model=model, stages=2, schedule=schedule, virtual=virtual)


def whole(
    name: str, slice: str, layout: str, mesh: str, *, batch: int, schedule: str, virtual: int = 1
) -> Plan:
    """A model of the catalog, two microbatches for each stage."""
    stages = int(mesh.split(",")[0].removeprefix("P="))
    micro = {"microbatches": 2 * stages, "stages": stages, "schedule": schedule}
    where = {"slice": slice, "layout": layout, "mesh": mesh, "batch": batch, "seq": 4096}
    options = {"recipe": "16", "remat": "block", "zero": 1, "virtual": virtual}
    return replace(EXAMPLE, model=load_model(name), **micro, **where, **options)


FSDP = staged("fsdp=X,pp=P", "P=2,X=8")
SOUND = {
    "fsdp": FSDP,
    "dp, sp, two stages per device": staged(
        "dp=Z,sp=Y,pp=P", "P=2,Z=4,Y=2", "interleaved", virtual=2, layers=5
    ),
    # A broadcast that drops a dim of 1 had gradients summed in every microbatch.
    "dp, one layer per stage": staged("dp=Z,pp=P", "P=2,Z=8", "interleaved", virtual=2, layers=4),
}
_70B = ("llama3-70b", "v5p:4x4x8", "fsdp=X,sp=Y,pp=P", "P=4,X=8,Y=4")
LARGE = {
    "70b": whole(*_70B, batch=256, schedule="interleaved", virtual=2),
    "70b, zero bubble": whole(*_70B, batch=256, schedule="zb-h1"),
    "70b, dp": whole(
        *("llama3-70b", "v5p:4x4x8", "dp=Z,sp=Y,pp=P", "P=8,Z=4,Y=4"), batch=256, schedule="1f1b"
    ),
    "405b": whole(
        *("llama3.1-405b", "v5p:16x16x16", "fsdp=X,sp=Y,pp=P", "P=16,X=32,Y=8"),
        batch=1024,
        schedule="1f1b",
    ),
    "deepseek": whole(
        *("deepseek-v3", "v5p:8x16x16", "fsdp=X,ep=X,pp=P", "P=16,X=128"),
        batch=4096,
        schedule="1f1b",
    ),
}


def by_kind(expected: list[Expected]) -> Counter[str]:
    found: Counter[str] = Counter()
    for e in expected:
        found[e.kind] += e.count
    return found


@pytest.mark.parametrize("stages", [2, 4])
def test_a_round_hands_its_results_to_one_neighbour(stages: int) -> None:
    plan = replace(staged("fsdp=X,pp=P", f"P={stages},X={16 // stages}", layers=4), stages=stages)
    rounds = rounds_of(plan)
    fill = stages - 1
    assert (rounds.forward, rounds.backward, rounds.chunks) == (4 + fill - 1, 4 + fill, 1)
    (handed,) = [e for e in expected_collectives(plan) if e.kind == "permute"]
    assert (handed.axes, handed.count) == (("P",), rounds.forward + rounds.backward)
    rows = 64 // 4 // (16 // stages)
    assert handed.nbytes == 2 * rows * 1024 * 1024  # bf16 x[B_X,T,D] of a microbatch


def gathers(plan: Plan) -> Counter[str]:
    found = Counter[str]()
    for e in expected_collectives(plan):
        found[e.op] += e.count * (e.kind == "all_gather")
    return found


def test_a_layer_is_gathered_in_every_round_and_again_where_there_are_gradients() -> None:
    once = gathers(replace(small_plan("fsdp=X", "X=16", microbatches=4), microbatches=1))
    found, rounds = gathers(FSDP), rounds_of(FSDP)
    for op, times in once.items():
        if op.startswith(("attention", "mlp")):
            assert times == 4  # of two layers; a stage has one
            assert found[op] == rounds.forward + 2 * rounds.backward
    assert found["embedding.tokens"] == rounds.ticks == 6  # once for both rounds of a tick
    assert found["head.logits"] == rounds.backward  # with the loss


def test_sums_over_data_axes_are_taken_once_and_ends_are_summed_over_stages() -> None:
    plan = staged("dp=Z,pp=P", "P=2,Z=8")
    sums = [e for e in expected_collectives(plan) if e.kind == "all_reduce"]
    assert {e.count for e in sums} == {1}
    assert {e.op for e in sums if e.axes == ("P",)} == {
        p.name for p in model_graph(plan.model).params if p.block is None
    }


@pytest.mark.parametrize("virtual", [1, 2])
def test_an_uneven_stage_stores_its_padding(virtual: int) -> None:
    schedule = "1f1b" if virtual == 1 else "interleaved"
    layouts = ("fsdp=X,pp=P", "P=2,X=8", schedule)
    uneven, even = (
        expected_weights(staged(*layouts, virtual=virtual, layers=n)) for n in (5, 4 + 2 * virtual)
    )
    assert uneven == even


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    cache = tmp_path_factory.mktemp("cache")
    mistake = "pipeline_mistakes:summed_every_tick"
    with ThreadPoolExecutor(max_workers=2) as pool:
        sound = {name: pool.submit(verify, plan, cache=cache) for name, plan in SOUND.items()}
        plan = SOUND["dp, sp, two stages per device"]
        wrong = pool.submit(verify, plan, build=mistake, folder=str(HERE), cache=cache)
        return {name: one.result() for name, one in (sound | {"mistake": wrong}).items()}


def check(verdict: Verdict) -> None:
    assert isinstance(verdict.plan, Plan) and verdict.findings == ()
    assert verdict.matching and verdict.matching.matched_share > 0.998
    runs = sum(e.count for e in expected_collectives(verdict.plan))
    assert verdict.matching.matched_count == runs > 0
    assert len(verdict.matching.named) <= 3


@needs_compiler
@pytest.mark.parametrize("name", SOUND)
def test_a_pipeline_has_the_collectives_that_are_expected(
    name: str, verdicts: dict[str, Verdict]
) -> None:
    check(verdicts[name])


@needs_compiler
def test_gradients_that_are_summed_in_every_tick_are_found_out(
    verdicts: dict[str, Verdict],
) -> None:
    matching = verdicts["mistake"].matching
    assert matching and {s.collective.axes for s in matching.surprises} == {("Z",)}
    assert all((s.count or 0) > 1 for s in matching.surprises)


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("name", LARGE)
def test_large_models_in_stages_have_the_collectives_that_are_expected(
    name: str, tmp_path: Path
) -> None:
    check(verify(LARGE[name], cache=tmp_path))
