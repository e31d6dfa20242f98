"""`rooflight slice`: what a slice of chips adds up to, and how a mesh lies on it."""

import shlex
from collections.abc import Iterator

from rooflight.cli.flags import add_mesh
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.hardware.mesh import Fan, Mesh, Ring, parse_mesh
from rooflight.hardware.slice import PhysicalDim, Slice, SwitchDim, TorusDim, parse_slice
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_si

HELP = "a slice of chips: hosts, wraparound, totals, and how a mesh lies on it"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "slice",
        help="[COUNT*]CHIP[:AxBxC], such as v5p:16x20x28 or 2*v5e:16x16; or so many chips:"
        " h100:2048, h100x64, v5p:512; or a name of Google Cloud, which counts TensorCores on all"
        " but v5e and v6e: v5p-1024 has 512 chips",
    )
    add_mesh(parser)
    parser.set_examples(
        "rooflight slice v5p:16x20x28",
        "rooflight slice v5e:16x16 --mesh X=4,Y=4,Z=16",
        "rooflight slice h100:8x128",
        "rooflight slice v5p-1024",
    )


def run(args: Namespace) -> int:
    target = parse_slice(args.slice)
    mesh = None if args.mesh is None else parse_mesh(args.mesh, on=target)
    if args.json:
        print_json("slice", _document(target, mesh))
        return 0
    show(_text(target, mesh))
    suggest(*_next(target, mesh))
    return 0


def bisection_bytes_per_s(target: Slice) -> float | None:
    """Bytes per second over the narrowest cut into halves, both directions together.

    A torus axis of n is cut across N/n lines of links, at two places if it wraps; a switched tier
    by the egress of half of its units. It stops holding for traffic that does not spread evenly.

    >>> bisection_bytes_per_s(parse_slice("h100:8"))
    3600000000000.0
    """
    return min((_cut(target, dim) for dim in target.dims if dim.size > 1), default=None)


def _cut(target: Slice, dim: PhysicalDim) -> float:
    if isinstance(dim, SwitchDim):
        fans = target.num_chips // (dim.size * dim.unit_chips)
        return 2 * fans * (dim.size // 2) * dim.egress_bytes_per_s
    lines = target.num_chips // dim.size
    places = 2 if dim.wraps else 1
    return 2 * lines * places * dim.link_bytes_per_s


def _totals(target: Slice) -> dict[str, float | None]:
    """Sums over the slice, by the name of the chip's own fact."""
    chip, chips = target.chip, target.num_chips
    return {
        "hbm_bytes": _times(chip.hbm_bytes, chips),
        "hbm_bytes_per_s": _times(chip.hbm_bytes_per_s, chips),
        "bisection_bytes_per_s": bisection_bytes_per_s(target),
        "dcn_bytes_per_s": _times(chip.dcn_bytes_per_s_per_host, target.num_hosts),
        "dollars_per_hour": _times(chip.dollars_per_hour, chips),
    }


def _times(value: float | None, count: int) -> float | None:
    return None if value is None else value * count


def _document(target: Slice, mesh: Mesh | None) -> dict[str, object]:
    document: dict[str, object] = {
        "slice": str(target),
        "num_chips": target.num_chips,
        "num_hosts": target.num_hosts,
        "flops": {d: rate * target.num_chips for d, rate in target.chip.flops.items()},
        **_totals(target),
        "dims": [_dim_document(dim) for dim in target.dims],
    }
    if mesh is not None:
        document |= {"mesh": str(mesh), "axes": list(_axis_documents(mesh))}
    return document


def _dim_document(dim: PhysicalDim) -> dict[str, object]:
    if isinstance(dim, TorusDim):
        wires: dict[str, object] = {"wraps": dim.wraps, "link_bytes_per_s": dim.link_bytes_per_s}
    else:
        wires = {"unit_chips": dim.unit_chips, "egress_bytes_per_s": dim.egress_bytes_per_s}
    return {"dim": dim.name, "size": dim.size, **wires}


def _axis_documents(mesh: Mesh) -> Iterator[dict[str, object]]:
    for axis, size in mesh.axes.items():
        parts = [
            {
                "dim": part.dim,
                "size": part.size,
                "wiring": _wiring(part),
                "stride": _stride(part),
                "bytes_per_s": part.bytes_per_s,
            }
            for part in _parts(mesh, axis)
        ]
        yield {"axis": axis, "size": size, "parts": parts}


def _parts(mesh: Mesh, axis: str) -> list[Ring | Fan]:
    group = mesh.group([axis])
    return [*group.rings, *group.fans]


def _wiring(part: Ring | Fan) -> str:
    if isinstance(part, Fan):
        return "switch"
    return "ring" if part.wraps else "line"


def _stride(part: Ring | Fan) -> int:
    """How far apart neighbours are: links on a torus, chips behind a switch."""
    return part.stride if isinstance(part, Ring) else part.unit_chips // part.members


def _text(target: Slice, mesh: Mesh | None) -> str:
    blocks = [_headline(target), _totals_text(target), _dims_text(target)]
    if mesh is not None:
        blocks.append(_mesh_text(mesh))
    return "\n\n".join(blocks)


def _headline(target: Slice) -> str:
    hosts = format_count(target.num_hosts) + (" hosts" if target.num_hosts > 1 else " host")
    chips = format_count(target.num_chips) + (" chips" if target.num_chips > 1 else " chip")
    rings = [d.name for d in target.dims if isinstance(d, TorusDim) and d.wraps]
    wraps = f"; {', '.join(rings)} wrap around" if rings else ""
    is_line = target.chip.torus and target.num_chips > 1 and not rings
    none = "; no axis wraps around" if is_line else ""
    return f"{target}: {chips} of {target.chip.title} on {hosts}{wraps or none}"


def _totals_text(target: Slice) -> str:
    rows = [
        [f"{d} rate", format_si(r * target.num_chips, "FLOP/s"), "dense"]
        for d, r in target.chip.flops.items()
    ]
    totals = _totals(target)
    names = (
        ("HBM", "hbm_bytes", "B", ""),
        ("HBM rate", "hbm_bytes_per_s", "B/s", ""),
        ("bisection", "bisection_bytes_per_s", "B/s", "narrowest half cut, both directions"),
        ("DCN", "dcn_bytes_per_s", "B/s", "out of all hosts, one way"),
    )
    for label, key, unit, note in names:
        value = totals[key]
        if key == "bisection_bytes_per_s" and value is None:
            continue  # one chip has no halves
        rows.append([label, "unknown" if value is None else format_si(value, unit), note])
    price = totals["dollars_per_hour"]
    rows.append(["price", "unknown" if price is None else f"{price:,.2f} $/h", "list price"])
    return table(("total", "value", "note"), rows, align="lrl")


def _dims_text(target: Slice) -> str:
    rows = [_dim_row(dim) for dim in target.dims]
    return table(("dim", "size", "wiring", "rate", "of"), rows, align="lrlrl")


def _dim_row(dim: PhysicalDim) -> list[str]:
    if isinstance(dim, TorusDim):
        wiring = "ring" if dim.wraps else "line"
        rate, of = dim.link_bytes_per_s, "each link, one way"
    else:
        wiring = "switch"
        rate, of = dim.egress_bytes_per_s, f"each unit of {format_count(dim.unit_chips)}, one way"
    return [dim.name, str(dim.size), wiring, format_si(rate, "B/s"), of]


def _mesh_text(mesh: Mesh) -> str:
    rows = [
        [axis, str(size), *_part_row(part)]
        for axis, size in mesh.axes.items()
        for part in _parts(mesh, axis)
    ]
    header = ("axis", "size", "dim", "part", "wiring", "stride", "rate", "of")
    return f"mesh {mesh}\n\n{table(header, rows, align='lrlrlrrl')}"


def _part_row(part: Ring | Fan) -> list[str]:
    where = [part.dim, str(part.size), _wiring(part), str(_stride(part))]
    return [*where, format_si(part.bytes_per_s, "B/s"), f"out of {_sender(part)}"]


def _sender(part: Ring | Fan) -> str:
    members = part.members if isinstance(part, Fan) else 1
    return "a chip" if members == 1 else f"{format_count(members)} chips together"


def _next(target: Slice, mesh: Mesh | None) -> list[str]:
    if target.num_chips == 1:
        return [f"rooflight roofline --on {target.chip.name}"]
    command = f"rooflight collective all-gather --bytes 100MB --on {shlex.quote(str(target))}"
    if mesh is None:
        return [command]
    return [f"{command} --mesh {mesh} --axes {max(mesh.axes, key=mesh.size)}"]
