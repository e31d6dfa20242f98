"""Chips, slices, meshes, models and calibrations as HTML."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from rooflight.hardware.calibration import Calibration
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import Mesh
from rooflight.hardware.slice import Slice, TorusDim
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params
from rooflight.models.spec import ModelSpec
from rooflight.ui.html.page import Grid, Link, figure, grid, paragraph
from rooflight.ui.html.style import dark_picture_rules, picture_rules
from rooflight.ui.svg.roofline import RoofLine, roofline_svg
from rooflight.units import format_count, format_si

_STYLE = (files("rooflight.ui.notebook") / "frame.css").read_text("utf-8")

_DTYPES = ("bf16", "int8", "fp8", "f32")  # of which a roof may be drawn, the first that is known


def chip_html(chip: Chip) -> str:
    """Every rate with its source, and the roof over the main memory."""
    facts = list(_facts(chip))
    sources = [chip.source_of(name) for name, _ in facts]
    links = [Link(s.title if s else "unknown", s.url if s else "") for s in sources]
    rows = tuple(facts)
    table = grid(Grid("per chip, dense rates", ("fact", "value"), rows, "lr"), links=links)
    return framed(chip.title, table, *_roof(chip))


def _facts(chip: Chip) -> Iterator[tuple[str, str]]:
    for dtype, rate in chip.flops.items():
        yield f"flops.{dtype}", format_si(rate, "FLOP/s")
    for name, unit in (
        *(("hbm_bytes", "B"), ("hbm_bytes_per_s", "B/s"), ("vmem_bytes", "B")),
        *(("vector_flops", "FLOP/s"), ("pcie_bytes_per_s", "B/s"), ("watts", "W")),
    ):
        value = getattr(chip, name)
        if value is not None:
            yield name, format_si(value, unit)
    if chip.torus:
        yield "torus.link_bytes_per_s", format_si(chip.torus.link_bytes_per_s, "B/s")
    if chip.switched:
        egress = chip.switched.chip_egress_bytes_per_s
        yield "switched.chip_egress_bytes_per_s", format_si(egress, "B/s")


def _roof(chip: Chip) -> list[str]:
    dtype = next((d for d in _DTYPES if d in chip.flops), None)
    if dtype is None or chip.hbm_bytes_per_s is None:
        return []
    roof = RoofLine(f"{chip.name} {dtype}", chip.flops[dtype], chip.hbm_bytes_per_s)
    title = f"{chip.title}, {dtype} over HBM"
    picture = roofline_svg([roof], [], title=title)
    return [figure(picture, caption=title, describe=f"The ridge is at {roof.ridge:.0f} FLOP/B.")]


def slice_html(whole: Slice) -> str:
    """Its chips, hosts and wiring."""
    rows = [
        (
            dim.name,
            str(dim.size),
            ("ring" if dim.wraps else "line") if isinstance(dim, TorusDim) else "switch",
        )
        for dim in whole.dims
    ]
    count = f"{format_count(whole.num_chips)} chips of {whole.chip.title} on"
    words = f"{count} {format_count(whole.num_hosts)} hosts"
    wiring = grid(Grid("dims, outermost first", ("dim", "size", "wiring"), tuple(rows), "lrl"))
    return framed(str(whole), paragraph(words), wiring)


def mesh_html(mesh: Mesh) -> str:
    """Where each axis lies."""
    rows = [
        (name, str(mesh.size(name)), "+".join(f"{p.dim} ({p.size})" for p in parts) or "-")
        for name, parts in mesh.segments.items()
    ]
    table = grid(Grid(f"on {mesh.slice}", ("axis", "size", "on dims"), tuple(rows), "lrl"))
    return framed(f"mesh {mesh}", table)


def model_html(model: ModelSpec) -> str:
    """Its size by part; what is active for a token beside it."""
    graph = model_graph(model)
    every, active = count_params(graph), count_params(graph, active=True)
    words = f"{format_count(every)} parameters, {format_si(active, '')} active a token"
    rows = [
        (part, format_si(count_params(graph, parts=[part]), ""))
        for part in dict.fromkeys(param.part for param in graph.params)
    ]
    table = grid(Grid("parameters by part", ("part", "parameters"), tuple(rows), "lr"))
    return framed(model.title, paragraph(words), table)


def calibration_html(one: Calibration) -> str:
    """The constants, what they were fitted to, and how far off they are."""
    words = (
        f"fitted to {one.rows} runs of {', '.join(one.sources)} on {one.made}; median error"
        f" {one.median_error:.1%} of runs held out, 80 % within x{one.interval(1.0)[1]:.2f}"
    )
    rows = tuple((name, f"{value:.4g}") for name, value in one.values.items())
    table = grid(Grid("constants", ("constant", "value"), rows, "lr"))
    return framed(f"{one.chip}, {one.engine}, {one.blocks}", paragraph(words), table)


def framed(heading: str, *markup: str) -> str:
    """A record as one element."""
    dark = f"@media (prefers-color-scheme: dark) {{ .rooflight {{\n{dark_picture_rules()}\n}} }}"
    style = f"{_STYLE.strip()}\n.rooflight {{\n{picture_rules()}\n}}\n{dark}"
    head = f'<div class="rooflight"><style>\n{style}\n</style>\n<h4>{escape(heading)}</h4>'
    return "\n".join([head, *markup, "</div>"])
