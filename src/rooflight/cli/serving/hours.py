"""A fleet by the hour: what `plan serve --hourly` asks, and its part of page and document."""

import math
from collections.abc import Sequence
from pathlib import Path

from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UsageError
from rooflight.plan.serving.fleet.hours import HOUR_S, Hour, saving
from rooflight.plan.serving.simulate.trace import RequestTrace, hourly_rates
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, parse_seconds, positive

_TRACES = (".csv", ".jsonl", ".json")


def add_hours(parser: Parser) -> None:
    """The rates of a day, and what a start takes."""
    parser.add_argument(
        "--hourly",
        metavar="RATES",
        help="requests per second by hour, joined by commas, or a recorded trace (.csv, .jsonl) to"
        " count them in: replicas by hour and the saving",
    )
    parser.add_argument(
        "--cold-start",
        metavar="TIME",
        help="of --hourly: from starting a replica to its first request, for image, weights and"
        " compilation, which is paid for: 5min (default: none)",
    )


def asked_hours(args: Namespace) -> tuple[Sequence[float], float]:
    """Requests per second, hour by hour, and the seconds of a cold start."""
    if args.cold_start and not args.hourly:
        raise UsageError(
            f"--cold-start {args.cold_start} is of replicas that start by the hour",
            hint="add --hourly 5,20,60, or the trace of a day",
        )
    cold_start_s = parse_seconds(args.cold_start, what="--cold-start") if args.cold_start else 0.0
    return _rates(args.hourly) if args.hourly else (), cold_start_s


def _rates(words: str) -> list[float]:
    """Of a list, or of the file of a trace."""
    if words.endswith(_TRACES):
        return hourly_rates(RequestTrace(Path(words)))
    return [positive("--hourly", word, example="5,20,60") for word in words.split(",")]


def hours_document(hours: Sequence[Hour]) -> dict[str, object]:
    """Hour by hour, and what following the rate saves."""
    rows = [
        {
            "rate": hour.rate,
            "replicas": hour.fleet.replicas,
            "starts": hour.starts,
            "dollars_per_hour": hour.dollars,
        }
        for hour in hours
    ]
    return {"hours": rows, "cold_start_s": hours[0].cold_start_s, "saving": saving(hours)}


def hours_text(hours: Sequence[Hour]) -> str:
    """The same as a table, with the time by which replicas start."""
    rows = [
        [str(i), f"{h.rate:g}", str(h.fleet.replicas), _starts(h, i, hours), f"{h.dollars:,.2f}"]
        for i, h in enumerate(hours)
    ]
    listed = table(("hour", "requests/s", "replicas", "start", "$/h"), rows)
    total, cold_start_s = sum(hour.dollars for hour in hours), hours[0].cold_start_s
    return (
        f"{listed}\nfollowing the rate: ${total:,.2f} in {len(hours)} hours, {saving(hours):.0%}"
        " less than the peak's fleet all the time, if replicas serve"
        + (f" {format_seconds(cold_start_s)} after they start" if cold_start_s else " at once")
    )


def _starts(hour: Hour, index: int, hours: Sequence[Hour]) -> str:
    """How many, and when, by the clock of hours that repeat."""
    minutes = math.floor((index * HOUR_S - hour.cold_start_s) / 60) % (60 * len(hours))
    return f"{hour.starts} at {minutes // 60}:{minutes % 60:02}" if hour.starts else "-"
