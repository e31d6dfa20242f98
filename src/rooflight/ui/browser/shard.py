"""Shard: arrays over a mesh in the notation; who holds what, and the collectives that follow.

The numbers are those of `rooflight matmul` and `rooflight shard`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooflight.algebra.autodiff import backward
from rooflight.algebra.blocks import holders
from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import Contraction, Tensor, parse_contraction, parse_tensor
from rooflight.algebra.shapes import device_bytes, local_shape, total_bytes, ways
from rooflight.costs.choose import Choice, Price, StepPrice, choose
from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, mesh_of
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Film,
    Frame,
    Picture,
    Table,
    ViewLink,
    show_bytes,
    show_count,
    show_seconds,
)
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.shard import ShardPicture, shards_svg
from rooflight.units import format_count, format_si, parse_sizes

_MOST_CHIPS = 16_384
_MOST_AXES = 3  # that split something
_MOST_DIMS = 6  # of all tensors together
_SHOWN = 12  # alternatives
_STILL = 860  # pixels

_TENSORS = (
    Column("tensor", "array"),
    Column("local_shape", "block on a device"),
    Column("device_bytes", "bytes per device", show_bytes),
    Column("total_bytes", "bytes on all", show_bytes),
    Column("copies", "copies", show_count),
)
_STEPS = (
    Column("step", "step"),
    Column("expected_s", "time", show_seconds),
    Column("moves_or_computes", "moves or computes"),
    Column("binds", "bound by"),
)
_LOSERS = (
    Column("summary", "alternative"),
    Column("expected_s", "time", show_seconds),
    Column("ratio", "of the best", lambda x: f"{x:.2f}x"),
    Column("network_bytes", "bytes in collectives", show_bytes),
)


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
    tensor, mesh = asked.tensors[0], asked.mesh
    each = device_bytes(tensor, asked.dims, mesh.axes, asked.dtype)
    sentence = (
        f"{tensor}: {asked.dtype.name}[{_shape(tensor, asked)}] on each device,"
        f" {format_si(each, 'B')}, on {mesh.slice} with mesh {mesh}"
    )
    return Answer(
        sentences=(sentence, *_unreduced(asked.tensors)),
        facts=(Fact("device_bytes", "bytes per device", each, show_bytes),),
        tables=(_tensor_table(asked),),
        pictures=tuple(_pictures(asked)),
        command=_command("shard", question),
    )


def _matmul(asked: _ShardInputs, choices: Sequence[Choice], question: ViewQuery) -> Answer:
    best = choices[0].best
    all_s = sum(c.best.expected_s for c in choices)
    facts = [
        Fact("expected_s", "time", best.expected_s, show_seconds, best.summary),
        Fact("local_s", "matmul", best.local_s, show_seconds, "on each device"),
        Fact("network_s", "collectives", best.network_s, show_seconds, "one after another"),
        Fact("network_bytes", "moved", best.network_bytes, show_bytes, "the book's V, all steps"),
        Fact("lower_s", "at best", best.lower_s, show_seconds, "everything overlaps"),
        Fact("upper_s", "at worst", best.upper_s, show_seconds, "nothing overlaps"),
    ]
    if len(choices) > 1:
        facts.append(
            Fact("all_expected_s", "with gradients", all_s, show_seconds, "one after another")
        )
    return Answer(
        sentences=(
            f"{asked.matmul}: {show_seconds(best.expected_s)}, {best.summary};"
            f" {choices[0].because}",
            f"On {asked.mesh.slice}, mesh {asked.mesh}, {asked.dtype.name}. Devices are numbered"
            " row by row over the mesh.",
            *_unreduced(asked.tensors),
        ),
        facts=tuple(facts),
        films=(_film(asked, best),),
        pictures=tuple(_pictures(asked)),
        tables=(
            _steps(best, "steps", "The derived steps, as priced"),
            _losers(choices[0]),
            _tensor_table(asked),
            *(
                _steps(c.best, f"gradient_{i}", f"Gradient: {c.best.strategy.contraction}")
                for i, c in enumerate(choices[1:], start=1)
            ),
        ),
        links=tuple(_links(best, asked)),
        command=_command("matmul", question),
    )


def _unreduced(tensors: Sequence[Tensor]) -> list[str]:
    return [
        f"Each device holds one term of {t.name}, a sum over {', '.join(t.unreduced)}."
        for t in tensors
        if t.unreduced
    ]


def _shape(tensor: Tensor, asked: _ShardInputs) -> str:
    return ",".join(map(str, local_shape(tensor, asked.dims, asked.mesh.axes)))


def _tensor_table(asked: _ShardInputs) -> Table:
    axes = asked.mesh.axes
    rows = [
        (
            str(tensor),
            f"{asked.dtype.name}[{_shape(tensor, asked)}]",
            device_bytes(tensor, asked.dims, axes, asked.dtype),
            total_bytes(tensor, asked.dims, axes, asked.dtype),
            asked.mesh.slice.num_chips // ways(tensor.sharded_over, axes),
        )
        for tensor in asked.tensors
    ]
    return Table("arrays", "What each device stores", _TENSORS, tuple(rows))


def _steps(price: Price, key: str, caption: str) -> Table:
    rows = [(str(p.step), p.expected_s, _amount(p), p.binds) for p in price.steps]
    return Table(key, caption, _STEPS, tuple(rows))


def _amount(part: StepPrice) -> str:
    if part.op:
        return format_si(part.flops, "FLOP")
    return format_si(part.nbytes, "B") if part.network else "nothing"


def _losers(choice: Choice) -> Table:
    best = choice.best
    prices = (best, *choice.losers[: _SHOWN - 1])
    rows = [
        (p.summary, p.expected_s, p.expected_s / best.expected_s, p.network_bytes) for p in prices
    ]
    left_out = len(choice.losers) + 1 - len(prices)
    more = f"; {left_out} slower ones are left out" if left_out else ""
    return Table(
        "strategies", f"Every way to do it, the chosen one first{more}", _LOSERS, tuple(rows), 0
    )


def _picture(tensor: Tensor, mesh: Mesh) -> ShardPicture:
    counts = tuple(ways(axes, mesh.axes) for axes in tensor.axes)
    named = {block: tuple(map(str, ids)) for block, ids in holders(tensor, mesh.axes).items()}
    return ShardPicture(str(tensor), tensor.dims, counts, named)


def _pictures(asked: _ShardInputs) -> list[Picture]:
    drawn = [_picture(tensor, asked.mesh) for tensor in asked.tensors]
    caption = "; ".join(f"{picture.title}: {picture.caption}" for picture in drawn)
    return [
        Picture(
            "holders",
            shards_svg(drawn, title=" and ".join(picture.title for picture in drawn)),
            f"{caption}. Numbers in a block are the devices that hold it.",
            640,
        )
    ]


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
    drawn = [_picture(live[name], mesh) for name in sorted(live)]
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
