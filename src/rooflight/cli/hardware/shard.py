"""`rooflight shard`: which device holds what of a sharded array."""

import shlex

from rooflight.algebra.notation import parse_tensor
from rooflight.algebra.shapes import device_bytes, local_shape, total_bytes
from rooflight.cli.flags import add_dims, add_dtype, add_mesh, add_on, add_plot
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.dtypes import parse_dtype
from rooflight.hardware.mesh import mesh_of
from rooflight.hardware.slice import parse_slice
from rooflight.ui.answers.sharded import arrays_answer, shard_picture
from rooflight.ui.svg.shard import shard_svg, shard_text
from rooflight.ui.text.terminal import within
from rooflight.units import parse_sizes

HELP = "a picture of which device holds what of an array"


def configure(parser: Parser) -> None:
    parser.add_argument("tensor", help='in the notation: "A[I_XY,J]"')
    add_on(parser)
    add_mesh(parser)
    add_dims(parser)
    add_dtype(parser)
    add_plot(parser)
    parser.set_examples(
        'rooflight shard "A[I_X,J_Y]" --on v5e:4x4 --mesh X=4,Y=4 --dims I=1024,J=4096'
    )


def run(args: Namespace) -> int:
    tensor = parse_tensor(args.tensor)
    mesh = mesh_of(args.mesh, parse_slice(args.on))
    dims, dtype = parse_sizes(args.dims), parse_dtype(args.dtype)
    axes, picture = mesh.axes, shard_picture(tensor, mesh)
    if args.plot:
        write_file(args.plot, shard_svg(picture), flag="--plot")
    if args.json:
        document = {
            "tensor": str(tensor),
            "on": str(mesh.slice),
            "mesh": str(mesh),
            "dtype": dtype.name,
            "local_shape": list(local_shape(tensor, dims, axes)),
            "device_bytes": device_bytes(tensor, dims, axes, dtype),
            "total_bytes": total_bytes(tensor, dims, axes, dtype),
            "blocks": [
                {"block": list(block), "devices": [int(d) for d in ids]}
                for block, ids in picture.holders.items()
            ],
        }
        print_json("shard", document)
        return 0
    said = arrays_answer([tensor], mesh, dims, dtype)
    drawn = ["", shard_text(picture, width=within(100))]
    show("\n".join([*said.sentences, *drawn, *(line for n in said.notes for line in ("", n))]))
    if not args.plot:
        where = f"--on {shlex.quote(str(mesh.slice))} --mesh {mesh} --dims {args.dims}"
        suggest(f'rooflight shard "{tensor}" {where} --dtype {dtype.name} --plot shards.svg')
    return 0
