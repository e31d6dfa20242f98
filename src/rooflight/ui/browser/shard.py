"""Shard: arrays over a mesh in the notation; who holds what, and the collectives that follow.

The numbers are those of `rooflight matmul` and `rooflight shard`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rooflight.algebra.autodiff import backward
from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import Contraction, Tensor, parse_contraction, parse_tensor
from rooflight.costs.choose import Choice, Price, choose
from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, mesh_of
from rooflight.ui.answer import Answer, Fact, Film, Frame, ViewLink, show_seconds
from rooflight.ui.answers.sharded import (
    arrays_answer,
    choice_answer,
    place_text,
    shard_picture,
    steps_table,
)
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.shard import shards_svg
from rooflight.units import format_count, parse_sizes

_MOST_CHIPS = 16_384
_MOST_AXES = 3  # that split something
_MOST_DIMS = 6  # of all tensors together
_STILL = 860  # pixels


@dataclass(frozen=True, slots=True)
class _ShardInputs:
    """Arrays or a matmul of them, on a mesh."""

    tensors: tuple[Tensor, ...]
    matmul: Contraction | None
    mesh: Mesh
    dims: Mapping[str, int]
    dtype: Dtype


def answer(question: ViewQuery) -> Answer:
    """Who holds what; for a matmul also which collectives it needs and how long they take."""
    asked = _asked(question)
    if asked.matmul is None:
        return _arrays(asked, question)
    matmuls = (asked.matmul, *(backward(asked.matmul) if question.is_on("backward") else ()))
    choices = [
        choose(
            strategies(matmul, asked.mesh.axes), dims=asked.dims, mesh=asked.mesh, dtype=asked.dtype
        )
        for matmul in matmuls
    ]
    return _matmul(asked, choices, question)


def _asked(question: ViewQuery) -> _ShardInputs:
    on = question.slice("on")
    if on.num_chips > _MOST_CHIPS:
        raise UsageError(
            f"{on} has {format_count(on.num_chips)} chips, of which at most"
            f" {format_count(_MOST_CHIPS)} can be drawn",
            hint="ask for v5p:4x4x4; `rooflight matmul` takes larger ones",
        )
    mesh = mesh_of(question.text("mesh") or None, on)
    text = question.text("arrays")
    matmul = parse_contraction(text) if "->" in text else None
    tensors = (*matmul.operands, matmul.result) if matmul else (parse_tensor(text),)
    _check_size(tensors)
    dims = parse_sizes(question.text("dims"))
    return _ShardInputs(tensors, matmul, mesh, dims, question.dtype("dtype"))


def _check_size(tensors: Sequence[Tensor]) -> None:
    """Strategies multiply with axes and dims; a page waits for them."""
    dims = {dim for tensor in tensors for dim in tensor.dims}
    axes = {axis for t in tensors for axis in (*t.sharded_over, *t.unreduced)}
    if len(dims) > _MOST_DIMS or len(axes) > _MOST_AXES:
        raise UsageError(
            f"{len(dims)} dims split over {len(axes)} mesh axes take too long to look at: at most"
            f" {_MOST_DIMS} dims and {_MOST_AXES} axes",
            hint="write A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]; `rooflight matmul` takes more",
        )


def _arrays(asked: _ShardInputs, question: ViewQuery) -> Answer:
    said = arrays_answer(asked.tensors, asked.mesh, asked.dims, asked.dtype)
    return replace(said, command=_command("shard", question))


def _matmul(asked: _ShardInputs, choices: Sequence[Choice], question: ViewQuery) -> Answer:
    best, *gradients = (c.best for c in choices)
    said = choice_answer(choices[0], place_text(asked.mesh, asked.dtype))
    held = arrays_answer(asked.tensors, asked.mesh, asked.dims, asked.dtype)
    all_s = Fact(
        *("all_expected_s", "with gradients", sum(c.best.expected_s for c in choices)),
        *(show_seconds, "one after another"),
    )
    return replace(
        said,
        sentences=(*said.sentences, *held.notes),
        facts=(*said.facts, *([all_s] if gradients else [])),
        films=(_film(asked, best),),
        pictures=held.pictures,
        tables=(
            *(*said.tables, *held.tables),
            *(
                steps_table(price, f"gradient_{i}", f"Gradient: {price.strategy.contraction}")
                for i, price in enumerate(gradients, start=1)
            ),
        ),
        links=tuple(_links(best, asked)),
        command=_command("matmul", question),
    )


def _film(asked: _ShardInputs, best: Price) -> Film:
    """What lies where before the first step and after each."""
    live = {tensor.name: tensor for tensor in asked.tensors[:-1]}
    frames = [Frame(_still(live, asked.mesh), "Before the first step")]
    for number, part in enumerate(best.steps, start=1):
        for tensor in part.step.inputs:
            live.pop(tensor.name, None)
        live[part.step.output.name] = part.step.output
        words = f"Step {number}: {part.step}, {show_seconds(part.expected_s)}"
        frames.append(Frame(_still(live, asked.mesh), words))
    caption = "What each step leaves on which device; one colour for each set of holders"
    return Film("steps", "Step by step", tuple(frames), caption, 2.5)


def _still(live: Mapping[str, Tensor], mesh: Mesh) -> str:
    drawn = [shard_picture(live[name], mesh) for name in sorted(live)]
    return shards_svg(drawn, title=" and ".join(p.title for p in drawn), width=_STILL)


def _links(best: Price, asked: _ShardInputs) -> list[ViewLink]:
    """The collectives of the best strategy, to be watched hop by hop."""
    found: list[ViewLink] = []
    for part in best.steps:
        if part.network and part.step.op != "permute":
            question = (
                ("kind", part.step.op.replace("_", "-")),
                ("bytes", str(part.nbytes)),
                ("on", str(asked.mesh.slice)),
                ("mesh", str(asked.mesh)),
                ("axes", ",".join(part.step.axes)),
            )
            found.append(ViewLink(f"Watch {part.step}", "collectives", question))
    return found


def _command(verb: str, question: ViewQuery) -> str:
    text = question.text
    mesh = f" --mesh {text('mesh')}" if text("mesh") else ""
    grad = " --backward" if verb == "matmul" and question.is_on("backward") else ""
    return (
        f'rooflight {verb} "{text("arrays")}" --on "{text("on")}"{mesh}'
        f" --dims {text('dims')} --dtype {text('dtype')}{grad}"
    )


VIEW = View(
    "shard",
    "Shard",
    "Arrays over a mesh: who holds which block, and the collectives that a matmul needs.",
    (
        Field(
            "arrays",
            "Arrays",
            "text",
            "A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]",
            "a subscript names the mesh axes that split a dim; {U_X} is a sum that is still due",
            choices=(
                "A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]",
                "A[I_X,J_Y] * B[J_Y,K] -> C[I_X,K]",
                "A[I,J_X] * B[J_X,K] -> C[I,K]",
                "A[I_X,J] * B[J,K_X] -> C[I_X,K]",
                "A[I_XY,J]",
                "A[I_X,J_Y]",
            ),
        ),
        Field("on", "Slice", "text", "v5e:4x4", "chips and their shape"),
        Field(
            *("mesh", "Mesh", "text", "", "X=4,Y=4; empty: an axis for each dim of the slice"),
            is_optional=True,
        ),
        Field("dims", "Dims", "text", "I=8192,J=8192,K=32768", "size of every dim"),
        Field("dtype", "Dtype", "choice", "bf16", choices=tuple(DTYPES)),
        Field("backward", "Gradients", "switch", "no", "of the operands, too"),
    ),
    answer,
)
