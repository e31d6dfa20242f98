"""Roofline: a chip's roof, and a matmul, or every op of a model, as points under it.

The numbers are those of `rooflight roofline`; an op of a model is priced on one chip, unsharded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from rooflight.costs.roofline import Memory, contraction_time, matmul_time
from rooflight.dtypes import DTYPES, Dtype
from rooflight.hardware.catalog import chip_names
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes, elements, op_flops
from rooflight.models.graph.ops import HAS_FLOPS, Graph, Op
from rooflight.models.presets import model_names
from rooflight.ui.answer import Answer
from rooflight.ui.answers.roofline import ChipRoof, Placed, placed_matmul, roofline_answer
from rooflight.ui.browser.view import Field, View, ViewQuery

_SIZES = tuple(str(2**n) for n in range(18))
_WIDTHS = tuple(str(2**n) for n in range(6, 18))
_MOST_SIZE = 1e9


def answer(question: ViewQuery) -> Answer:
    """Where the op lies, what binds it, how long it takes."""
    memory = cast(Memory, question.text("memory"))  # one of the choices of the field
    roof = ChipRoof(question.slice("on").chip, question.dtype("dtype"), memory)
    return replace(roofline_answer(roof, list(_placed(question, roof))), command=_command(question))


def _placed(question: ViewQuery, roof: ChipRoof) -> Iterator[Placed]:
    if question.text("model"):
        yield from _ops(question, roof)
        return
    m, k, n = (question.count(name) for name in ("b", "d", "f"))
    dtype, pad = roof.dtype, question.is_on("pad")
    time = matmul_time(
        *(roof.chip,), m=m, k=k, n=n, lhs=dtype, rhs=dtype, out=dtype, memory=roof.memory, pad=pad
    )
    yield placed_matmul(m, k, n, time)


def _ops(question: ViewQuery, roof: ChipRoof) -> Iterator[Placed]:
    """The contractions of one layer and of the head, each once, on one chip."""
    graph = model_graph(question.model("model"))
    seq = question.length("seq")
    batch = max(1, question.count("b") // seq)
    sizes = dim_sizes(graph, batch=batch, seq=seq)
    for op in _distinct(graph):
        flops = float(op_flops(op, sizes, causal=True))
        nbytes = _op_bytes(op, sizes, roof.dtype)
        time = contraction_time(
            *(roof.chip,),
            flops=flops,
            bytes_moved=nbytes,
            compute=roof.compute,
            memory=roof.memory,
        )
        yield Placed(op.name, flops, nbytes, time)


def _distinct(graph: Graph) -> list[Op]:
    """Ops with FLOPs, each name once: the layers of a model are alike."""
    return list({op.name: op for op in graph.ops if op.kind in HAS_FLOPS}.values())


def _op_bytes(op: Op, sizes: Mapping[str, int], dtype: Dtype) -> int:
    tensors = (*op.contraction.operands, op.contraction.result)
    return sum(dtype.nbytes(elements(tensor, sizes)) for tensor in tensors)


def _command(question: ViewQuery) -> str:
    text = question.text
    chip = parse_slice(text("on")).chip.name
    shared = f"rooflight roofline --on {chip} --dtype {text('dtype')} --memory {text('memory')}"
    if text("model"):
        return shared
    pad = " --pad" if question.is_on("pad") else ""
    return f"{shared} --matmul {'x'.join(text(name) for name in 'bdf')}{pad}"


VIEW = View(
    "roofline",
    "Roofline",
    "A matmul or the ops of a model under the roof of a chip: what binds, and how long it takes.",
    (
        Field("on", "Chip", "text", "v5e", "any chip of `rooflight chips`", chip_names()),
        Field("dtype", "Dtype", "choice", "bf16", choices=tuple(DTYPES)),
        Field(
            *("memory", "Memory", "choice", "hbm", "where operands come from"),
            choices=("hbm", "vmem", "pcie"),
        ),
        Field("b", "Batch B", "count", "128", "tokens", stops=_SIZES, most=_MOST_SIZE),
        Field("d", "D", "count", "8192", "contracted", stops=_WIDTHS, most=_MOST_SIZE),
        Field("f", "F", "count", "8192", "[B,D] x [D,F]", stops=_WIDTHS, most=_MOST_SIZE),
        Field("pad", "Whole tiles", "switch", "no", "round the matmul up to the matrix unit"),
        Field(
            *("model", "Ops of a model", "text", "", "in place of D and F: all matmuls of a layer"),
            choices=model_names(),
            is_optional=True,
        ),
        Field("seq", "Sequence", "length", "4096", "tokens, for a model", most=2**24),
    ),
    answer,
)
