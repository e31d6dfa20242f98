"""Priorities: who goes first, by the formula of a queue, and latencies of each class."""

import json
import math
from pathlib import Path
from random import Random

import numpy as np
import pytest

from rooflight.batching.request import Limits
from rooflight.cli.main import main
from rooflight.errors import ParseError
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.replica import Ticket
from rooflight.plan.serving.simulate.run import Simulation, simulate
from rooflight.plan.serving.simulate.tally import Slo, Tally
from rooflight.plan.serving.simulate.trace import RequestTrace

from .test_simulate import LinearCost

HEADER = "arrival_s,input_tokens,output_tokens,priority\n"


def served(load: float, urgent: float, count: int = 40_000) -> Simulation:
    """A prompt a step of one second, Poisson; so many of them of the first class."""
    draw, now, arrivals = Random(4), 0.0, list[Arrival]()
    for _ in range(count):
        now += draw.expovariate(load)
        arrivals.append(Arrival(now, 16, 1, priority=0 if draw.random() < urgent else 5))
    limits = Limits(1, 16, 4, 16, max_waiting=count)
    return simulate(arrivals, cost=LinearCost(1.0), limits=limits, slo=Slo(ttft_s=4.0))


@pytest.mark.parametrize(("load", "urgent"), [(0.5, 0.5), (0.8, 0.2), (0.8, 0.6)])
def test_each_class_waits_as_the_formula_of_a_queue_says(load: float, urgent: float) -> None:
    """Cobham, M/D/1 without preemption: W = R / ((1 - all before)(1 - with the class))."""
    first, last = served(load, urgent).by_priority
    assert first.ttft and last.ttft and (first.priority, last.priority) == (0, 5)
    rest = load / 2
    waits = rest / (1 - load * urgent), rest / ((1 - load * urgent) * (1 - load))
    assert first.ttft.mean - 1 == pytest.approx(waits[0], rel=0.05)
    assert last.ttft.mean - 1 == pytest.approx(waits[1], rel=0.1)


def test_classes_add_up_to_all_requests() -> None:
    found = served(0.9, 0.3)
    assert found.ttft
    classes = [one for one in found.by_priority if one.ttft]
    assert sum(c.num_finished for c in classes) == found.num_finished == 40_000
    assert sum(c.num_good for c in classes) == found.num_good
    mean = sum(c.ttft.mean * c.num_finished for c in classes if c.ttft) / found.num_finished
    assert mean == pytest.approx(found.ttft.mean)
    assert classes[0].good_share > found.good_share > classes[1].good_share
    assert served(0.9, 1.0, 2000).by_priority == ()


def test_quantiles_of_a_class_are_those_of_its_requests_alone() -> None:
    draw, tally = Random(8), Tally(Slo(ttft_s=0.5))
    times: dict[int, list[float]] = {0: [], 1: [], 7: []}
    for id in range(20_000):
        priority = draw.choice((0, 1, 1, 7))
        first_s = draw.expovariate(1 + priority)
        ticket = Ticket(id, Arrival(0.0, 8, 3, priority=priority))
        ticket.first_s = first_s
        times[priority].append(first_s)
        tally.finish(ticket, first_s + 1.0)
    tally.reject(Ticket(0, Arrival(0.0, 8, 3, priority=9)))
    *classes, rejected = tally.by_priority()
    for one, (priority, own) in zip(classes, times.items(), strict=True):
        assert (one.priority, one.num_finished) == (priority, len(own)) and one.ttft
        assert one.ttft.p95 == pytest.approx(np.sort(own)[math.ceil(0.95 * len(own)) - 1])
        assert one.num_good == sum(s <= 0.5 for s in own)
    assert (rejected.priority, rejected.num_rejected, rejected.ttft) == (9, 1, None)


def test_a_trace_has_priorities_and_the_page_tells_them_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{i / 50},400,20,{'' if i % 4 else 3}" for i in range(400)]
    trace.write_text(HEADER + "\n".join(rows))
    assert [a.priority for a in RequestTrace(trace).arrivals()][:5] == [3, 0, 0, 0, 3]
    asked = ["simulate", "llama3-8b", "--on", "v5e:2x2", "--trace", str(trace), "--rows", "8"]
    main(asked)
    assert "TTFT class 0" in (page := capsys.readouterr().out) and "E2E class 3" in page
    main([*asked, "--json"])
    first, last = json.loads(capsys.readouterr().out)["classes"]
    assert first["ttft"]["p95_s"] < last["ttft"]["p95_s"]
    assert (first["num_finished"], last["num_finished"]) == (300, 100)
    trace.write_text(HEADER + "0,10,10,-5\n")  # before those that have none
    assert [a.priority for a in RequestTrace(trace).arrivals()] == [-5]
    trace.write_text(HEADER + "".join(f"{i},40,2,{i}\n" for i in range(50)))
    main(asked)
    assert capsys.readouterr().out.count("TTFT class") == 6  # three from either end
    trace.write_text(HEADER + "0,10,10,1.5\n")
    with pytest.raises(ParseError, match=r"priority 1\.5 is not a whole number"):
        list(RequestTrace(trace).arrivals())
