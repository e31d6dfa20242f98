"""The verbs of serving: `frontier`, `fit serve`, `explain serve`."""

import json
import os
import re
from pathlib import Path

import pytest

from rooflight.hardware.slice import parse_slice
from rooflight.models.presets import load_model
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout
from rooflight.plan.serving.step.memory import ServingMemory

from .command import run

GUIDE = Path(__file__).parents[2] / "docs" / "serving.md"
PICTURE = GUIDE.parent / "pictures" / "frontier-70b.svg"
SERVED = "--layout tp=16,kv=batch --on v5e:4x4 --dtypes int8"
FIT = f"fit serve llama3-70b {SERVED} --seq 8192"
EXPLAIN = f"explain serve llama3-70b {SERVED} --sequences 32 --seq 8192"
FRONTIER = f"frontier llama3-70b {SERVED} --context 2048"


def test_fit_says_first_whether_the_batch_fits_and_what_would() -> None:
    outcome = run(f"{FIT} --sequences 32".split())
    memory = ServingMemory(
        load_model("llama3-70b"),
        parse_slice("v5e:4x4"),
        parse_serving_layout("tp=16,kv=batch"),
        parse_precision("int8"),
    )
    assert outcome.code == 0 and outcome.out.startswith("FITS: 32 sequences of 8,192 positions")
    assert f"most sequences of 8,192 positions: {memory.most_sequences(8192)}" in outcome.out
    assert "next: rooflight frontier llama3-70b" in outcome.err


def test_fit_exits_with_one_where_a_batch_does_not_fit() -> None:
    outcome = run(f"{FIT} --sequences 4096 --json".split())
    document = json.loads(outcome.out)
    assert outcome.code == 1 and document["fits"] is False and document["headroom_bytes"] < 0


@pytest.mark.parametrize("unknown", ["batch", "seq"])
def test_fit_solves_for_the_most_that_fits(unknown: str) -> None:
    asked = "" if unknown == "batch" else "--sequences 8"
    document = json.loads(run(f"{FIT} {asked} --solve {unknown} --json".split()).out)
    name = "most_sequences" if unknown == "batch" else "longest_context"
    assert document[name] == document["sequences" if unknown == "batch" else "context"]
    assert document["fits"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{FIT}", "number of sequences is missing"),
        (f"{FIT} --batch 32", "unknown flag of `rooflight fit serve` '--batch'"),
        (f"{FIT} --solve chips", "unknown unknown 'chips'"),
        (f"{EXPLAIN} --batch 32", "unknown flag of `rooflight explain serve` '--batch'"),
        ("explain train llama3-8b --layout dp=X --on v5e:4x4 --seq 8", "required: --batch"),
        (f"{FRONTIER} --price 0", "must be a price, got 0"),
        ("frontier llama3-70b --on v5e --context 2048", "not one sequence"),
        ("frontier llama3-70b --on v5e:4x4 --layout tp=7 --context 2048", "7 chips"),
    ],
)
def test_a_question_that_cannot_be_asked_gets_a_hint(words: str, message: str) -> None:
    outcome = run(words.split())
    assert outcome.code == 2 and message in outcome.err and "hint:" in outcome.err


def test_explain_shows_the_two_all_to_alls_of_a_cache_split_by_batch() -> None:
    outcome = run([*EXPLAIN.split(), "--part", "attention"])
    assert outcome.code == 0
    assert outcome.out.count("AllToAll_") == 2 and "HBM: KV cache" in outcome.out
    document = json.loads(run([*EXPLAIN.split(), "--json"]).out)
    parts = [x["expected_s"] for x in document["lines"] if x["collective"]]
    assert sum(parts) == pytest.approx(document["collectives_s"])


def test_a_context_of_2k_is_2048_positions() -> None:
    assert run(FRONTIER.replace("2048", "2k").split()).out == run(FRONTIER.split()).out


def test_a_frontier_is_drawn_and_listed(tmp_path: Path) -> None:
    picture = tmp_path / "frontier.svg"
    outcome = run([*FRONTIER.split(), "--plot", str(picture), "--json"])
    document = json.loads(outcome.out)
    points = document["frontier"]["2048"]
    assert [p["step_s"] for p in points] == sorted(p["step_s"] for p in points)
    assert all(p["lower_s"] <= p["expected_s"] <= p["upper_s"] for p in points)
    text = picture.read_text()
    assert text.startswith("<svg") and "KV cache" in text and "tokens/s per chip" in text


def test_the_picture_of_the_guide_is_what_its_command_draws(tmp_path: Path) -> None:
    found = re.findall(r"^\$ rooflight (frontier .* --plot frontier.svg)$", GUIDE.read_text(), re.M)
    (command,) = found
    drawn = tmp_path / "frontier.svg"
    words = [str(drawn) if w == "frontier.svg" else w for w in command.split()]
    assert run(words).code == 0
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        PICTURE.write_text(drawn.read_text())
    assert drawn.read_text() == PICTURE.read_text()


def test_the_matmuls_bound_leaves_the_network_out() -> None:
    document = json.loads(run([*FRONTIER.split(), "--bound", "matmuls", "--json"]).out)
    assert not any("network" in p["binds"] for p in document["frontier"]["2048"])
