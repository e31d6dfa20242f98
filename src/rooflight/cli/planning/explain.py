"""`rooflight explain train`: the algorithm of a layer under a layout."""

from rooflight.algebra.shapes import ways
from rooflight.api.training import best_with, has_degrees
from rooflight.api.values import parse_seq, whole_sequences
from rooflight.cli.flags import add_dtype, add_mesh, add_on
from rooflight.cli.output import picked, print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.dtypes import parse_dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, mesh_of
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.graph.ops import Graph, Op
from rooflight.models.layout.rules import SCHEMES, Layout, parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.derive.algorithm import Algorithm, PricedStep, derive_algorithm
from rooflight.plan.training.search.plan import train_question
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, parse_count

HELP = "the algorithm of a layer of a training step under a layout, in the notation"

_MARKS = {
    "critical": "on the critical path",
    "hops": "in hops beside its matmul",
    "ahead": "can run ahead",
    "async": "can run async",
}


def configure(parser: Parser) -> None:
    add_layer(parser)
    schemes = "; ".join(f"{name} {scheme.help}" for name, scheme in SCHEMES.items())
    parser.add_argument(
        "--layout",
        required=True,
        help=f"axes of --mesh such as fsdp=X,tp=Y, or degrees such as tp=8@node,dp=8: {schemes}",
    )
    add_mesh(parser)
    parser.add_argument("--batch", required=True, metavar="TOKENS", help="tokens per step: 4Mi")
    add_dtype(parser)
    parser.set_examples(
        "rooflight explain train gpt3-175b --layout fsdp=X,tp=Y --on v5p:4x4x4 --mesh X=16,Y=4"
        " --batch 128Ki --seq 2048 --part mlp",
        "rooflight explain train llama3-70b --layout tp=8@node,dp=8 --on h100:8x8 --batch 1Mi"
        " --seq 8192 --part mlp",
        "rooflight explain train mixtral-8x7b --layout fsdp=X,ep=X --on v5e:4x4 --mesh X=8,Y=2"
        " --batch 64Ki --seq 4096 --part experts",
        "rooflight explain train llama3-8b --layout fsdp=X,ulysses=Y --on v5p:4x4x4 --mesh X=16,Y=4"
        " --batch 512Ki --seq 32Ki --part attention",
        "rooflight explain train gpt3-175b --layout pp=P,ws=X,tp=Y --on v5p:4x4x8 --mesh"
        " X=4,Y=16,P=2 --batch 512 --seq 512 --part mlp",
    )


def add_layer(parser: Parser) -> None:
    """Which layer, on what: shared with serving."""
    parser.add_argument("model", help="a preset such as llama3-70b (see `rooflight model`)")
    add_on(parser)
    parser.add_argument("--seq", required=True, metavar="TOKENS", help="tokens per sequence: 4k")
    parser.add_argument("--part", help="one part of the layer only: attention, mlp, experts")
    parser.add_argument("--block", default="0", help="which kind of layer, counted from 0")


def run(args: Namespace) -> int:
    model = load_model(args.model)
    warn_of_gaps(model)
    graph = model_graph(model)
    ops = chosen_ops(graph, args)
    seq, dtype = parse_seq(args.seq), parse_dtype(args.dtype)
    batch = whole_sequences(args.batch, seq)
    if has_degrees(args.layout):
        question = train_question(graph, parse_slice(args.on), batch, seq, dtype)
        best = best_with(question, args.layout, mesh=args.mesh)
        layout, mesh = best.layout, best.mesh
    else:
        layout, mesh = parse_layout(args.layout), mesh_of(args.mesh, parse_slice(args.on))
    dims = dim_sizes(graph, batch=batch, seq=seq)
    algorithm = derive_algorithm(graph, ops, layout, mesh=mesh, dims=dims, dtype=dtype)
    if args.json:
        print_json("explain", _document(model.name, mesh, algorithm))
        return 0
    show(_text(model.name, mesh, algorithm))
    suggest(f"rooflight slice {mesh.slice} --mesh {mesh}")
    return 0


def chosen_ops(graph: Graph, args: Namespace) -> list[Op]:
    """Those of --block and --part."""
    block = parse_count(args.block, what="--block")
    layer = [op for op in graph.ops if op.block == block]
    if not layer:
        blocks = {op.block for op in graph.ops if op.block is not None}
        raise UsageError(
            f"{args.model} has {len(blocks)} kinds of layer; there is no number {block}",
            hint=f"write --block {min(blocks)}",
        )
    parts = list(dict.fromkeys(op.part for op in layer))
    ops = [op for op in layer if args.part in (None, op.part)]
    if not ops:
        raise UsageError(
            f"a layer of {args.model} has no part {args.part!r}",
            hint=f"choose one of {', '.join(parts)}",
        )
    return ops


def _document(name: str, mesh: Mesh, algorithm: Algorithm) -> dict[str, object]:
    return {
        "model": name,
        "on": str(mesh.slice),
        "mesh": str(mesh),
        "layout": algorithm.layout.text,
        "stages": ways(algorithm.layout.stages, mesh.axes),
        "forward": [_line_document(line) for line in algorithm.forward],
        "backward": [_line_document(line) for line in algorithm.backward],
    }


def _line_document(line: PricedStep) -> dict[str, object]:
    return {
        "op": line.op,
        "step": str(line.step),
        "collective": line.step.op if line.step.is_collective else None,
        "waits": _waits(line),
        "saved": line.saved,
        **picked(line.price, "nbytes flops expected_s binds"),
    }


def _text(name: str, mesh: Mesh, algorithm: Algorithm) -> str:
    lines = (*algorithm.forward, *algorithm.backward)
    hops = f" {_sum(lines, 'hops')} in hops," if any(line.hops for line in lines) else ""
    return (
        f"{name} under {algorithm.layout.text}: a layer takes {_sum(lines, '')} of matmuls,"
        f" {_sum(lines, 'critical')} of collectives on the critical path,{hops}"
        f" {_sum(lines, 'ahead')} that can run ahead, {_sum(lines, 'async')} async\n"
        f"on {mesh.slice}, mesh {mesh}; nothing is overlapped in these sums\n"
        f"{_stages(mesh, algorithm.layout)}\n"
        f"forward\n{_table(algorithm.forward)}\n\nbackward\n{_table(algorithm.backward)}"
    )


def _stages(mesh: Mesh, layout: Layout) -> str:
    if not layout.stages:
        return ""
    count = ways(layout.stages, mesh.axes)
    return f"one of {count} pipeline stages holds the layer, and the whole batch passes it\n"


def _sum(lines: tuple[PricedStep, ...], waits: str) -> str:
    return format_seconds(
        sum(x.price.expected_s for x in lines if _waits(x) == waits and not x.saved)
    )


def _waits(line: PricedStep) -> str:
    return "hops" if line.hops else line.waits


def _table(lines: tuple[PricedStep, ...]) -> str:
    rows = [
        [str(i), str(x.step), format_seconds(x.price.expected_s), x.price.binds, _mark(x)]
        for i, x in enumerate(lines, 1)
    ]
    return table(
        ("", "step", "time", "bound by", "what waits"), rows, align="rlrll", keep=("step", "time")
    )


def _mark(line: PricedStep) -> str:
    mark = _MARKS.get(_waits(line), "")
    return f"{mark}; or saved from the forward pass" if line.saved else mark
