"""The verb `plan serve`: the page, its document, exit codes, and words for what cannot be."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rooflight.api.serving import plan_serving
from rooflight.cli.learning.completion import candidates
from rooflight.cli.verbs import load_verb, verb_parser
from rooflight.errors import UsageError
from rooflight.hardware.catalog import load_chip
from rooflight.plan.serving.fleet.way import hourly_prices

from .command import run

TRAFFIC = "plan serve llama3.2-1b --rate 40 --isl 256 --osl 32 --ttft 200ms --tpot 10ms"
TINY = f"{TRAFFIC} --on v5e:1x1,v5e:2x2 --dtypes int8 --requests 400"


def document(flags: str = "") -> dict[str, Any]:
    outcome = run(shlex.split(f"{TINY} {flags} --json"))
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_the_document_has_what_an_engine_needs() -> None:
    found = document("--price v5e=2 --spare 2")
    fleet = found["fleet"]
    assert (found["verb"], found["question"], found["model"]) == ("plan", "serve", "llama3.2-1b")
    assert fleet["spare"] == 2 and fleet["chips"] == fleet["replicas"] + 2
    assert fleet["dollars_per_hour"] == 2 * fleet["chips"]
    assert fleet["simulated"]["good_share"] >= 0.95 and fleet["layout"] == "tp=1"
    assert fleet["pool_tokens"] >= fleet["longest_request"] == 288
    assert fleet["least_replicas"] <= fleet["replicas"] and fleet["paid"] > 1
    assert found["chips"]["v5e"] == fleet and found["disaggregate"]["together"] > 0


def test_the_page_says_the_fleet_its_floor_and_whom_to_believe() -> None:
    page = run(shlex.split(TINY)).out
    assert page.startswith("1 + 1 spare x v5e:1x1 tp=1: 2 chips, $2.40 an hour\n")
    for words in (
        "x the physics",
        "calibrated: engine any on tpu",
        "disaggregate prefill",
        "cost: $",
    ):
        assert words in page
    bare = run(shlex.split(f"{TINY} --engine none")).out
    assert "uncalibrated: the roofline bound" in bare


def test_the_suggested_commands_keep_the_draft_tokens() -> None:
    drafted = "--draft-tokens 2 --acceptance 0.8"
    found = run(shlex.split(f"{TINY} {drafted}"))
    assert found.err.strip().endswith(f"--context 288 {drafted}")
    frontier = run(shlex.split(found.err.removeprefix("next: rooflight ")))
    assert "2 draft tokens, 80% accepted" in frontier.out
    again = run(shlex.split(found.err.removeprefix("next: rooflight ") + " --json"))
    assert json.loads(again.out)["curves"][0]["draft"]["acceptance"] == 0.8
    simulated = "simulate llama3.2-1b --on v5e:1x1 --rate 9 --isl 64 --osl 8 --requests 99"
    assert drafted in run(shlex.split(f"{simulated} {drafted}")).err


def test_twice_the_traffic_and_hours_are_answered_when_asked() -> None:
    found = document("--sensitivity --hourly 10,400 --policy continuous --on v5e:1x1")
    assert set(found["doubled"]) == {"rate", "input", "output"}
    day, night = found["hours"][1], found["hours"][0]
    assert day["replicas"] > night["replicas"] >= 1 and 0 < found["saving"] < 0.5
    for what in found["doubled"].values():
        assert what["dollars_per_hour"] >= found["fleet"]["dollars_per_hour"]
    assert "runner_up" not in found  # one chip splits in one way
    assert day["starts"] == day["replicas"] - night["replicas"] and not night["starts"]
    page = run(shlex.split(f"{TINY} --sensitivity --policy continuous --on v5e:1x1")).out
    assert "runner-up: no other replica meets the SLO" in page


def test_the_runner_up_is_told_when_asked() -> None:
    words = "--sensitivity --policy continuous"
    found = document(words)
    fleet, second = found["fleet"], found["runner_up"]
    assert (second["on"], second["layout"]) != (fleet["on"], fleet["layout"])
    assert second["dollars_per_hour"] >= fleet["dollars_per_hour"]
    page = run(shlex.split(f"{TINY} {words}")).out
    assert f"runner-up: {second['replicas']} + 1 spare x {second['on']} {second['layout']}" in page


def test_hours_are_counted_in_a_recorded_day(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    times = [*(i / 20 for i in range(72_000)), *range(3600, 7200, 2), 7200]
    rows = "".join(f"{t},256,32\n" for t in times)
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    hours = document(f"--hourly {path} --policy continuous --on v5e:1x1")["hours"]
    assert [hour["rate"] for hour in hours] == [20.0, 0.5]
    assert hours[0]["replicas"] >= hours[1]["replicas"] >= 1


def test_replicas_start_before_the_hour_that_needs_them() -> None:
    words = "--policy continuous --on v5e:1x1 --hourly 10,400"
    at_once, late = document(words), document(f"{words} --cold-start 90min")
    assert late["cold_start_s"] == 5400 and at_once["cold_start_s"] == 0
    replicas = [[hour["replicas"] for hour in found["hours"]] for found in (at_once, late)]
    assert replicas[0] == replicas[1]
    assert late["saving"] == 0 < at_once["saving"]  # they would start before they end
    page = run(shlex.split(f"{TINY} {words} --cold-start 5min")).out
    assert " at 0:55 " in page and "300 s after they start" in page


def test_separated_fleets_have_both_kinds() -> None:
    fleet = document("--policy disaggregated")["fleet"]
    assert fleet["policy"] == "disaggregated"
    assert 1 <= fleet["prefill_replicas"] < fleet["replicas"]


def test_a_promise_that_nobody_keeps_is_a_finding() -> None:
    outcome = run(shlex.split(f"{TINY} --tpot 1us"))
    assert outcome.code == 1 and outcome.out.startswith("no fleet serves llama3.2-1b so: 40 req")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--on tpu7x", "nobody has said what an hour of"),
        ("--on this-host --price this-host=1", "does not know the HBM of this host"),
        ("--price 3", "no prices of '3'"),
        ("--price v9=3", "v9"),
        ("--percentile 100", "percentile 100"),
        ("--hit-rate 1", "hit rate 1"),
        ("--rate 0", "--rate '0' is not a number above 0"),
        ("--hourly no.csv", "cannot read 'no.csv'"),
        ("--hourly 5,,6", "--hourly '' is not a number above 0"),
        ("--hourly 5,6 --cold-start soon", "--cold-start 'soon' is not a time"),
        ("--cold-start 5min", "--cold-start 5min is of replicas that start by the hour"),
        ("--layout tp=16 --on v5e:1x1", "nothing holds llama3.2-1b"),
        ("--rows 300 --step-tokens 200", "--step-tokens 200 is not from 300"),
        ("--isl 10M", "is not a number of tokens"),
        ("--isl 9000000", "nothing holds llama3.2-1b"),
        ("--spare -1", "-1"),
        ("--serve", "--serve"),
    ],
)
def test_what_cannot_be_is_said(flags: str, words: str) -> None:
    outcome = run(shlex.split(f"{TINY} {flags}"))
    assert outcome.code == 2 and words in outcome.err and not outcome.out


def test_a_missing_price_is_said_before_any_work() -> None:
    def never(*_: int) -> None:
        raise AssertionError("searched before the price was asked for")

    for on in ("v5e:1x1,tpu7x:2x2x1", "v5e,tpu7x"):
        with pytest.raises(UsageError, match="nobody has said what an hour of TPU7x"):
            plan_serving("llama3.2-1b", rate=2, isl=512, osl=64, on=on, watch=never)


def test_prices_are_of_the_middle_cloud_or_of_one() -> None:
    h100, mi300x = load_chip("h100"), load_chip("mi300x")
    assert h100.dollars_per_hour == sorted(h100.prices.values())[len(h100.prices) // 2]
    every, spot, gcp = map(hourly_prices, ("on-demand", "spot", "gcp"))
    assert every["h100"] == h100.dollars_per_hour and spot["h100"] < every["h100"] < gcp["h100"]
    assert "mi300x" not in gcp and every["mi300x"] == mi300x.dollars_per_hour
    assert hourly_prices({"": "gcp", "h100": 1.5}) == gcp | {"h100": 1.5}
    on = "--on h100:1 --dtypes fp8"
    found = run(shlex.split(f"{TINY} {on} --price aws/spot")).out
    assert f"${h100.price('aws/spot'):.3g} a chip-hour\n" in found
    found = run(shlex.split(f"{TINY} {on}")).out
    assert f"${h100.dollars_per_hour:.3g} a chip-hour on demand (the middle of 5 cl" in found


def test_layouts_that_nobody_measured_are_told() -> None:
    asked = f"{TRAFFIC} --on h100:2 --dtypes fp8 --price h100=3 --requests 400 --ttft 2s"
    page = run(shlex.split(f"{asked} --layout pp=2")).out
    assert "extrapolates: nobody measured pp=2; of what was tried" in page
    assert "TTFT: engine any on gpu" in page and "chance that 95% keep it" in page
    found = json.loads(run(shlex.split(f"{asked} --json")).out)["fleet"]
    assert found["unseen"] == [] and "pp" not in found["layout"] and found["ttft_spread"] > 0


@pytest.mark.parametrize("flags", ["--osl 1", "--isl 1", "--hit-rate 0.9"])
def test_odd_traffic_still_have_an_answer(flags: str) -> None:
    outcome = run(shlex.split(f"{TINY} --ttft 9s --tpot 9s {flags}"))
    assert outcome.code == 0, outcome.err


def test_serve_has_its_own_flags_and_must_come_right_after_plan() -> None:
    assert "--ttft" in candidates(["plan", "serve", "--t"])
    assert "--ttft" not in candidates(["plan", "train", "--t"])
    late = run(shlex.split("plan --on v5e --batch 1 --seq 1 serve llama3-8b"))
    assert late.code == 2 and "right after plan" in late.err


def test_slices_are_named_as_anywhere_else() -> None:
    pages = [run(shlex.split(TINY.replace("v5e:1x1,v5e:2x2", on))) for on in ("v5e-4", "v5e:2x2")]
    assert pages[0].out == pages[1].out and pages[0].code == 0


def test_its_first_example_runs() -> None:
    parser = verb_parser("plan serve", load_verb("plan serve"))
    assert run(shlex.split(parser.examples[0])[1:]).code == 0


@pytest.mark.parametrize("to", ["vllm", "sglang", "kubernetes"])
def test_a_fleet_goes_from_plan_to_export(to: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(run(shlex.split(f"{TINY} --on h100:1 --dtypes fp8 --price h100=3 --json")).out)
    outcome = run(["export", str(path), "--to", to])
    assert outcome.code == 0, outcome.out
    assert "--max-model-len" in outcome.out or "--context-length" in outcome.out
    assert run(["export", "--to", to]).code == 2


@pytest.mark.parametrize(
    ("layout", "because"),
    [
        ("tp=1", "it is the fleet above"),
        ("tp=4", "the chip-seconds, at least"),
        ("tp=16", "has 16 chips, v5e:2x2 has 4"),
    ],
)
def test_a_layout_that_was_not_chosen_has_its_reason(layout: str, because: str) -> None:
    found = document(f"--why-not {layout}")
    asked = found["why_not"]
    assert asked["layout"] == layout and because in asked["because"]
    if asked["fleet"]:
        assert asked["fleet"]["dollars_per_hour"] >= found["fleet"]["dollars_per_hour"]


def test_a_chip_is_tied_with_the_cheapest_within_their_bars_together() -> None:
    """With a price that makes the other chip a little, then much dearer."""
    for price, word in ((2, "tied"), (60, "dearer")):
        line = f"{TRAFFIC} --dtypes int8 --requests 400 --on v5e:1x1,h100:1 --price h100={price}"
        table = run(shlex.split(line)).out.split("chip  fleet")[1].splitlines()
        standing = {row.split()[0]: row.split()[-1] for row in table[2:4]}
        assert standing == {"v5e": "cheapest", "h100": word}


def test_uneven_experts_are_told_on_the_page_and_in_the_document() -> None:
    asked = "frontier qwen3-30b-a3b --on h100:4 --layout dp=4,ep=4 --context 1024 --most 8"
    flags = "--dtypes fp8 --expert-skew 0.8 --redundant-experts 4"
    page = run(shlex.split(f"{asked} {flags}"))
    assert "expert loads of skew 0.8, EPLB with 4 redundant; the busiest of 4 ranks" in page.out
    found = json.loads(run(shlex.split(f"{asked} {flags} --json")).out)["curves"][0]["experts"]
    assert found["redundant"] == 4 and found["balancedness"] == 1 / found["busiest"]
    simulated = "simulate qwen3-30b-a3b --on h100:4 --layout dp=4,ep=4 --rate 5 --isl 64 --osl 8"
    told = json.loads(run(shlex.split(f"{simulated} --requests 50 {flags} --json")).out)
    assert told["experts"] == found
    refused = run(shlex.split(f"{asked} --redundant-experts 3"))
    assert refused.code == 2 and "hint: take --redundant-experts 4" in refused.err


def test_adapters_are_told_and_cost_memory_of_the_cache() -> None:
    plain, found = document("--policy continuous"), document("--adapters 200 --policy continuous")
    told = {"count": 200, "rank": 16, "resident": 200}
    assert found["fleet"]["adapters"] == told and "adapters" not in plain["fleet"]
    assert found["fleet"]["pool_tokens"] < plain["fleet"]["pool_tokens"]
    page = run(shlex.split(f"{TINY} --adapters 200"))
    assert "200 LoRA adapters of rank 16" in page.out and "--adapters 200" in page.err
