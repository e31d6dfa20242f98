"""`rooflight matmul`: the steps of a sharded contraction, their times, and what lost."""

import shlex
from dataclasses import asdict

from rooflight.algebra.autodiff import backward
from rooflight.algebra.notation import Contraction, parse_contraction
from rooflight.api.costs import matmul
from rooflight.cli.flags import add_dims, add_dtype, add_mesh, add_on, add_verbose
from rooflight.cli.output import picked, print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.costs.best import best_layouts
from rooflight.costs.choose import Choice, Price, StepPrice
from rooflight.dtypes import Dtype, parse_dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, mesh_of
from rooflight.hardware.slice import parse_slice
from rooflight.measure.microbench.strategies import run_choice
from rooflight.ui.answer import Answer
from rooflight.ui.answers.sharded import (
    choice_answer,
    layouts_answer,
    place_text,
    runs_answer,
    steps_table,
)
from rooflight.ui.text.answer import answer_text
from rooflight.units import parse_count, parse_sizes

HELP = "a sharded matmul: derived steps, time of each, and the alternatives that lost"

_LOSERS = 4


def configure(parser: Parser) -> None:
    parser.add_argument(
        "contraction", help='in the notation: "A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]"'
    )
    add_on(parser)
    add_mesh(parser)
    add_dims(parser)
    add_dtype(parser)
    parser.add_argument("--backward", action="store_true", help="the gradients of the operands too")
    parser.add_argument(
        "--best",
        action="store_true",
        help="choose the shardings of the tensors written without subscripts",
    )
    parser.add_argument(
        "--memory-cap",
        metavar="BYTES",
        help="with --best: stored on a chip at most (default: its HBM)",
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="run the strategies on devices made of this host, and set the measured time beside"
        " (for --on this-host:N, which `rooflight measure` makes a chip)",
    )
    add_verbose(parser, help="the steps of the alternatives too")
    parser.set_examples(
        'rooflight matmul "A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]" --on v5e:4x4 --mesh X=4,Y=4'
        " --dims I=8192,J=8192,K=32768",
        'rooflight matmul "A[B,D] * W[D,F] -> C[B,F]" --best --on v5p:4x4x4'
        " --dims B=4096,D=8192,F=32768",
    )


def run(args: Namespace) -> int:
    contraction = parse_contraction(args.contraction)
    mesh = mesh_of(args.mesh, parse_slice(args.on))
    dims = parse_sizes(args.dims)
    dtype = parse_dtype(args.dtype)
    if args.best:
        return _run_best(args, contraction, mesh, dims, dtype)
    if args.memory_cap:
        raise UsageError("--memory-cap needs --best", hint="add --best, or leave --memory-cap out")
    asked = (contraction, *(backward(contraction) if args.backward else ()))
    choices = [matmul(c, on=mesh.slice, mesh=mesh, dims=dims, dtype=dtype.name) for c in asked]
    if args.run:
        return _run_here(args, choices, mesh, dims, dtype)
    if args.json:
        print_json("matmul", _head(mesh, dtype) | {"contractions": [_document(c) for c in choices]})
        return 0
    place, most = place_text(mesh, dtype), None if args.verbose else _LOSERS
    answers = [one for c in choices for one in _answers(c, place, most, args.verbose)]
    show("\n\n".join(map(answer_text, answers)))
    if not args.backward:
        suggest(_command(contraction, mesh, dims, dtype) + " --backward")
    return 0


def _answers(choice: Choice, place: str, most: int | None, verbose: bool) -> list[Answer]:
    """With the steps of all that lost, if they are asked for."""
    return [choice_answer(choice, place, most=most)] + [
        Answer((price.summary,), tables=(steps_table(price),)) for price in choice.losers if verbose
    ]


def _run_here(
    args: Namespace, choices: list[Choice], mesh: Mesh, dims: dict[str, int], dtype: Dtype
) -> int:
    """Every strategy, predicted and measured."""
    runs = [run_choice(choice, mesh, dims, dtype) for choice in choices]
    if args.json:
        documents = [[asdict(run) for run in found] for found in runs]
        print_json("matmul", _head(mesh, dtype) | {"runs": documents})
        return 0
    rows = [(r.summary, r.predicted_s, r.measured_s, r.off) for found in runs for r in found]
    show(answer_text(runs_answer(rows, place_text(mesh, dtype))))
    return 0


def _command(contraction: Contraction, mesh: Mesh, dims: dict[str, int], dtype: Dtype) -> str:
    sizes = ",".join(f"{d}={n}" for d, n in dims.items())
    where = f"--on {shlex.quote(str(mesh.slice))} --mesh {mesh}"
    return f'rooflight matmul "{contraction}" {where} --dims {sizes} --dtype {dtype.name}'


def _run_best(
    args: Namespace, contraction: Contraction, mesh: Mesh, dims: dict[str, int], dtype: Dtype
) -> int:
    cap = args.memory_cap
    memory = parse_count(cap, what="--memory-cap") if cap else mesh.slice.chip.hbm_bytes
    layouts = best_layouts(contraction, dims=dims, mesh=mesh, dtype=dtype, memory_bytes=memory)
    if args.json:
        found = [_price_document(x.price) | {"stored_bytes": x.stored_bytes} for x in layouts]
        print_json("matmul", _head(mesh, dtype) | {"memory_bytes": memory, "layouts": found})
        return 0
    show(answer_text(layouts_answer(layouts, place_text(mesh, dtype), memory)))
    return 0


def _head(mesh: Mesh, dtype: Dtype) -> dict[str, object]:
    return {"on": str(mesh.slice), "mesh": str(mesh), "dtype": dtype.name}


def _document(choice: Choice) -> dict[str, object]:
    return {
        "best": _price_document(choice.best),
        "because": choice.because,
        "losers": [_price_document(p) for p in choice.losers],
    }


def _price_document(price: Price) -> dict[str, object]:
    return {
        "contraction": str(price.strategy.contraction),
        **picked(price, "summary expected_s lower_s upper_s local_s network_s network_bytes"),
        "steps": [_step_document(s) for s in price.steps],
    }


def _step_document(part: StepPrice) -> dict[str, object]:
    return {
        "step": str(part.step),
        "op": part.step.op,
        "axes": list(part.step.axes),
        **picked(part, "nbytes flops expected_s binds"),
    }
