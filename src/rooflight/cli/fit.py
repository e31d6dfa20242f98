"""`rooflight fit train`: does a training step fit into the memory of a chip."""

import re
from dataclasses import replace

from rooflight.cli.batch import parse_seq, whole_sequences
from rooflight.cli.fit_page import FitReport, document, next_command, text
from rooflight.cli.flags import add_choice, add_mesh, add_on
from rooflight.cli.model import warn_of_gaps
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.axes import mesh_of
from rooflight.hardware.mesh import Mesh
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import SCHEMES, Layout, parse_layout
from rooflight.models.layout.schedules import SCHEDULES
from rooflight.models.presets import load_model
from rooflight.plan.training.memory.count import memory_by_stage
from rooflight.plan.training.memory.framework import FRAMEWORKS
from rooflight.plan.training.memory.job import Job, Microbatching, Zero
from rooflight.plan.training.memory.recipe import RECIPES
from rooflight.plan.training.memory.remat import REMATS, parse_remat
from rooflight.plan.training.questions.fixes import UNKNOWNS, fixes, sized, solve, together
from rooflight.plan.training.search.candidate import job_of
from rooflight.plan.training.search.plan import plan_training, train_question
from rooflight.plan.training.search.run import search_training
from rooflight.plan.training.search.wanted import parse_wanted, region_of

HELP = "whether a training step fits into a chip's memory, by component"

_DEGREES = re.compile(r"=\s*\d")
_ZEROS: dict[str, Zero] = {"0": 0, "1": 1, "2": 2, "3": 3}


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-70b, or the path of a config.json")
    schemes = "; ".join(f"{name} {scheme.help}" for name, scheme in SCHEMES.items())
    parser.add_argument(
        "--layout",
        help="degrees such as tp=8,dp=8, or axes of --mesh such as fsdp=X,tp=Y; without it the best"
        f" plan's, with its options. {schemes}",
    )
    add_on(parser)
    add_mesh(parser)
    parser.add_argument(
        "--batch", metavar="TOKENS", help="tokens a step: 4Mi (not with --solve batch)"
    )
    parser.add_argument("--seq", required=True, metavar="TOKENS", help="tokens a sequence: 8k")
    held = "; ".join(f"{name}: {recipe.used_by}" for name, recipe in RECIPES.items())
    add_choice(
        parser,
        "--recipe",
        list(RECIPES),
        what="recipe",
        default=None,
        help=f"bytes a parameter (10 by default, of a plan its framework's). {held}",
    )
    policies = "; ".join(f"{name}: {remat.help}" for name, remat in REMATS.items())
    parser.add_argument(
        "--remat",
        default=None,
        help=f"what the backward pass keeps (block by default, or the plan's). {policies};"
        " or tensors joined by +, such as gate+up",
    )
    add_choice(
        parser,
        "--zero",
        list(_ZEROS),
        what="ZeRO stage",
        default=None,
        help="split over all axes that split tokens: 1 the optimizer, 2 gradients too, 3 weights"
        " too (fsdp over one axis is a layout)",
    )
    _add_time(parser)
    frameworks = "; ".join(f"{name}: {framework.help}" for name, framework in FRAMEWORKS.items())
    add_choice(
        parser,
        "--framework",
        list(FRAMEWORKS),
        what="framework",
        default=None,
        help=f"whose copies and buffers to count (none by default, of a plan megatron on GPUs,"
        f" rooflight elsewhere). {frameworks}",
    )
    add_choice(
        parser,
        "--solve",
        UNKNOWNS,
        what="unknown",
        default=None,
        help="find the largest batch, the longest sequences, or the fewest chips along the axis of"
        " dp or fsdp, that fit",
    )
    parser.add_argument("--by-stage", action="store_true", help="a row for every pipeline stage")
    parser.set_examples(
        "rooflight fit train llama3-70b --layout fsdp=X --on v5p:8x8x8 --mesh X=512 --batch 4Mi"
        " --seq 8192",
        "rooflight fit train llama3-70b --layout tp=8,pp=4,dp=4 --on h100:8x16 --batch 1Mi --seq 8k"
        " --microbatches 32 --framework megatron",
        "rooflight fit train llama3-70b --on h100:8x16 --batch 1Mi --seq 8k",
        "rooflight fit train llama3-8b --layout fsdp=X --on v5e:4x4 --mesh X=16 --seq 4096"
        " --solve batch",
        "rooflight fit train llama3-70b --layout fsdp=X,pp=Y --on v5p:4x4x4 --mesh X=16,Y=4"
        " --batch 2Mi --seq 8192 --microbatches 16 --by-stage",
    )


def _add_time(parser: Parser) -> None:
    parser.add_argument(
        "--microbatches", type=int, help="parts of the batch, one after the other (1 by default)"
    )
    add_choice(
        parser,
        "--schedule",
        SCHEDULES,
        what="pipeline schedule",
        default=None,
        help="the order in which pipeline stages take microbatches (1f1b by default)",
    )
    parser.add_argument(
        "--virtual", type=int, help="chunks of layers a stage holds, for interleaved (2 by default)"
    )


def run(args: Namespace) -> int:
    model = load_model(args.model)
    graph = model_graph(model)
    job, mesh = _job(args, graph)
    answer = _answer(args, job, mesh)
    warn_of_gaps(model)
    if args.json:
        print_json("fit", document(answer))
    else:
        show(text(answer, by_stage=args.by_stage))
        suggest(next_command(answer))
    return 0 if answer.memory.fits else 1


def _answer(args: Namespace, job: Job, mesh: Mesh) -> FitReport:
    if args.solve:
        job = solve(job, args.solve) or (
            job if args.solve == "chips" else sized(job, args.solve, 1)
        )
    found = memory_by_stage(job)
    fits = all(stage.fits for stage in found)
    helps = () if fits else fixes(job)
    alone = fits or any(f.memory.fits for f in helps if f.job.axes == job.axes)
    both = () if alone else together(job)
    return FitReport(args.model, mesh, args.solve, job, found, helps, both)


def _job(args: Namespace, graph: Graph) -> tuple[Job, Mesh]:
    """What is asked, or the best plan where no layout is given."""
    if (args.batch is None) != (args.solve == "batch"):
        raise UsageError(
            "--solve batch finds the batch itself" if args.batch else "the batch is missing",
            hint="give either --batch, such as 4Mi tokens, or --solve batch",
        )
    seq = parse_seq(args.seq)
    count = 1 if args.microbatches is None else args.microbatches
    batch = count if args.batch is None else whole_sequences(args.batch, seq)
    if args.layout is None:
        return _best(args, graph, batch, seq)
    layout, mesh = _placed(args, graph, batch, seq)
    job = Job(
        graph,
        layout,
        mesh.axes,
        mesh.slice.chip,
        batch=batch,
        seq=seq,
        recipe=RECIPES[args.recipe or "10"],
        remat=parse_remat(args.remat or "block", graph),
        zero=_ZEROS[args.zero or "0"],
        micro=Microbatching(count, args.schedule or "1f1b", _virtual(args)),
        framework=FRAMEWORKS[args.framework or "none"],
    )
    return job, mesh


def _placed(args: Namespace, graph: Graph, batch: int, seq: int) -> tuple[Layout, Mesh]:
    """A layout over the axes of --mesh; or one that has the degrees, wherever its axes lie."""
    on = parse_slice(args.on)
    if not _DEGREES.search(args.layout):
        return parse_layout(args.layout), mesh_of(args.mesh, on)
    if args.mesh is not None:
        raise UsageError(
            "degrees make their own mesh", hint="leave --mesh out, or name its axes in --layout"
        )
    name = args.framework if args.framework not in (None, "none") else None
    question = train_question(graph, on, batch, seq, DTYPES["bf16"], framework=name)
    wanted = parse_wanted(args.layout, graph)
    region, _ = region_of(wanted, question)
    best = search_training(replace(question, region=region), count=1).candidates
    if best:
        return best[0].layout, best[0].mesh
    for layout in region.layouts or ():
        meshes = region.placements(layout, on)
        if meshes.count:
            return layout, meshes.mesh(0)
    raise UsageError(
        f"{args.layout} is no layout of the {on.num_chips} chips of {on}",
        hint="degrees multiply to the chips; those that are left over go to dp or fsdp",
    )


def _best(args: Namespace, graph: Graph, batch: int, seq: int) -> tuple[Job, Mesh]:
    """The best plan as a job: its layout, microbatches, schedule and remat policy."""
    own = ("mesh", "remat", "zero", "microbatches", "schedule", "virtual", "solve")
    given = [name for name in own if getattr(args, name) is not None]
    if given:
        raise UsageError(f"--{given[0]} belongs to a --layout", hint="add --layout tp=8,dp=8")
    question = train_question(
        *(graph, parse_slice(args.on), batch, seq, DTYPES["bf16"]),
        recipe=args.recipe,
        framework=args.framework,
    )
    best = plan_training(question, count=1).candidates[0]
    job = job_of(question, best.layout, best.mesh, best.micro, best.remat)
    return replace(job, hbm_margin=0.0), best.mesh


def _virtual(args: Namespace) -> int:
    if args.virtual is not None:
        return args.virtual
    return 2 if args.schedule in ("interleaved", "zb-v") else 1
