"""`rooflight fit train`: does a training step fit into the memory of a chip."""

from dataclasses import asdict

from rooflight.api.memory import fit
from rooflight.cli.flags import add_choice, add_mesh, add_on, keywords
from rooflight.cli.output import picked, print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.models.layout.rules import SCHEMES
from rooflight.models.layout.schedules import SCHEDULES
from rooflight.models.presets import load_model
from rooflight.plan.training.memory.framework import FRAMEWORKS, SETTINGS
from rooflight.plan.training.memory.job import RECIPES, Job, Zero
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.questions.fixes import UNKNOWNS, Fit, Fix
from rooflight.ui.answers.fit import fit_answer, num_chips
from rooflight.ui.text.answer import answer_text

HELP = "whether a training step fits into a chip's memory, by component"

_ZEROS: dict[str, Zero] = {"0": 0, "1": 1, "2": 2, "3": 3}


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-70b, or the path of a config.json")
    schemes = "; ".join(f"{name} {scheme.help}" for name, scheme in SCHEMES.items())
    parser.add_argument(
        "--layout",
        help="degrees such as tp=8@node,dp=8, and what they leave open is the planner's choice; or"
        " axes of --mesh such as fsdp=X,tp=Y, and the count is the book's unless flags say"
        f" otherwise; without it the best plan's, with its options. {schemes}",
    )
    add_on(parser)
    add_mesh(parser)
    parser.add_argument(
        "--batch", metavar="TOKENS", help="tokens per step: 4Mi (not with --solve batch)"
    )
    parser.add_argument("--seq", required=True, metavar="TOKENS", help="tokens per sequence: 8k")
    held = "; ".join(f"{name}: {recipe.used_by}" for name, recipe in RECIPES.items())
    add_choice(
        parser,
        "--recipe",
        list(RECIPES),
        help=f"bytes per parameter (10 by default, of a plan its framework's). {held}",
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
        help="split over all axes that split tokens: 1 the optimizer, 2 gradients too, 3 weights"
        " too (fsdp over one axis is a layout)",
    )
    _add_time(parser)
    frameworks = "; ".join(f"{name}: {framework.help}" for name, framework in FRAMEWORKS.items())
    settings = "; ".join(f"{name}: {what}" for name, (what, _) in SETTINGS.items())
    parser.add_argument(
        "--framework",
        metavar="NAME[+SETTING...]",
        help=f"whose copies and buffers to count (none by default of axes, else megatron on GPUs,"
        f" rooflight elsewhere). {frameworks}. Settings of a run, joined by +: {settings}",
    )
    add_choice(
        parser,
        "--solve",
        UNKNOWNS,
        what="unknown",
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
        help="the order in which pipeline stages take microbatches (1f1b by default)",
    )
    parser.add_argument(
        "--virtual", type=int, help="chunks of layers a stage holds, for interleaved (2 by default)"
    )


def run(args: Namespace) -> int:
    model = load_model(args.model)
    answer = fit(model, **keywords(fit, args, but=["zero"]), zero=_ZEROS.get(args.zero))
    warn_of_gaps(model)
    if args.json:
        print_json("fit", document(args.model, answer))
    else:
        show(answer_text(fit_answer(answer, args.model, by_stage=args.by_stage)))
        suggest(next_command(args.model, answer))
    return 0 if answer.memory.fits else 1


def document(model: str, answer: Fit) -> dict[str, object]:
    job, found = answer.job, answer.memory
    return {
        "model": model,
        "on": str(answer.mesh.slice),
        "mesh": str(answer.mesh),
        "layout": job.layout.text,
        "batch": job.tokens,
        "seq": job.seq,
        "recipe": job.recipe.name,
        "remat": job.remat.name,
        "zero": job.zero,
        "framework": job.framework.label,
        "microbatches": job.micro.count,
        "schedule": job.micro.schedule,
        "virtual": job.micro.virtual,
        "axes": dict(job.axes),
        "chips": num_chips(job),
        "solve": answer.solve,
        **picked(found, "fits total_bytes headroom_bytes chance"),
        "between_bytes": found.spread and found.spread.between(found.total_bytes),
        "extra_flops": found.extra_flops,
        **asdict(found),
        "stages": [asdict(stage) | {"total_bytes": stage.total_bytes} for stage in answer.stages],
        "fixes": [_fix_document(fix) for fix in answer.fixes],
        "together": [_fix_document(fix) for fix in answer.together],
    }


def _fix_document(fix: Fix) -> dict[str, object]:
    return {
        **picked(fix, "change cost saves_bytes"),
        "total_bytes": fix.memory.total_bytes,
        "fits": fix.memory.fits,
    }


def next_command(model: str, answer: Fit) -> str:
    if dict(answer.job.axes) != answer.mesh.axes:  # other chips than asked: no slice to name
        return f"rooflight model {model}"
    if answer.memory.fits:
        return f"rooflight explain train {_where(model, answer, answer.job)}"
    here = [f.job for f in answer.fixes if f.memory.fits and f.job.axes == answer.job.axes]
    here += [fix.job for fix in answer.together[-1:]]
    if not here:
        return f"rooflight model {model}"
    best = here[0]
    return (
        f"rooflight fit train {_where(model, answer, best)}"
        f" --recipe {best.recipe.name} --remat {best.remat.name} --zero {best.zero}"
        f"{_in_time(best)}"
    )


def _in_time(job: Job) -> str:
    """The flags of what differs from one microbatch and the closed form."""
    micro = job.micro
    flags = f" --microbatches {micro.count}" if micro.count > 1 else ""
    if job.num_stages > 1:
        flags += f" --schedule {micro.schedule}"
        flags += f" --virtual {micro.virtual}" if micro.schedule == "interleaved" else ""
    return flags + ("" if job.framework.name == "none" else f" --framework {job.framework.label}")


def _where(model: str, answer: Fit, job: Job) -> str:
    return (
        f"{model} --layout {job.layout.text} --on {answer.mesh.slice}"
        f" --mesh {answer.mesh} --batch {job.tokens} --seq {job.seq}"
    )
