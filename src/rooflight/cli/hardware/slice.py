"""`rooflight slice`: what a slice of chips adds up to, and how a mesh lies on it."""

import shlex
from collections.abc import Iterator

from rooflight.cli.flags import add_mesh
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import PhysicalDim, Slice, TorusDim, parse_slice
from rooflight.hardware.totals import slice_totals
from rooflight.ui.answers.hardware import parts_of, slice_answer, stride_of, wiring_of
from rooflight.ui.text.answer import answer_text

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
    show(answer_text(slice_answer(target, mesh)))
    suggest(*_next(target, mesh))
    return 0


def _document(target: Slice, mesh: Mesh | None) -> dict[str, object]:
    document: dict[str, object] = {
        "slice": str(target),
        "num_chips": target.num_chips,
        "num_hosts": target.num_hosts,
        "flops": {d: rate * target.num_chips for d, rate in target.chip.flops.items()},
        **slice_totals(target),
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
                "wiring": wiring_of(part),
                "stride": stride_of(part),
                "bytes_per_s": part.bytes_per_s,
            }
            for part in parts_of(mesh, axis)
        ]
        yield {"axis": axis, "size": size, "parts": parts}


def _next(target: Slice, mesh: Mesh | None) -> list[str]:
    if target.num_chips == 1:
        return [f"rooflight roofline --on {target.chip.name}"]
    command = f"rooflight collective all-gather --bytes 100MB --on {shlex.quote(str(target))}"
    if mesh is None:
        return [command]
    return [f"{command} --mesh {mesh} --axes {max(mesh.axes, key=mesh.size)}"]
