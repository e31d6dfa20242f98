"""LoRA adapters: bytes counted from shapes by hand, times by the algebra, sequences drawn."""

from dataclasses import replace
from random import Random

import pytest

from rooflight.api.replica import read_adapters, read_setup
from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.errors import UsageError
from rooflight.models.presets import load_model
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.simulate.setup import Features, Setup
from rooflight.plan.serving.step.adapters import Adapters
from rooflight.plan.serving.step.curve import step_curve
from rooflight.plan.serving.step.terms import ExpertReads

# of Llama 3 8B: inner and outer width of every linear layer, and whether TP splits the inner one
SHAPES = {
    "q": (4096, 4096, False),
    "k": (4096, 1024, False),
    "v": (4096, 1024, False),
    "o": (4096, 4096, True),
    "gate": (4096, 14336, False),
    "up": (4096, 14336, False),
    "down": (14336, 4096, True),
}
LAYERS = 32


def setup_of(adapters: Adapters | None, layout: str = "tp=1", on: str = "h100:1") -> Setup:
    plain = read_setup("llama3-8b", on=on, layout=layout, dtypes="fp8")
    return replace(plain, features=Features(adapters=adapters))


def elements(rank: int, tp: int) -> int:
    """Of one adapter on a chip, in all layers."""
    sides = (
        (inner // tp + outer) if is_inner else (inner + outer // tp)
        for inner, outer, is_inner in SHAPES.values()
    )
    return LAYERS * rank * sum(sides)


@pytest.mark.parametrize(("layout", "on", "tp"), [("tp=1", "h100:1", 1), ("tp=4", "h100:4", 4)])
@pytest.mark.parametrize(("count", "resident", "rank"), [(1, 0, 8), (32, 0, 16), (300, 20, 64)])
def test_memory_is_that_of_the_shapes(
    layout: str, on: str, tp: int, count: int, resident: int, rank: int
) -> None:
    plain = setup_of(None, layout, on).memory().held(4, 1000)
    adapters = Adapters(count, rank, resident)
    held = setup_of(adapters, layout, on).memory().held(4, 1000)
    nbytes = 2 * (resident or count) * elements(rank, tp)
    assert held.weights_bytes - plain.weights_bytes == nbytes
    assert (held.kv_bytes, held.activations_bytes) == (plain.kv_bytes, plain.activations_bytes)


def test_stages_hold_the_adapters_of_their_layers() -> None:
    whole, staged = (setup_of(Adapters(64), x, "h100:2") for x in ("tp=2", "pp=2"))
    plain = replace(staged, features=Features()).memory().held(1, 1)
    held = staged.memory().held(1, 1).weights_bytes - plain.weights_bytes
    assert held == 64 * 2 * elements(16, 1) // 2 and whole.steps().layout.tp == 2


@pytest.mark.parametrize("rows", [1, 7, 60, 1000])
def test_a_step_takes_longer_by_the_algebra(rows: int) -> None:
    """Different adapters are read once; each token is multiplied with its own, down and up."""
    adapters = Adapters(40, 32)
    plain, setup = setup_of(None), setup_of(adapters)
    chip, contexts = setup.on.chip, [500] * rows
    before, after = (s.steps().generate(contexts) for s in (plain, setup))
    different = 40 * (1 - (1 - 1 / 40) ** rows)
    hbm, held = memory_bytes_per_s(chip), elements(32, 1)
    assert after.weights_s - before.weights_s == pytest.approx(2 * different * held / hbm)
    flops_s = 2 * held * rows / chip.peak_flops("bf16")
    assert after.matmul_s - before.matmul_s == pytest.approx(flops_s)
    inputs = 4096 + 4096 + 4096 + 14336  # of q k v, o, gate and up, down
    moved = LAYERS * (inputs + 2 * sum(outer for _, outer, _ in SHAPES.values()) + 2 * 7 * 32)
    activations_s = 2 * moved * rows / hbm
    assert after.activations_s - before.activations_s == pytest.approx(activations_s)
    assert after.num_matmuls - before.num_matmuls == LAYERS * 8
    assert (
        before.expected_s
        < after.expected_s
        <= before.expected_s + 1.01 * (2 * different * held / hbm + flops_s + activations_s)
    )


def test_sequences_drawn_at_random_have_so_many_different_adapters() -> None:
    draw, times = Random(2), 4000
    for rows in (1, 16, 90):
        met = sum(len({draw.randrange(50) for _ in range(rows)}) for _ in range(times)) / times
        assert 50 * ExpertReads(1.0, 1 / 50).touched(rows) == pytest.approx(met, rel=0.01)


@pytest.mark.parametrize(("layout", "on"), [("tp=1", "h100:1"), ("tp=2,pp=2", "h100:4")])
def test_a_curve_has_the_times_of_its_model(layout: str, on: str) -> None:
    """Draft tokens of a sequence have its adapter; a chunk is of one prompt."""
    model = setup_of(Adapters(64, 64), layout, on).steps()
    for rows in (1, 30, 400):
        for queries in (1, 4):
            said = step_curve(model, queries=queries).seconds(
                decode_rows=rows, kv_tokens=rows * 800, prefill_tokens=0, prefill_kv_tokens=0
            )
            true_s = model.generate([800] * rows, queries=queries).expected_s
            assert said == pytest.approx(true_s, rel=5e-3)
    attended = 1000 * 1001 // 2
    said = step_curve(model).seconds(
        decode_rows=20, kv_tokens=16_000, prefill_tokens=1000, prefill_kv_tokens=attended
    )
    mixed = model.mixed([800] * 20, tokens=1000, kv_tokens=attended).expected_s
    assert said == pytest.approx(mixed, rel=5e-3)


@pytest.mark.parametrize("engine", [None, "any"])
def test_more_and_wider_adapters_take_longer_and_fewer_slots_no_less(engine: str | None) -> None:
    def seconds(adapters: Adapters | None, rows: int, chunk: int = 0) -> float:
        cost = fleet_cost(setup_of(adapters), input_tokens=900, context=999, engine=engine)[0]
        return cost.seconds(
            decode_rows=rows,
            kv_tokens=rows * 1000,
            prefill_tokens=chunk,
            prefill_kv_tokens=chunk * 400,
        )

    for rows, chunk in ((40, 0), (0, 800), (40, 800)):
        one, many, wide, few = (
            seconds(x, rows, chunk)
            for x in (Adapters(1), Adapters(64), Adapters(64, 128), Adapters(64, 128, 4))
        )
        assert seconds(None, rows, chunk) < one <= many < wide == few
        if rows and not chunk:
            assert one < many


def test_adapters_that_cannot_be_are_refused_in_words() -> None:
    model = load_model("llama3-8b")
    assert read_adapters(model, None, None, None) is read_adapters(model, 0, None, None) is None
    held = "8 of them in HBM at once (waiting for a slot is not priced)"
    told = f"32 LoRA adapters of rank 64, {held}; no measured row has any"
    assert str(read_adapters(model, "32", "64", "8")) == told
    with pytest.raises(UsageError, match="--adapter-rank without adapters"):
        read_adapters(model, None, 8, None)
    with pytest.raises(UsageError, match="--adapters-resident"):
        read_adapters(model, 8, None, 9)
    with pytest.raises(UsageError, match="latent attention"):
        read_adapters(load_model("deepseek-v3"), 8, None, None)
