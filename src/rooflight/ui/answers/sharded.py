"""Sharded arrays, matmuls of them and collectives as `Answer`s: who holds what, times, what lost.

In: a `Choice`, a `Price` or a `NetworkTime` of `costs`, arrays on a mesh, layouts, runs. Out: what
terminal, explorer and notebook show of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rooflight.algebra.blocks import holders
from rooflight.algebra.contract import Strategy, strategies
from rooflight.algebra.notation import Contraction, Tensor
from rooflight.algebra.shapes import device_bytes, local_shape, total_bytes, ways
from rooflight.costs.best import PricedLayout
from rooflight.costs.choose import Choice, Price, StepPrice
from rooflight.costs.network import NetworkTime
from rooflight.dtypes import Dtype
from rooflight.hardware.mesh import Mesh
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Picture,
    Table,
    show_bytes,
    show_count,
    show_seconds,
)
from rooflight.ui.svg.shard import ShardPicture, shards_svg
from rooflight.units import format_seconds, format_si

_TIME = Column("expected_s", "time", show_seconds)
_STEPS = (
    *(Column("step", "step"), _TIME),
    Column("moves_or_computes", "moves or computes", is_right=True),
    Column("binds", "bound by"),
)
_LOSERS = (
    *(Column("ratio", "lost by", lambda x: f"{x:.2f}x"), _TIME),
    Column("network_bytes", "collectives", show_bytes),
    Column("summary", "alternative", is_wide=True),
)
_LAYOUTS = (
    *(_TIME, Column("network_s", "network", show_seconds)),
    Column("stored_bytes", "stored", show_bytes),
    *(Column("layout", "layout"), Column("summary", "collectives")),
)
_RUNS = (
    Column("strategy", "strategy"),
    *(Column(f"{n}_s", n, show_seconds) for n in ("predicted", "measured")),
    Column("off", "off", is_right=True),
)
_TENSORS = (
    *(Column("tensor", "array"), Column("local_shape", "block on a device")),
    Column("device_bytes", "bytes per device", show_bytes),
    Column("total_bytes", "bytes on all", show_bytes),
    Column("copies", "copies", show_count),
)


def place_text(mesh: Mesh, dtype: Dtype) -> str:
    """Where an answer holds."""
    return f"on {mesh.slice}, mesh {mesh}, {dtype.name}; "


def choice_answer(choice: Choice, place: str = "", *, most: int | None = 12) -> Answer:
    """The best strategy, why, and what lost."""
    best, said = choice.best, price_answer(choice.best, place)
    rows = tuple(
        (
            *(p.expected_s / best.expected_s if best.expected_s else None, p.expected_s),
            *(p.network_bytes, p.summary),
        )
        for p in choice.losers
    )
    keep = ("alternative", "lost by")
    lost = Table("strategies", "What lost, and by how much", _LOSERS, rows, keep=keep)
    return replace(
        said,
        tables=(*said.tables, *([lost.first(most)] if rows else [])),
        notes=("", f"why: {choice.because}"),
    )


def price_answer(price: Price, place: str = "") -> Answer:
    """Each step of one strategy, with its time and what binds it."""
    lower, upper = format_seconds(price.lower_s), format_seconds(price.upper_s)
    return Answer(
        sentences=(
            f"{price.strategy.contraction}: {format_seconds(price.expected_s)}, {price.summary}",
            f"{place}between {lower} (all overlaps) and {upper} (nothing does)",
        ),
        facts=(
            Fact("expected_s", "time", price.expected_s, show_seconds, price.summary),
            Fact("local_s", "matmul", price.local_s, show_seconds, "on each device"),
            Fact("network_s", "collectives", price.network_s, show_seconds, "one after another"),
            Fact("network_bytes", "moved", price.network_bytes, show_bytes, "the book's V"),
            Fact("lower_s", "at best", price.lower_s, show_seconds, "everything overlaps"),
            Fact("upper_s", "at worst", price.upper_s, show_seconds, "nothing overlaps"),
        ),
        tables=(steps_table(price),),
    )


def steps_table(
    price: Price, key: str = "steps", caption: str = "The derived steps, as priced"
) -> Table:
    rows = tuple((str(p.step), p.expected_s, _amount(p), p.binds) for p in price.steps)
    return Table(key, caption, _STEPS, rows, keep=("step", "time", "bound by"))


def _amount(part: StepPrice) -> str | None:
    if part.op:
        return format_si(part.flops, "FLOP")
    return format_si(part.nbytes, "B") if part.network else None


def strategy_answer(strategy: Strategy) -> Answer:
    """Its steps, without sizes."""
    rows = tuple((str(step),) for step in strategy.steps)
    table = Table("steps", "Steps", (Column("step", "step"),), rows)
    return Answer((str(strategy.contraction),), tables=(table,))


def contraction_answer(contraction: Contraction) -> Answer:
    """What it could do: a row for each strategy."""
    found = strategies(contraction)
    rows = tuple((i, "; ".join(map(str, one.steps))) for i, one in enumerate(found, start=1))
    columns = Column("number", ""), Column("steps", "steps", is_wide=True)
    table = Table("ways", f"{len(rows)} ways to compute it", columns, rows)
    return Answer((str(contraction),), tables=(table,))


def layouts_answer(layouts: Sequence[PricedLayout], place: str, memory: int | None) -> Answer:
    """The shardings that take least, best first."""
    best = layouts[0]
    cap = f"at most {format_si(memory, 'B')} stored a chip" if memory else "no memory cap"
    rows = tuple(
        (x.price.expected_s, x.price.network_s, x.stored_bytes, str(x.contraction), x.price.summary)
        for x in layouts
    )
    found = Table("layouts", "Layouts, best first", _LAYOUTS, rows, keep=("layout", "time"))
    head = f"{best.contraction}: {format_seconds(best.price.expected_s)}, {best.price.summary}"
    return Answer((head, place + cap), tables=(found, steps_table(best.price)))


def runs_answer(found: Iterable[tuple[str, float, float, str]], place: str) -> Answer:
    """Strategies as they were predicted and as they ran here, and how far that is off."""
    return Answer((place.rstrip("; "),), tables=(Table("runs", "Run here", _RUNS, tuple(found)),))


def arrays_answer(
    tensors: Sequence[Tensor], mesh: Mesh, dims: Mapping[str, int], dtype: Dtype
) -> Answer:
    """What each device stores of arrays; the sentences are about the first."""
    axes, first = mesh.axes, tensors[0]
    each = device_bytes(first, dims, axes, dtype)
    every = total_bytes(first, dims, axes, dtype)
    blocks = [f"{dtype.name}[{','.join(map(str, local_shape(t, dims, axes)))}]" for t in tensors]
    rows = tuple(
        (
            *(str(tensor), block, device_bytes(tensor, dims, axes, dtype)),
            total_bytes(tensor, dims, axes, dtype),
            mesh.slice.num_chips // ways(tensor.sharded_over, axes),
        )
        for tensor, block in zip(tensors, blocks, strict=True)
    )
    drawn = [shard_picture(tensor, mesh) for tensor in tensors]
    caption = "; ".join(f"{picture.title}: {picture.caption}" for picture in drawn)
    title = " and ".join(picture.title for picture in drawn)
    words = f"{caption}. Numbers in a block are the devices that hold it."
    return Answer(
        sentences=(
            f"{first}: {blocks[0]} on each device, {format_si(each, 'B')};"
            f" {format_si(every, 'B')} on all {mesh.slice.num_chips}",
            f"on {mesh.slice}, mesh {mesh}; devices are numbered row-major over the mesh",
        ),
        facts=(Fact("device_bytes", "bytes per device", each, show_bytes),),
        tables=(Table("arrays", "What each device stores", _TENSORS, rows),),
        pictures=(Picture("holders", shards_svg(drawn, title=title), words, 640),),
        notes=tuple(
            f"each device holds one term of {t.name}, a sum over {', '.join(t.unreduced)}"
            for t in tensors
            if t.unreduced
        ),
    )


def shard_picture(tensor: Tensor, mesh: Mesh) -> ShardPicture:
    """Which devices hold which block."""
    counts = tuple(ways(axes, mesh.axes) for axes in tensor.axes)
    named = {block: tuple(map(str, ids)) for block, ids in holders(tensor, mesh.axes).items()}
    return ShardPicture(str(tensor), tensor.dims, counts, named)


_BOUNDS = (
    *(Column("bound", "bound"), Column("seconds", "time", show_seconds)),
    Column("meaning", "meaning", is_wide=True),
)
_TIERS = (
    Column("tier", "tier"),
    Column("bandwidth_s", "bandwidth", show_seconds),
    Column("latency_s", "latency", show_seconds),
    Column("rule_s", "rule of thumb", show_seconds),
)


def collective_answer(
    time: NetworkTime,
    mesh: Mesh,
    axes: Sequence[str],
    *,
    simulated_s: float | None = None,
    measured_s: float | None = None,
) -> Answer:
    """One collective over axes of a mesh."""
    chips = mesh.group(axes).size
    group = f"{','.join(axes)} ({chips} chip{'s' if chips > 1 else ''})"
    beside = (
        ("simulated", simulated_s, "message by message on the links"),
        ("measured", measured_s, "the fastest of several runs here"),
    )
    return _network(
        time,
        f" of {format_si(time.nbytes, 'B')} over {group}",
        [f"on {mesh.slice}, mesh {mesh}"],
        [(name, seconds, words) for name, seconds, words in beside if seconds is not None],
        [Fact("chips", "chips in a group", chips, show_count)],
    )


def network_answer(time: NetworkTime) -> Answer:
    """The same where nobody knows which chips."""
    return _network(time, f" of {format_si(time.nbytes, 'B')}", [], [], [])


def _network(
    time: NetworkTime,
    what: str,
    where: Sequence[str],
    beside: Sequence[tuple[str, float, str]],
    facts: Sequence[Fact],
) -> Answer:
    bounds = (
        ("expected", time.expected_s, "bandwidth and latency"),
        ("lower", time.lower_s, "everything overlaps"),
        ("upper", time.upper_s, "nothing overlaps: one axis or tier after another"),
        ("rule of thumb", time.rule_s, "the book's, for large groups"),
        *beside,
    )
    tiers = tuple((t.name, t.bandwidth_s, t.latency_s, t.rule_s) for t in time.tiers)
    kind, seconds = time.kind.replace("_", "-"), show_seconds(time.expected_s)
    return Answer(
        sentences=(f"{kind}{what}: {seconds}, bound by {time.binds}", *where),
        facts=(
            Fact("expected_s", "time", time.expected_s, show_seconds, "bandwidth and latency"),
            Fact("binds", "bound by", time.binds),
            *facts,
        ),
        tables=(
            Table("times", "The time, its bounds, and what it is beside", _BOUNDS, bounds, 0),
            *([Table("tiers", "By tier of the network", _TIERS, tiers)] if tiers else []),
        ),
    )
