"""`rooflight verify --html`: a verdict as one HTML file that stands alone."""

from rooflight.cli.hlo_page import grids
from rooflight.cli.hlo_report import ROWS, step_page
from rooflight.cli.output import write_file
from rooflight.cli.time_page import time_line
from rooflight.compile.aot.run import read_compilation
from rooflight.compile.aot.target import device_chip
from rooflight.compile.findings.verify import Verdict
from rooflight.ui.html.step import StepPage, step_html


def write_verdict(path: str, verdict: Verdict, answer: str, tables: list[str]) -> None:
    """Writes the page of a verdict to a file that the user named."""
    write_file(path, step_html(verdict_page(verdict, answer, tables)), flag="--html")


def verdict_page(verdict: Verdict, answer: str, tables: list[str]) -> StepPage:
    """What was said of a plan, and the last program that the compiler got through."""
    kicker = f"Verdict on plan {verdict.hash}"
    lines = answer.splitlines()
    texts = [("Verdict", text) for text in tables]
    title = f"{verdict.plan.model.title} on {verdict.plan.slice}"
    done = [one for one in verdict.done if one.outcome in ("compiled", "out of memory")]
    if not done:
        note = time_line(verdict.plan.time, None)
        return StepPage(title, kicker, tuple(lines), None, note, (), (), tuple(texts), None)
    step = read_compilation(done[-1])
    device = device_chip(verdict.plan.placed(), done[-1].axes)
    usable = device.detail.get("hbm_usable_bytes")
    return step_page(
        step,
        kicker=f"{kicker}, compiled until {done[-1].request.until}",
        answer=lines,
        shown=grids(step, most=ROWS),
        texts=texts,
        planned=verdict.plan.time,
        time=verdict.time,
        limit_bytes=int(usable) if usable else None,
        title=title,
    )
