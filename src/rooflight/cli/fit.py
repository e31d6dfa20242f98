"""`rooflight fit`: does a training step fit into the memory of a chip, and what would help."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rooflight.cli.axes import mesh_of
from rooflight.cli.batch import parse_seq, whole_sequences
from rooflight.cli.flags import add_choice, add_mesh, add_on
from rooflight.cli.model import warn_of_gaps
from rooflight.cli.output import print_json, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UsageError
from rooflight.graph import Graph, model_graph
from rooflight.graph.layout import SCHEMES, parse_layout
from rooflight.plan.fixes import UNKNOWNS, Fix, fixes, sized, solve, together
from rooflight.plan.job import Job, Zero
from rooflight.plan.memory import Memory, memory
from rooflight.plan.recipe import RECIPES
from rooflight.plan.remat import REMATS, parse_remat
from rooflight.report.table import table
from rooflight.specs.mesh import Mesh
from rooflight.specs.presets import load_model
from rooflight.specs.slice import parse_slice
from rooflight.units import format_seconds, format_si

HELP = "whether a training step fits into a chip's memory, by component, and what would help"

_ZEROS: dict[str, Zero] = {"0": 0, "1": 1, "2": 2}


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-70b, or the path of a config.json")
    schemes = "; ".join(f"{name} {scheme.help}" for name, scheme in SCHEMES.items())
    parser.add_argument("--layout", required=True, help=f"fsdp=X,tp=Y: {schemes}")
    add_on(parser)
    add_mesh(parser)
    parser.add_argument(
        "--batch", metavar="TOKENS", help="tokens a step: 4Mi (not with --solve batch)"
    )
    parser.add_argument("--seq", required=True, metavar="TOKENS", help="tokens a sequence: 8192")
    held = "; ".join(f"{name}: {recipe.used_by}" for name, recipe in RECIPES.items())
    add_choice(
        parser,
        "--recipe",
        list(RECIPES),
        what="recipe",
        default="10",
        help=f"bytes a parameter (10 by default). {held}",
    )
    policies = "; ".join(f"{name}: {remat.help}" for name, remat in REMATS.items())
    parser.add_argument(
        "--remat",
        default="block",
        help=f"what the backward pass keeps (block by default). {policies};"
        " or tensors joined by +, such as gate+up",
    )
    add_choice(
        parser,
        "--zero",
        list(_ZEROS),
        what="ZeRO stage",
        default="0",
        help="split over the data axes: 1 the optimizer, 2 gradients too (3 is fsdp)",
    )
    add_choice(
        parser,
        "--solve",
        UNKNOWNS,
        what="unknown",
        default=None,
        help="find the largest batch, or the longest sequences, that fit",
    )
    parser.set_examples(
        "rooflight fit llama3-70b --layout fsdp=X --on v5p:8x8x8 --mesh X=512 --batch 4Mi"
        " --seq 8192",
        "rooflight fit llama3-8b --layout fsdp=X --on v5e:4x4 --mesh X=16 --seq 4096 --solve batch",
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """The job that was asked about or solved for, its memory, and what would help."""

    model: str
    mesh: Mesh
    solve: str | None
    job: Job
    memory: Memory
    fixes: tuple[Fix, ...]  # none where it fits
    together: tuple[Fix, ...]  # none where a fix on these chips is enough alone


def run(args: Namespace) -> int:
    model = load_model(args.model)
    answer = _answer(args, model_graph(model), mesh_of(args.mesh, parse_slice(args.on)))
    warn_of_gaps(model)
    if args.json:
        print_json("fit", _document(answer))
    else:
        print(_text(answer))
        suggest(_next(answer))
    return 0 if answer.memory.fits else 1


def _answer(args: Namespace, graph: Graph, mesh: Mesh) -> _Answer:
    job = _job(args, graph, mesh)
    if args.solve:
        job = solve(job, args.solve) or sized(job, args.solve, 1)
    found = memory(job)
    helps = () if found.fits else fixes(job)
    alone = found.fits or any(f.memory.fits for f in helps if f.job.axes == job.axes)
    both = () if alone else together(job)
    return _Answer(args.model, mesh, args.solve, job, found, helps, both)


def _job(args: Namespace, graph: Graph, mesh: Mesh) -> Job:
    if (args.batch is None) != (args.solve == "batch"):
        raise UsageError(
            "--solve batch finds the batch itself" if args.batch else "the batch is missing",
            hint="give either --batch, such as 4Mi tokens, or --solve batch",
        )
    seq = parse_seq(args.seq)
    return Job(
        graph,
        parse_layout(args.layout),
        mesh.axes,
        mesh.slice.chip,
        batch=1 if args.batch is None else whole_sequences(args.batch, seq),
        seq=seq,
        recipe=RECIPES[args.recipe],
        remat=parse_remat(args.remat, graph),
        zero=_ZEROS[args.zero],
    )


def _document(answer: _Answer) -> dict[str, object]:
    job, found = answer.job, answer.memory
    return {
        "model": answer.model,
        "on": str(answer.mesh.slice),
        "mesh": str(answer.mesh),
        "layout": job.layout.text,
        "batch": job.tokens,
        "seq": job.seq,
        "recipe": job.recipe.name,
        "remat": job.remat.name,
        "zero": job.zero,
        "solve": answer.solve,
        "fits": found.fits,
        "total_bytes": found.total_bytes,
        "headroom_bytes": found.headroom_bytes,
        "extra_flops": found.extra_flops,
        **asdict(found),
        "fixes": [_fix_document(fix) for fix in answer.fixes],
        "together": [_fix_document(fix) for fix in answer.together],
    }


def _fix_document(fix: Fix) -> dict[str, object]:
    return {
        "change": fix.change,
        "cost": fix.cost,
        "saves_bytes": fix.saves_bytes,
        "total_bytes": fix.memory.total_bytes,
        "fits": fix.memory.fits,
    }


def _text(answer: _Answer) -> str:
    job, found = answer.job, answer.memory
    again = f", which does {found.extra_flops:.1%} more FLOPs" if found.again_flops else ""
    zero = f", zero {job.zero}" if job.zero else ""
    blocks = [
        f"{_verdict(answer)}\n{answer.model} under {job.layout.text} on {answer.mesh.slice},"
        f" mesh {answer.mesh}; {job.batch:,} sequences of {job.seq:,} tokens\n"
        f"recipe {job.recipe.name}{zero}, remat {job.remat.name}{again}{_host(found)}",
        _parts(found),
    ]
    if not found.fits:
        blocks += [_largest(found), _fixes(answer.fixes)]
    if answer.together:
        last = {fix.change.split()[0]: fix.change for fix in answer.together}  # halved often
        blocks.append(f"fits with all of: {'; '.join(last.values())}")
    return "\n\n".join(blocks)


def _verdict(answer: _Answer) -> str:
    job, found = answer.job, answer.memory
    used = f"{format_si(found.total_bytes, 'B')} of {format_si(found.hbm_bytes, 'B')} a chip"
    if not found.fits:
        what = f"DOES NOT FIT AT ANY {answer.solve.upper()}" if answer.solve else "DOES NOT FIT"
        return f"{what}: {used}, {format_si(-found.headroom_bytes, 'B')} too much"
    if answer.solve == "batch":
        return f"LARGEST BATCH: {job.tokens:,} tokens, {job.batch:,} sequences; {used}"
    if answer.solve == "seq":
        return f"LONGEST SEQUENCES: {job.seq:,} tokens, {job.batch:,} of them; {used}"
    return f"FITS: {used}, {format_si(found.headroom_bytes, 'B')} left"


def _host(found: Memory) -> str:
    if not found.host_bytes:
        return ""
    seconds = "unknown" if found.offload_s is None else format_seconds(found.offload_s)
    return f", and PCIe time of {seconds} a step for {format_si(found.host_bytes, 'B')} a chip"


def _parts(found: Memory) -> str:
    rows = [
        (p.name, _size(p.nbytes), f"{p.nbytes / found.total_bytes:.0%}", p.because)
        for p in found.parts
    ]
    rows.append(("total", _size(found.total_bytes), "100%", "closed form, no compiler asked"))
    return table(("component", "a chip", "share", "why"), rows, align="lrrl")


def _size(nbytes: int) -> str:
    return format_si(nbytes, "B") if nbytes else "-"


def _largest(found: Memory) -> str:
    return "largest: " + ", ".join(f"{p.name} {_size(p.nbytes)}" for p in found.largest(3))


def _fixes(found: Sequence[Fix]) -> str:
    if not found:
        return "no single change saves anything"
    rows = [
        (
            fix.change,
            format_si(-fix.saves_bytes, "B"),
            format_si(fix.memory.total_bytes, "B"),
            "fits" if fix.memory.fits else "no",
            fix.cost,
        )
        for fix in found
    ]
    return table(("one change", "saves", "total", "then", "costs"), rows, align="lrrll")


def _next(answer: _Answer) -> str:
    if answer.memory.fits:
        return f"rooflight explain {_where(answer, answer.job)}"
    here = [f.job for f in answer.fixes if f.memory.fits and f.job.axes == answer.job.axes]
    here += [fix.job for fix in answer.together[-1:]]
    if not here:
        return f"rooflight model {answer.model}"
    best = here[0]
    return (
        f"rooflight fit {_where(answer, best)}"
        f" --recipe {best.recipe.name} --remat {best.remat.name} --zero {best.zero}"
    )


def _where(answer: _Answer, job: Job) -> str:
    return (
        f"{answer.model} --layout {job.layout.text} --on {answer.mesh.slice}"
        f" --mesh {answer.mesh} --batch {job.tokens} --seq {job.seq}"
    )
