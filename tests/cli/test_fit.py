"""The verb `fit`: the verdict first, exit 1 on overflow, and a next command that works."""

import json
import shlex

import pytest

from rooflight.hardware.catalog import load_chip
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.memory.count import memory
from rooflight.plan.training.memory.job import Job
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.questions.fixes import fixes
from rooflight.units import format_si

from .command import run

WHERE = "fit train llama3-70b --layout fsdp=X --on v5p:8x8x8 --mesh X=512 --seq 8192"
SMALL = "fit train llama3-8b --layout dp=X --on v5e:4x4 --mesh X=16 --seq 4096 --recipe 18"

PIPE = (
    "fit train llama3-70b --layout fsdp=X,pp=Y --on v5p:4x4x4 --mesh X=16,Y=4 --batch 2Mi"
    " --seq 8192 --microbatches 16"
)


def job(remat: str) -> Job:
    graph = model_graph(load_model("llama3-70b"))
    layout, chip = parse_layout("fsdp=X"), load_chip("v5p")
    return Job(graph, layout, {"X": 512}, chip, batch=512, seq=8192, remat=REMATS[remat])


def test_the_first_line_is_the_verdict_and_each_component_has_a_row() -> None:
    outcome = run(f"{WHERE} --batch 4Mi".split())
    found = memory(job("block"))
    used = f"{format_si(found.total_bytes, 'B')} of {format_si(found.hbm_bytes, 'B')} per chip"
    assert outcome.code == 0
    assert outcome.out.startswith(f"FITS: {used}, ")
    for part in found.parts:
        assert f"\n{part.name} " in outcome.out and part.because in outcome.out


def test_json_has_what_the_library_has() -> None:
    outcome = run(f"{WHERE} --batch 4Mi --remat none --json".split())
    document, found = json.loads(outcome.out), memory(job("none"))
    assert outcome.code == 1 and document["fits"] is False
    assert document["total_bytes"] == found.total_bytes
    assert {p["name"]: p["nbytes"] for p in document["parts"]} == {
        p.name: p.nbytes for p in found.parts
    }
    assert [f["change"] for f in document["fixes"]] == [f.change for f in fixes(job("none"))]


def test_overflow_exits_1_with_the_largest_terms_and_ranked_fixes() -> None:
    outcome = run(f"{WHERE} --batch 4Mi --remat none".split())
    assert outcome.code == 1 and outcome.out.startswith("DOES NOT FIT: 192 GB of 103 GB per chip")
    assert "\nlargest: saved activations 180 GB, workspace 6.3 GB, gathered weights" in outcome.out
    rows = outcome.out.partition("one change")[2].splitlines()[2:]
    assert rows[0].startswith("remat block") and "+24% FLOPs" in rows[0]
    verdicts = ["fits" in row for row in rows]
    assert verdicts == sorted(verdicts, reverse=True)


@pytest.mark.parametrize("line", (f"{WHERE} --batch 4Mi --remat none", f"{SMALL} --batch 512Ki"))
def test_the_next_command_of_an_overflow_fits(line: str) -> None:
    first = run(line.split())
    assert first.code == 1
    command = first.err.strip().removeprefix("next: rooflight ")
    assert command.startswith("fit train ")
    assert run(shlex.split(command)).code == 0


def test_where_no_change_is_enough_alone_those_that_are_enough_together_are_named() -> None:
    out = run(f"{SMALL} --batch 512Ki".split()).out
    assert "fits with all of: layout fsdp=X; microbatches 8" in out


def test_the_next_command_of_a_fit_explains_the_layout() -> None:
    outcome = run(f"{WHERE} --batch 4Mi".split())
    command = outcome.err.strip().removeprefix("next: rooflight ")
    assert command.startswith("explain train ") and run(shlex.split(command)).code == 0


@pytest.mark.parametrize(
    ("asked", "first"),
    (
        ("--solve batch", "LARGEST BATCH: "),
        ("--batch 4Mi --solve seq", "LONGEST SEQUENCES: "),
    ),
)
def test_what_solve_finds_fits(asked: str, first: str) -> None:
    outcome = run(f"{WHERE} {asked} --json".split())
    document = json.loads(outcome.out)
    assert outcome.code == 0 and document["fits"]
    assert run(f"{WHERE} {asked}".split()).out.startswith(first)
    again = WHERE.replace("--seq 8192", f"--seq {document['seq']} --batch {document['batch']}")
    assert json.loads(run(f"{again} --json".split()).out)["parts"] == document["parts"]


def test_what_fits_at_no_batch_exits_1_and_shows_the_smallest() -> None:
    outcome = run(f"{SMALL} --solve batch".split())
    assert outcome.code == 1 and outcome.out.startswith("DOES NOT FIT AT ANY BATCH: ")


def test_a_pipeline_names_the_stage_that_needs_most_and_lists_all() -> None:
    out = run(f"{PIPE} --by-stage".split()).out
    assert "16 microbatches through 4 stages, 1f1b; stage 0 with 20 layers needs most" in out
    rows = out.partition("\nstage ")[2].splitlines()[2:]
    assert [row.split()[:2] for row in rows] == [[str(stage), "20"] for stage in range(4)]
    document = json.loads(run(f"{PIPE} --json".split()).out)
    totals = [stage["total_bytes"] for stage in document["stages"]]
    assert document["total_bytes"] == max(totals) and totals.index(max(totals)) == 0


def test_the_next_command_of_a_pipeline_that_overflows_fits() -> None:
    first = run(f"{PIPE} --remat none --schedule interleaved".split())
    assert first.code == 1
    command = first.err.strip().removeprefix("next: rooflight ")
    assert "--schedule interleaved --virtual 2" in command
    assert run(shlex.split(command)).code == 0


def test_the_fewest_chips_fit_and_fewer_do_not() -> None:
    ask = "fit train llama3-70b --layout fsdp=X,tp=Y --on v5p:4x4x4 --mesh X=8,Y=8"
    ask += " --batch 4Mi --seq 8192"
    document = json.loads(run(f"{ask} --remat dots --solve chips --json".split()).out)
    assert document["fits"] and document["chips"] == 8 * document["axes"]["X"]
    assert run(f"{ask} --remat dots --solve chips".split()).out.startswith("FEWEST CHIPS: ")
    assert run(f"{ask} --remat dots".split()).code == 1  # 64 are fewer


def test_a_framework_adds_its_own_components() -> None:
    out = run(f"{PIPE} --framework torchtitan --recipe f32".split()).out
    assert "recipe f32 as in torchtitan" in out and "\nallocator " in out


def test_offload_states_its_time_on_pcie() -> None:
    out = run(f"{WHERE} --batch 4Mi --remat offload".split()).out
    assert "PCIe time of 1.34 s per step for 10.7 GB per chip" in out


@pytest.mark.parametrize(
    "line",
    (
        WHERE,
        f"{WHERE} --batch 4Mi --solve batch",
        f"{WHERE} --batch 4000",
        f"{WHERE} --batch 1e20",
        f"{WHERE} --batch 4Mi --remat gat+up",
        f"{WHERE} --batch 4Mi --recipe 17",
        f"{WHERE} --batch 4Mi --zero 4",
        f"{WHERE} --batch 4Mi --microbatches 3",
        f"{WHERE} --batch 4Mi --microbatches 0",
        f"{WHERE} --batch 4Mi --virtual 2",
        f"{WHERE} --batch 4Mi --schedule 1f2b",
        f"{WHERE} --batch 4Mi --framework megatorn",
        f"{PIPE.replace('Y=4', 'Y=128').replace('X=16', 'X=4').replace('4x4x4', '8x8x8')}",
        f"{WHERE} --batch 4Mi --solve chips".replace("fsdp=X", "tp=X"),
        f"{WHERE} --batch 2Mi",
        f"{WHERE} --batch 4Mi".replace("fsdp=X", "fsdp=Q"),
        "fit train llama3-8b --layout dp=X --on this-host --batch 4096 --seq 4096",
    ),
)
def test_a_wrong_request_exits_2_with_a_hint(line: str) -> None:
    outcome = run(line.split())
    assert (outcome.code, outcome.out) == (2, "") and "\n\nhint: " in outcome.err


NODES = "llama3-70b --on h100:8x4 --batch 1Mi --seq 8192"


@pytest.mark.parametrize("layout", ("tp=8@node,pp=2,vp=5,dp=2", "tp=8,pp=2,dp=2,remat=block"))
def test_a_layout_by_degrees_holds_what_its_forecast_says(layout: str) -> None:
    asked = f"{NODES} --layout {layout} --json".split()
    held = json.loads(run(["fit", "train", *asked]).out)
    said = json.loads(run(["forecast", *asked]).out)["forecast"]
    assert held["total_bytes"] == said["hbm_bytes"]
    for name in ("layout", "mesh", "remat", "microbatches", "schedule", "virtual"):
        assert held[name] == said[name], name
    assert held["fits"]
    assert held["framework"] == "megatron"
    assert ("vp=5" in layout) == (held["virtual"] == 5)


def test_options_beside_degrees_are_those_that_are_asked() -> None:
    layout = "--layout tp=8,pp=2,dp=2 --remat block --microbatches 32 --virtual 5 --zero 0"
    mine = run(f"fit train {NODES} {layout} --recipe 16 --framework megatron --json".split())
    mesh = f"--layout dp=Z,sp=Y,pp=P --mesh {json.loads(mine.out)['mesh']}"
    options = "--remat block --microbatches 32 --schedule interleaved --virtual 5 --recipe 16"
    theirs = run(f"fit train {NODES} {mesh} {options} --framework megatron --json".split())
    for name in ("total_bytes", "parts", "zero", "virtual"):
        assert json.loads(mine.out)[name] == json.loads(theirs.out)[name]
    closed = run(f"fit train {NODES} {layout} --framework none --json".split())
    by_axes = run(f"fit train {NODES} {mesh} {options.replace('16', '10')} --json".split())
    assert json.loads(closed.out)["parts"] == json.loads(by_axes.out)["parts"]


def test_what_does_not_fit_lies_where_people_would_put_it() -> None:
    asked = f"fit train {NODES} --layout tp=8,dp=4 --json"
    held = run(asked.split())
    assert held.code == 1 and "Y=8@node" in json.loads(held.out)["mesh"]


def test_degrees_that_fill_no_slice_are_refused() -> None:
    refused = run(f"fit train {NODES} --layout tp=3".split())
    assert refused.code == 2 and "no placement of tp=3 divides" in refused.err
    placed = run(f"fit train {NODES} --layout tp=8,dp=4 --mesh X=32".split())
    assert placed.code == 2 and "degrees make their own mesh" in placed.err


def test_the_largest_batch_of_degrees_fits() -> None:
    asked = "fit train llama3-70b --on h100:8x4 --seq 8192 --layout tp=8,pp=2,dp=2 --remat block"
    found = json.loads(run(f"{asked} --solve batch --json".split()).out)
    assert found["fits"] and found["remat"] == "block"
    for times, code in ((1, 0), (2, 1)):
        more = f"{asked} --microbatches 1 --batch {times * found['batch']}"
        assert run(more.split()).code == code


def test_without_a_layout_the_best_plan_is_counted() -> None:
    where = "llama3-8b --on h100:8x2 --batch 1Mi --seq 8192"
    plan = json.loads(run(f"plan train {where} --json".split()).out)
    found = json.loads(run(f"fit train {where} --json".split()).out)
    assert (found["layout"], found["mesh"]) == (plan["layout"], plan["mesh"])
    assert found["total_bytes"] == sum(part["nbytes"] for part in plan["memory"]["parts"])
    refused = run(f"fit train {where} --remat dots".split())
    assert refused.code == 2 and "--remat belongs to a --layout" in refused.err


CHANCE = (
    "fit llama3-70b --layout dp=X,sp=Y,pp=Z --on h100:8x8 --mesh X=2,Y=8,Z=4 --batch 1Mi --seq 8192"
    " --microbatches 32 --recipe 18 --zero 1 --remat none --framework megatron"
)


def test_a_framework_with_measured_runs_has_a_chance_to_fit() -> None:
    page = json.loads(run(f"{CHANCE} --json".split()).out)
    low, high = page["between_bytes"]
    assert low < page["total_bytes"] < high < page["hbm_bytes"] and 0.95 < page["chance"] < 1
    said = run(CHANCE.split()).out.splitlines()[1]
    runs = page["spread"]["num_runs"]
    chance = "over 99%" if page["chance"] > 0.995 else f"{page['chance']:.0%}"  # never certain
    assert said.startswith(f"{chance} chance to fit (90% between ")
    assert said.endswith(f"by {runs} measured runs)")


def test_settings_of_a_run_are_counted() -> None:
    plain = json.loads(run(f"{CHANCE} --json".split()).out)
    found = json.loads(run(f"{CHANCE}+unfused-attention --json".split()).out)
    assert found["framework"] == "megatron+unfused-attention"
    assert found["total_bytes"] > 2 * plain["total_bytes"] and found["chance"] < 0.01


def test_without_measured_runs_there_is_no_chance() -> None:
    page = json.loads(run(f"{WHERE} --batch 4Mi --json".split()).out)
    assert page["chance"] is None and page["between_bytes"] is None
