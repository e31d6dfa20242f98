"""`rooflight shard`: which device holds what of a sharded array."""

import shlex

from rooflight.algebra.blocks import holders
from rooflight.algebra.notation import Tensor, parse_tensor
from rooflight.algebra.shapes import device_bytes, local_shape, total_bytes
from rooflight.algebra.shapes import ways as shards_of
from rooflight.cli.flags import add_dims, add_dtype, add_mesh, add_on, add_plot
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.dtypes import parse_dtype
from rooflight.hardware.mesh import mesh_of
from rooflight.hardware.slice import parse_slice
from rooflight.ui.svg.shard import ShardPicture, shard_svg, shard_text
from rooflight.ui.text.terminal import within
from rooflight.units import format_si, parse_sizes

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
    axes = mesh.axes
    shape = local_shape(tensor, dims, axes)
    each = device_bytes(tensor, dims, axes, dtype)
    every = total_bytes(tensor, dims, axes, dtype)
    picture = _picture(tensor, axes)
    if args.plot:
        write_file(args.plot, shard_svg(picture), flag="--plot")
    if args.json:
        document = {
            "tensor": str(tensor),
            "on": str(mesh.slice),
            "mesh": str(mesh),
            "dtype": dtype.name,
            "local_shape": list(shape),
            "device_bytes": each,
            "total_bytes": every,
            "blocks": [
                {"block": list(block), "devices": [int(d) for d in ids]}
                for block, ids in picture.holders.items()
            ],
        }
        print_json("shard", document)
        return 0
    block = ",".join(map(str, shape))
    show(
        f"{tensor}: {dtype.name}[{block}] on each device, {format_si(each, 'B')};"
        f" {format_si(every, 'B')} on all {mesh.slice.num_chips}\n"
        f"on {mesh.slice}, mesh {mesh}; devices are numbered row-major over the mesh\n\n"
        f"{shard_text(picture, width=within(100))}"
    )
    if tensor.unreduced:
        show(f"\neach device holds one term of a sum over {', '.join(tensor.unreduced)}")
    if not args.plot:
        where = f"--on {shlex.quote(str(mesh.slice))} --mesh {mesh} --dims {args.dims}"
        suggest(f'rooflight shard "{tensor}" {where} --dtype {dtype.name} --plot shards.svg')
    return 0


def _picture(tensor: Tensor, axes: dict[str, int]) -> ShardPicture:
    counts = tuple(shards_of(a, axes) for a in tensor.axes)
    named = {block: tuple(map(str, ids)) for block, ids in holders(tensor, axes).items()}
    return ShardPicture(str(tensor), tensor.dims, counts, named)
