"""Real runs, reconciled: planned, compiled and measured, and nine tenths of every gap explained."""

import json
from pathlib import Path
from typing import Any

import pytest

from rooflight.units import format_seconds

from ..dated_figure import today, write_figure
from .runs import ON, RUNS, make_chip, make_tokens, rooflight, run_of, train

_EXPLAINED = 0.9


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chip(tmp_path_factory.mktemp("chip"))


def _reconciled(runs: list[Path], chip: Path, *words: str) -> dict[str, Any]:
    on = ["--on", ON, "--json", *words]
    return json.loads(rooflight(["reconcile", *map(str, runs), *on], chips=chip))


def test_two_processes_are_reconciled(tmp_path: Path, tokens: Path, chip: Path) -> None:
    layout, mesh, processes, experts = RUNS[-1]
    run = train(tmp_path, tokens, run_of(layout, mesh, experts=experts), processes, chips=chip)
    page = tmp_path / "run.html"
    (found,) = _reconciled([run], chip, "--html", str(page))["runs"]
    assert found["explained"] >= _EXPLAINED
    total = found["planned_s"] + sum(c["seconds"] for c in found["causes"])
    assert total + found["unattributed_s"] == pytest.approx(found["measured_s"])
    assert len(list((run / "traces").iterdir())) == processes
    terms = {term["name"]: term for term in found["terms"]}
    for name in ("matmuls", "collectives, in flight"):
        assert all(terms[name][k] > 0 for k in ("planned_s", "compiled_s", "measured_s")), name
    # Every FLOP of the plan is in the program; the head's loss, in chunks, is there once more.
    assert 0.95 < terms["matmuls"]["compiled_s"] / terms["matmuls"]["planned_s"] < 1.6
    # What `time.traffic.sent_on_a_host` says of CPUs: sums are whole, though devices keep a part.
    program = (run / "step.hlo.txt").read_text()
    assert " all-reduce(" in program and "reduce-scatter(" not in program
    html = page.read_text()
    assert "<svg" in html and "unattributed" in html and "speed of links" in html
    text = rooflight(["reconcile", str(run), "--on", ON], chips=chip)
    assert f"planned {format_seconds(found['planned_s'])}" in text
    given = json.loads(rooflight(["contribute", str(run), "--json"], chips=chip))
    assert given["row"]["measured"]["step_s"] == pytest.approx(found["measured_s"], rel=0.2)
    assert given["row"]["engine"] == "rooflight"


@pytest.mark.full
def test_ten_runs_are_explained_and_calibrate_the_next_plan(
    tmp_path: Path, tokens: Path, chip: Path
) -> None:
    folders: list[Path] = []
    for at, (layout, mesh, processes, experts) in enumerate(RUNS):
        home = tmp_path / f"{at}"
        home.mkdir()
        folders.append(
            train(home, tokens, run_of(layout, mesh, experts=experts), processes, chips=chip)
        )
    runs = _reconciled(folders, chip)["runs"]
    rows = [
        f"| {one['layout']} | {RUNS[at][1]} | {RUNS[at][2]} |"
        f" {format_seconds(one['planned_s'])} | {format_seconds(one['measured_s'])} |"
        f" {one['explained']:.1%} | {_largest(one)} |"
        for at, one in enumerate(runs)
    ]
    head = (
        "| layout | mesh | processes | planned | measured | explained | largest cause |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    write_figure("reconcile.md", "ten runs", f"{head}{chr(10).join(rows)}\n\n{today()}")
    assert min(one["explained"] for one in runs) >= _EXPLAINED, rows
    dense = [folder for folder, run in zip(folders, RUNS, strict=True) if not run[3]]
    saved = tmp_path / "saved"
    saved.mkdir()
    fitted = _reconciled(dense, chip, "--save", str(saved))["calibration"]
    write_figure(
        "reconcile.md",
        "calibration",
        f"{today()}: {fitted['rows']} runs, each predicted by the others: median error"
        f" {fitted['median_error']:.1%}, mean {fitted['mean_error']:.1%}.",
    )
    assert fitted["median_error"] < 0.25
    assert (saved / "this-host.toml").exists()


def _largest(one: dict[str, Any]) -> str:
    cause = max(one["causes"], key=lambda c: abs(c["seconds"]))
    return f"{cause['name']}, {format_seconds(cause['seconds'])}"
