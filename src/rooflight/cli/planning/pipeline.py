"""`rooflight pipeline`: a pipeline schedule simulated: bubble, activations held, Gantt chart."""

import math
from dataclasses import asdict

from rooflight.cli.flags import add_choice, add_plot
from rooflight.cli.output import picked, print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import ParseError, UsageError
from rooflight.models.layout.schedules import SCHEDULES, make_schedule
from rooflight.plan.training.time.pipeline import PipelineRun, SlotTimes, simulate_pipeline
from rooflight.ui.browser.pipeline_chart import amount, chart_of, idle, pipeline_answer
from rooflight.ui.svg.gantt import gantt_svg, gantt_text
from rooflight.ui.text.table import table
from rooflight.ui.text.terminal import within
from rooflight.units import parse_count

HELP = "a pipeline schedule: bubble, activations each device holds, and a Gantt chart"

_MOST_SLOTS = 50_000  # microbatches on virtual stages; more take many seconds


def configure(parser: Parser) -> None:
    add_choice(parser, "schedule", SCHEDULES, what="pipeline schedule", help=", ".join(SCHEDULES))
    parser.add_argument("--stages", required=True, help="devices in a row")
    parser.add_argument("--microbatches", required=True, help="equal parts of the batch")
    parser.add_argument(
        "--virtual", help="virtual stages per device; only interleaved has a choice (default 2)"
    )
    parser.add_argument(
        "--times",
        default="1,1,1",
        metavar="F,B,W",
        help="forward, input gradient and weight gradient of a microbatch on a device, in any one"
        " unit (default 1,1,1)",
    )
    parser.add_argument("--transfer", metavar="TIME", help="one hop to another device (default 0)")
    parser.add_argument(
        "--joined",
        metavar="TIME",
        help="a forward joined to a backward (dualpipe); F+B+W if left out: nothing gained",
    )
    parser.add_argument(
        "--compare", action="store_true", help="all schedules at these sizes and times"
    )
    add_plot(parser)
    parser.set_examples(
        "rooflight pipeline 1f1b --stages 4 --microbatches 8",
        "rooflight pipeline interleaved --stages 4 --microbatches 8 --virtual 2 --transfer 0.1",
        "rooflight pipeline dualpipe --stages 8 --microbatches 20 --compare --plot gantt.svg",
    )


def run(args: Namespace) -> int:
    times = _times(args)
    found = _simulate(args, args.schedule, args.virtual, times)
    others = _compare(args, times) if args.compare else {}
    chart = chart_of(found)
    if args.plot:
        write_file(args.plot, gantt_svg(chart), flag="--plot")
    if args.json:
        print_json("pipeline", document(found, others))
        return 0
    blocks = [f"{chart.title}: {pipeline_answer(found)}", gantt_text(chart, width=within(100))]
    show("\n\n".join([*blocks, comparison(others)] if others else blocks))
    if not args.plot:
        suggest(_plot_command(args))
    return 0


def _times(args: Namespace) -> SlotTimes:
    words = args.times.split(",")
    if len(words) != 3:
        raise ParseError(f"--times {args.times!r} is not F,B,W", hint="write three times: 1,1,1")
    forward, backward, weight = (_time("--times", word) for word in words)
    joined = None if args.joined is None else _time("--joined", args.joined)
    transfer = 0.0 if args.transfer is None else _time("--transfer", args.transfer)
    return SlotTimes(forward, backward, weight, transfer, joined)


def _time(flag: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if value != 0 and not 1e-12 <= value <= 1e12:
        raise ParseError(f"{flag} {word!r} is not a time", hint=f"write {flag} with 0, 0.1 or 2e-3")
    return value


def _size(flag: str, word: str) -> int:
    count = parse_count(word, what=flag)
    if count < 1:
        raise UsageError(f"{flag} {word} leaves nothing to run", hint=f"write {flag} 4")
    return count


def _simulate(
    args: Namespace, name: str, virtual_text: str | None, times: SlotTimes
) -> PipelineRun:
    stages = _size("--stages", args.stages)
    microbatches = _size("--microbatches", args.microbatches)
    virtual = None if virtual_text is None else _size("--virtual", virtual_text)
    slots = stages * max(microbatches, 2 * stages) * (virtual or 2)
    if slots > _MOST_SLOTS:
        raise UsageError(
            f"{slots:,} slots are too many to simulate; at most {_MOST_SLOTS:,}",
            hint="take fewer microbatches: the bubble of a longer step is the same in seconds",
        )
    table = make_schedule(name, stages=stages, microbatches=microbatches, virtual=virtual)
    return simulate_pipeline(table, times)


def _compare(args: Namespace, times: SlotTimes) -> dict[str, PipelineRun | str]:
    """Every schedule at the same sizes, or why it cannot be."""
    found: dict[str, PipelineRun | str] = {}
    for name in SCHEDULES:
        try:
            own = args.virtual if name == args.schedule == "interleaved" else None
            found[name] = _simulate(args, name, own, times)
        except UsageError as error:
            found[name] = str(error)
    return found


def _plot_command(args: Namespace) -> str:
    flags = ("stages", "microbatches", "virtual", "times", "transfer", "joined")
    given = [f"--{flag} {getattr(args, flag)}" for flag in flags if getattr(args, flag)]
    return " ".join(["rooflight pipeline", args.schedule, *given, "--plot gantt.svg"])


def comparison(others: dict[str, PipelineRun | str]) -> str:
    """A row a schedule; those that cannot be, with the reason, below."""
    header = ("schedule", "step", "bubble", "idle", "idle, no wait", "holds", "weights", "virtual")
    rows = [
        [name, *_cells(found)] for name, found in others.items() if isinstance(found, PipelineRun)
    ]
    reasons = [found for found in others.values() if isinstance(found, str)]
    notes = [
        "idle, no wait: on the worst device when none waits for the others after its last slot"
    ]
    return "\n".join([table(header, rows), *notes, *reasons])


def _cells(found: PipelineRun) -> list[str]:
    return [
        f"{found.makespan_s:.4g}",
        f"{found.bubble:.1%}",
        idle(found, found.bubble_s),
        idle(found, found.span_bubble_s),
        amount(max(found.peak_activations)),
        f"{found.schedule.weight_copies}x",
        str(found.schedule.virtual),
    ]


def document(found: PipelineRun, others: dict[str, PipelineRun | str]) -> dict[str, object]:
    """The JSON document: the numbers, then every slot with its times."""
    slots = [
        [
            {
                **picked(slot, "kind microbatch stage joined"),
                "start": group.start_s,
                "end": group.end_s,
            }
            for group in groups
            for slot in group.slots
        ]
        for groups in found.devices
    ]
    compared = {
        name: _summary(other) if isinstance(other, PipelineRun) else {"impossible": other}
        for name, other in others.items()
    }
    times = {name.removesuffix("_s"): value for name, value in asdict(found.times).items()}
    fields = _summary(found) | {"times": times, "devices": slots}
    return fields | ({"compare": compared} if compared else {})


def _summary(found: PipelineRun) -> dict[str, object]:
    schedule = found.schedule
    return {
        "schedule": schedule.name,
        **picked(schedule, "stages microbatches virtual"),
        "makespan": found.makespan_s,
        "bubble": found.bubble,
        "idle": found.bubble_s,
        "idle_without_wait": found.span_bubble_s,
        "peak_activations": [float(peak) for peak in found.peak_activations],
        "peak_in_flight": [float(peak) for peak in found.peak_in_flight],
        "weight_copies": schedule.weight_copies,
    }
