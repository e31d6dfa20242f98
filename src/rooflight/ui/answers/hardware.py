"""Chips, slices, meshes, calibrations and models as `Answer`s.

In: their records. Out: what terminal, explorer and notebook show of them. A user's chip shows the
same way as a built-in one.
"""

from collections.abc import Iterator, Mapping
from typing import cast

from rooflight.dtypes import Dtype
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import Fan, Mesh, Ring
from rooflight.hardware.slice import PhysicalDim, Slice, TorusDim
from rooflight.hardware.totals import slice_totals
from rooflight.models.graph.summary import Component, Summary
from rooflight.models.spec import ModelSpec
from rooflight.ui.answer import Answer, Column, Fact, Table, Value, show_bytes
from rooflight.units import format_count, format_seconds, format_si

# End of a fact's name -> its unit.
_UNITS = {
    "bytes_per_s": "B/s",
    "bytes_per_s_per_host": "B/s",
    "bytes_per_sm": "B",
    "bytes": "B",
    "_flops": "FLOP/s",
    "_flops_sparse": "FLOP/s",
    "_hz": "Hz",
    "_s": "s",
    "watts": "W",
    "dollars_per_hour": "$/h",
}
_RIGHT = Column("value", "value", is_right=True)


def chip_answer(chip: Chip, *, everything: bool = True) -> Answer:
    """Every fact with its source; what is a detail, and addresses, only where all is shown."""
    facts = [f for f in chip.sources if everything or not f.startswith("detail.")]
    rows = tuple(
        (f, fact_text(chip, f), chip.sources[f].key, chip.sources[f].checked) for f in facts
    )
    columns = Column("fact", "fact"), _RIGHT, Column("source", "source")
    sources = {chip.sources[f].key: chip.sources[f] for f in facts}
    listed = (
        *(Column("title", "source", is_wide=True), Column("key", "named")),
        *([Column("url", "address", is_wide=True)] if everything else []),
    )
    cells = tuple((s.title, s.key, s.url)[: len(listed)] for s in sources.values())
    tables = (
        Table(
            *("facts", "What the catalog says, and where it is from"),
            *((*columns, Column("checked", "checked")), rows),
            left=len(chip.sources) - len(facts),
        ),
        Table("sources", "Sources", listed, cells, is_list=True),
    )
    return Answer(
        sentences=(f"{chip.name}: {chip.title}, {len(chip.sources)} facts",),
        facts=(
            Fact("hbm_bytes", "HBM", chip.hbm_bytes, show_bytes),
            Fact("hbm_bytes_per_s", "HBM feeds", chip.hbm_bytes_per_s, _rate),
            Fact("vmem_bytes", "on the chip", chip.vmem_bytes, show_bytes),
        ),
        tables=tables if rows else (),
        figures=tuple((fact, fact_value(chip, fact)) for fact in facts),
    )


def fact_value(chip: Chip, fact: str) -> object:
    """The value of a fact by its dotted name in the file, such as `torus.link_bytes_per_s`."""
    node: object = chip
    for part in fact.split("."):
        if isinstance(node, Mapping):
            node = cast(Mapping[str, object], node)[part]
        else:
            node = getattr(node, part)
    return node


def unit_of(fact: str) -> str:
    """The unit of a fact, told by its name; empty for plain counts.

    >>> unit_of("hbm_bytes_per_s"), unit_of("flops.bf16"), unit_of("torus.hop_s"), unit_of("cores")
    ('B/s', 'FLOP/s', 's', '')
    """
    if fact.startswith("flops."):
        return "FLOP/s"
    if "prices." in fact:
        return "$/h"
    return next((unit for end, unit in _UNITS.items() if fact.endswith(end)), "")


def fact_text(chip: Chip, fact: str) -> str:
    """The value of a fact with its unit."""
    value, unit = fact_value(chip, fact), unit_of(fact)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "x".join(map(str, cast(tuple[int, ...], value)))
    if isinstance(value, str):
        return value
    number = cast(float, value)
    if unit == "s":
        return format_seconds(number)
    if unit in ("", "W", "$/h"):
        return f"{number:,.12g} {unit}".rstrip()
    return format_si(number, unit)


def slice_answer(target: Slice, mesh: Mesh | None = None) -> Answer:
    """What a slice adds up to, how it is wired, and how a mesh lies on it."""
    hosts = format_count(target.num_hosts) + (" hosts" if target.num_hosts > 1 else " host")
    chips = format_count(target.num_chips) + (" chips" if target.num_chips > 1 else " chip")
    rings = [d.name for d in target.dims if isinstance(d, TorusDim) and d.wraps]
    wraps = f"; {', '.join(rings)} wrap around" if rings else ""
    is_line = target.chip.torus and target.num_chips > 1 and not rings
    none = "; no axis wraps around" if is_line else ""
    columns = Column("total", "total"), _RIGHT, Column("note", "note", unknown="")
    dims = ("dim", "size", "wiring", "rate", "of")
    return Answer(
        sentences=(
            f"{target}: {chips} of {target.chip.title} on {hosts}{wraps or none}",
            *([f"mesh {mesh}"] if mesh else []),
        ),
        tables=(
            Table("totals", "Totals", columns, tuple(_totals(target))),
            Table("dims", "Dims, outermost first", _columns(dims), tuple(map(_dim, target.dims))),
            *(mesh_answer(mesh).tables if mesh else ()),
        ),
    )


def _columns(names: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(Column(name, name, is_right=name == "rate") for name in names)


def _totals(target: Slice) -> Iterator[tuple[Value, ...]]:
    for dtype, rate in target.chip.flops.items():
        yield f"{dtype} rate", format_si(rate * target.num_chips, "FLOP/s"), "dense"
    totals = slice_totals(target)
    for label, key, unit, note in (
        ("HBM", "hbm_bytes", "B", None),
        ("HBM rate", "hbm_bytes_per_s", "B/s", None),
        ("bisection", "bisection_bytes_per_s", "B/s", "narrowest half cut, both directions"),
        ("DCN", "dcn_bytes_per_s", "B/s", "out of all hosts, one way"),
    ):
        value = totals[key]
        if value is not None or label != "bisection":  # one chip has no halves
            yield label, "unknown" if value is None else format_si(value, unit), note
    price = totals["dollars_per_hour"]
    yield "price", "unknown" if price is None else f"{price:,.2f} $/h", "list price"


def _dim(dim: PhysicalDim) -> tuple[Value, ...]:
    if isinstance(dim, TorusDim):
        rate, of = dim.link_bytes_per_s, "each link, one way"
        return dim.name, dim.size, "ring" if dim.wraps else "line", _rate(rate), of
    of = f"each unit of {format_count(dim.unit_chips)}, one way"
    return dim.name, dim.size, "switch", _rate(dim.egress_bytes_per_s), of


def _rate(value: float) -> str:
    return format_si(value, "B/s")


def mesh_answer(mesh: Mesh) -> Answer:
    """Where each axis lies."""
    names = ("axis", "size", "dim", "part", "wiring", "stride", "rate", "of")
    rows = tuple(
        (
            *(axis, size, part.dim, part.size, wiring_of(part), stride_of(part)),
            *(_rate(part.bytes_per_s), f"out of {_sender(part)}"),
        )
        for axis, size in mesh.axes.items()
        for part in parts_of(mesh, axis)
    )
    table = Table("axes", "Axes, and the parts of dims on which they lie", _columns(names), rows)
    return Answer((f"mesh {mesh} on {mesh.slice}",), tables=(table,))


def parts_of(mesh: Mesh, axis: str) -> list[Ring | Fan]:
    """The rings, lines and switches of an axis."""
    group = mesh.group([axis])
    return [*group.rings, *group.fans]


def wiring_of(part: Ring | Fan) -> str:
    if isinstance(part, Fan):
        return "switch"
    return "ring" if part.wraps else "line"


def stride_of(part: Ring | Fan) -> int:
    """How far apart neighbours are: links on a torus, chips behind a switch."""
    return part.stride if isinstance(part, Ring) else part.unit_chips // part.members


def _sender(part: Ring | Fan) -> str:
    members = part.members if isinstance(part, Fan) else 1
    return "a chip" if members == 1 else f"{format_count(members)} chips together"


def calibration_answer(one: Calibration) -> Answer:
    """The constants, what they were fitted to, and how far off they are."""
    return Answer(
        sentences=(
            f"{one.chip}, {one.engine}, {one.blocks}",
            f"fitted to {one.rows} runs of {', '.join(one.sources)} on {one.made}; median error"
            f" {one.median_error:.1%} of runs held out, 80 % within x{one.interval(1.0)[1]:.2f}",
        ),
        tables=(constants_table(one.values),),
    )


def constants_table(values: Mapping[str, float]) -> Table:
    """The constants of a calibration."""
    columns = Column("constant", "constant"), Column("value", "value", lambda v: f"{v:.4g}")
    return Table("constants", "Constants", columns, tuple(values.items()))


def show_size(value: float) -> str:
    """A number of nothing in particular."""
    return format_si(value, "").rstrip()


_OF_MODEL = (
    Column("component", "component"),
    Column("params", "params", show_size),
    Column("active_params", "active", show_size),
    Column("nbytes", "bytes", show_size),
    Column("flops_per_token", "FLOPs/token", show_size),
    Column("kv_bytes_per_token", "KV B/token", show_size),
)


def model_answer(model: ModelSpec, summary: Summary, dtype: Dtype) -> Answer:
    """How large it is, where that is, and what a token costs."""
    active, tied = show_size(summary.active_params), ", tied head" if model.is_tied else ""
    total = (
        *("total", summary.params, summary.active_params, summary.nbytes),
        *(summary.flops_per_token, summary.kv_bytes_per_token),
    )
    rows = (*map(_component, summary.components), total)
    return Answer(
        sentences=(
            f"{model.title}: {format_count(summary.params)} parameters, {active} active a token",
            f"{model.num_layers} layers, D {model.d_model:,}, V {model.vocab:,}{tied};"
            f" {dtype.name}, forward and causal at {summary.seq:,} tokens",
        ),
        tables=(Table("components", "By component", _OF_MODEL, rows),),
        notes=("", *_attention(summary), "", _model_source(model)),
    )


def _component(part: Component) -> tuple[Value, ...]:
    numbers = (part.params, part.active_params, part.nbytes)
    rest = (part.flops_per_token, part.kv_bytes_per_token)
    return (part.name, *(n or None for n in (*numbers, *rest)))


def _attention(summary: Summary) -> tuple[str, str]:
    share = f"scores are {summary.attention_share:.1%} of the FLOPs at {summary.seq:,} tokens"
    cache = f"one sequence keeps {format_si(summary.kv_bytes, 'B')} of keys and values"
    if summary.equal_seq_causal is None or summary.equal_seq_full is None:
        return f"{share}; windows keep them below the rest at any context", cache
    equal = f"{summary.equal_seq_causal:,} (causal) or {summary.equal_seq_full:,} (all pairs)"
    return f"{share}, and half of them at {equal}", cache


def _model_source(model: ModelSpec) -> str:
    if model.source is None:
        return "source: unknown"
    where = f", {model.source.url} ({model.source.checked})" if model.source.url else ""
    return f"source: {model.source.title}{where}"
