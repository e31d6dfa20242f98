"""The accuracy of training predictions is guarded: what is reached here only shrinks.

`held_out.json` holds every published row beside what a fit without it says; `accuracy.json` the
errors by group under the shipped calibrations. A change of the planner that worsens a group fails
with the group named; `ROOFLIGHT_UPDATE_GOLDEN=1` writes both afresh, for a commit that says why.
"""

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from rooflight.cli.measuring.validate import accuracy_cells
from rooflight.hardware.calibration import DENSE, EXPERTS
from rooflight.measure.published.hierarchy import cross_validate
from rooflight.measure.published.replay import CaseSet, ask_rows
from rooflight.measure.published.rows import shipped_rows
from rooflight.measure.published.validation import (
    HELD_OUT_FILE,
    Accuracy,
    Validation,
    accuracies,
    accuracy,
    shipped_validation,
    validate_rows,
    validate_shipped,
)

from ..dated_figure import today, write_figure
from .wrong_rows import shuffled

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("accuracy.json")
UPDATES = bool(os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"))
NOISE = 0.005  # of a group's mean error, what rounding and library versions may move
DIGITS = 5  # of a stored time: far below any error, and the same on every machine
TRAIN = shipped_validation().of("train")
NEW = "mlperf-v4.1", "mlperf-v5.0", "mlperf-v5.1", "mbridge-skills", "marin-hero"
OLD = [r for r in TRAIN if r.source not in NEW]  # rows of `test_mlperf` have bounds of their own


@pytest.fixture(scope="module", name="asked")
def all_rows() -> CaseSet:
    return ask_rows(shipped_rows())


def test_no_group_is_answered_worse_than_before(asked: CaseSet) -> None:
    found = {
        f"{by}: {g.group}": [g.rows, round(g.median, 4), round(g.mape, 4)]
        for by in ("chip", "source")
        for g in accuracies(validate_rows(asked).of("train"), by)
    }
    if UPDATES:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
    known = json.loads(FILE.read_text())
    worse = {
        name: (known[name], found.get(name))
        for name, (rows, _, mape) in known.items()
        if name not in found or found[name][0] < rows or found[name][2] > mape + NOISE
    }
    assert not worse, "groups that worsened, as [rows, median, mean]: before, now"


def test_at_least_97_percent_of_the_rows_are_answered_and_the_rest_say_why(asked: CaseSet) -> None:
    assert asked.coverage >= 0.97
    assert all(len(refusal.because) > 10 for refusal in asked.refusals)


def test_the_shipped_answers_list_what_each_row_assumes(asked: CaseSet) -> None:
    said = {replay.id: replay.assumed for replay in shipped_validation().replays}
    assert said == {case.id: case.assumed for case in asked.cases}
    assert sum(map(bool, said.values())) > len(said) / 4


@pytest.mark.parametrize(
    ("blocks", "median", "mape"), (("dense", 0.04, 0.061), ("experts", 0.07, 0.13))
)
def test_held_out_errors_of_training(blocks: str, median: float, mape: float) -> None:
    found = accuracy(blocks, [r for r in TRAIN if r.blocks == blocks])
    assert found.median <= median and found.mape <= mape


# Missed by the mean alone. H100: the 19 rows of nanotron, whose pipelines scatter; the other 73
# have 5.4 %. GB300: two rows of fine-tuning on packed sequences.
_ABOVE_7_PERCENT = {"h100_sxm dense": 0.082, "gb300 dense": 0.0702}


@pytest.mark.parametrize(
    "group",
    [g for g in accuracies(OLD, "chip") if g.rows >= 15 and g.group.endswith("dense")],
    ids=lambda g: g.group,
)
def test_held_out_errors_of_every_chip_with_many_dense_rows(group: Accuracy) -> None:
    assert group.median <= 0.05
    assert group.mape <= _ABOVE_7_PERCENT.get(group.group, 0.07)


def test_models_that_were_never_seen_are_predicted_within_ten_percent() -> None:
    found = accuracy("dense", [r for r in TRAIN if r.blocks == "dense"])
    assert found.model_out_mape is not None and found.model_out_mape <= 0.10


def test_an_80_percent_interval_holds_75_to_85_percent_of_held_out_rows() -> None:
    assert 0.75 <= accuracy("all", TRAIN).inside <= 0.85


def test_the_catalog_alone_is_far_off() -> None:
    found = accuracy("all", TRAIN)
    assert found.roof_mape > 4 * found.mape


def accuracy_markdown(by: str) -> str:
    header, cells = accuracy_cells((*accuracies(TRAIN, by), accuracy("all", TRAIN)))
    lines = [header, ("---", *("--:" for _ in header[1:])), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def test_the_tables_of_the_docs_are_those_of_the_file() -> None:
    for page in (ROOT / "docs" / "accuracy.md",):
        text = page.read_text(encoding="utf-8")
        fresh = re.sub(
            r"(<!-- accuracy by (\w+) -->\n).*?(\n<!-- end -->)",
            lambda m: m[1] + accuracy_markdown(m[2]) + m[3],
            text,
            flags=re.DOTALL,
        )
        if UPDATES:
            page.write_text(fresh, encoding="utf-8")
        assert fresh == text or UPDATES


def _text(found: Validation) -> str:
    """One row a line, so that a change shows which rows changed."""
    lines = [json.dumps(_rounded(asdict(r))) for r in found.replays]
    refused = [json.dumps(asdict(r)) for r in found.refusals]
    return (
        '{"schema": 1,\n"replays": [\n'
        + ",\n".join(lines)
        + '\n],\n"refusals": [\n'
        + ",\n".join(refused)
        + "\n]}\n"
    )


def _rounded(fields: dict[str, object]) -> dict[str, object]:
    return {
        k: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v
        for k, v in fields.items()
        if k != "assumed" or v
    }


@pytest.mark.full
def test_the_held_out_file_is_what_holding_out_gives(asked: CaseSet) -> None:
    fresh = validate_shipped(asked)
    if UPDATES:
        HELD_OUT_FILE.write_text(_text(fresh))
    for now, then in zip(fresh.replays, shipped_validation().replays, strict=True):
        assert now.id == then.id
    for by in ("chip", "blocks"):
        before = {g.group: g for g in accuracies(TRAIN, by)}
        for group in accuracies(fresh.of("train"), by):
            assert group.mape <= before[group.group].mape + 2 * NOISE, group


@pytest.mark.full
def test_shuffled_measurements_destroy_the_fit(asked: CaseSet) -> None:
    wrong = shuffled(asked)
    out = cross_validate(wrong, "configuration").seconds
    assert float(np.median(np.abs(out / wrong.measured_s - 1))) > 0.5


@pytest.mark.full
def test_one_set_of_constants_for_both_kinds_of_model_answers_experts_worse(asked: CaseSet) -> None:
    """Why experts have constants of their own; the day this fails they need none."""
    alike = replace(asked, cases=tuple(replace(c, blocks=DENSE) for c in asked.cases))
    errors = np.abs(cross_validate(alike, "configuration").seconds / asked.measured_s - 1)
    own = {g.group: g for g in accuracies(TRAIN, "blocks")}
    one: dict[str, float] = {}
    said: list[str] = []
    for blocks in (DENSE, EXPERTS):
        of = [c.kind == "train" and c.blocks == blocks for c in asked.cases]
        one[blocks] = float(np.median(errors[of]))
        said.append(
            f"{blocks} median {one[blocks]:.1%}, mean {errors[of].mean():.1%}"
            f" (with sets of their own {own[blocks].median:.1%}, {own[blocks].mape:.1%})"
        )
    write_figure("accuracy.md", "one set", f"{today()}: {'; '.join(said)}.")
    assert one[EXPERTS] > own[EXPERTS].median + 5 * NOISE
