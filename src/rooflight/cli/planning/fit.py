"""`rooflight fit train`: does a training step fit into the memory of a chip."""

import math
from collections.abc import Sequence
from dataclasses import asdict

from rooflight.api.memory import fit
from rooflight.cli.flags import add_choice, add_mesh, add_on, keywords
from rooflight.cli.output import picked, print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.models.layout.rules import SCHEMES
from rooflight.models.layout.schedules import SCHEDULES
from rooflight.models.presets import load_model
from rooflight.plan.training.memory.count import Memory
from rooflight.plan.training.memory.framework import FRAMEWORKS, SETTINGS
from rooflight.plan.training.memory.job import RECIPES, Job, Zero
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.questions.fixes import UNKNOWNS, Fit, Fix
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

_NEVER = {"batch": "AT ANY BATCH", "seq": "AT ANY SEQ", "chips": "ON ANY NUMBER OF CHIPS"}

HELP = "whether a training step fits into a chip's memory, by component"

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
        help=f"whose copies and buffers to count (none by default, of a plan megatron on GPUs,"
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
        show(text(args.model, answer, by_stage=args.by_stage))
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
        "chips": _num_chips(job),
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


def _num_chips(job: Job) -> int:
    return math.prod(job.axes.values())


def text(model: str, answer: Fit, *, by_stage: bool) -> str:
    job, found = answer.job, answer.memory
    extra = f", which does {found.extra_flops:.1%} more FLOPs" if found.recompute_flops else ""
    zero = f", zero {job.zero}" if job.zero else ""
    made = "" if job.framework.name == "none" else f" as in {job.framework.label}"
    blocks = [
        f"{_verdict(answer)}{_chance(found)}\n"
        f"{model} under {job.layout.text} on {_place(answer)};"
        f" {job.batch:,} sequences of {job.seq:,} tokens\n"
        f"recipe {job.recipe.name}{made}{zero}, remat {job.remat.name}{extra}{_host(found)}"
        f"{_microbatches(job, found)}",
        _parts(found),
    ]
    if by_stage:
        blocks.append(_by_stage(answer.stages))
    if not found.fits:
        blocks += [_largest(found), _fixes(answer.fixes)]
    if answer.together:
        last = {fix.change.split()[0]: fix.change for fix in answer.together}  # halved often
        blocks.append(f"fits with all of: {'; '.join(last.values())}")
    return "\n\n".join(blocks)


def _place(answer: Fit) -> str:
    if dict(answer.job.axes) == answer.mesh.axes:
        return f"{answer.mesh.slice}, mesh {answer.mesh}"
    sizes = ",".join(f"{axis}={size}" for axis, size in answer.job.axes.items())
    return f"{answer.mesh.slice.chip.title}, mesh {sizes}"


def _microbatches(job: Job, found: Memory) -> str:
    if job.num_stages == 1:
        return (
            f"\n{job.micro.count} microbatches one after the other" if job.micro.count > 1 else ""
        )
    chunks = f" of {job.micro.virtual} chunks each" if job.micro.virtual > 1 else ""
    return (
        f"\n{job.micro.count} microbatches through {job.num_stages} stages{chunks},"
        f" {job.micro.schedule}; stage {found.stage} with {found.num_layers} layers needs most"
    )


def _by_stage(stages: Sequence[Memory]) -> str:
    names = [part.name for part in stages[0].parts]
    rows = [
        (
            str(found.stage),
            str(found.num_layers),
            *(_size(part.nbytes) for part in found.parts),
            format_si(found.total_bytes, "B"),
        )
        for found in stages
    ]
    return table(
        ("stage", "layers", *names, "total"),
        rows,
        align="r" * (len(names) + 3),
        keep=("total", "stage"),
    )


def _verdict(answer: Fit) -> str:
    job, found = answer.job, answer.memory
    used = f"{format_si(found.total_bytes, 'B')} of {format_si(found.hbm_bytes, 'B')} per chip"
    if not found.fits:
        what = f"DOES NOT FIT {_NEVER[answer.solve]}" if answer.solve else "DOES NOT FIT"
        return f"{what}: {used}, {format_si(-found.headroom_bytes, 'B')} too much"
    if answer.solve == "chips":
        return f"FEWEST CHIPS: {_num_chips(job):,} of {answer.mesh.slice.chip.title}; {used}"
    if answer.solve == "batch":
        return f"LARGEST BATCH: {job.tokens:,} tokens, {job.batch:,} sequences; {used}"
    if answer.solve == "seq":
        return f"LONGEST SEQUENCES: {job.seq:,} tokens, {job.batch:,} of them; {used}"
    return f"FITS: {used}, {format_si(found.headroom_bytes, 'B')} left"


def _chance(found: Memory) -> str:
    if found.spread is None:
        return ""
    low, high = (format_si(nbytes, "B") for nbytes in found.spread.between(found.total_bytes))
    chance, runs = f"{found.chance:.0%}".replace("100%", "over 99%"), found.spread.num_runs
    return f"\n{chance} chance to fit (90% between {low} and {high}, by {runs} measured runs)"


def _host(found: Memory) -> str:
    if not found.host_bytes:
        return ""
    seconds = "unknown" if found.offload_s is None else format_seconds(found.offload_s)
    return f", and PCIe time of {seconds} per step for {format_si(found.host_bytes, 'B')} per chip"


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
    return table(
        ("one change", "saves", "total", "then", "costs"),
        rows,
        align="lrrll",
        keep=("one change", "then", "total"),
    )


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
