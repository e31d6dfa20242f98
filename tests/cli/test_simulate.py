"""`rooflight simulate`: the answer, its exit code, its document, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from .command import run

BASE = ["simulate", "llama3-8b", "--on", "v5e:2x4", "--dtypes", "int8/bf16/bf16"]
APART = ["--replicas", "2", "--policy", "disaggregated"]
LOAD = ["--rate", "20", "--isl", "512", "--osl", "32", "--requests", "300"]


def test_the_answer_names_the_share_that_got_what_was_promised() -> None:
    outcome = run([*BASE, *LOAD, "--ttft", "1s", "--tpot", "30ms"])
    assert outcome.code == 0
    assert outcome.out.startswith("100.00% of 300 requests within TTFT 1 s and TPOT 30 ms")
    assert "x the physics" in outcome.out and "floor" in outcome.out
    assert "--compare" in outcome.err


def test_steps_are_those_of_a_measured_engine_unless_the_roofs_are_asked_for() -> None:
    words = [*BASE, *LOAD, "--json"]
    usual, roofs = (json.loads(run(w).out) for w in (words, [*words, "--engine", "none"]))
    assert usual["calibration"] == "any on tpu" and usual["spread"] > 0
    assert roofs["calibration"] is roofs["spread"] is None
    assert usual["tpot"]["mean_s"] > roofs["tpot"]["mean_s"]
    assert "uncalibrated: the roofline bound" in run([*BASE, *LOAD, "--engine", "none"]).out


def test_a_broken_promise_is_a_finding() -> None:
    assert run([*BASE, *LOAD, "--tpot", "100us"]).code == 1


def test_the_document_holds_every_policy_and_its_floor(tmp_path: Path) -> None:
    plot = tmp_path / "latency.svg"
    words = [*BASE, *LOAD, "--replicas", "2", "--compare", "--json", "--plot", str(plot)]
    document = json.loads(run(words).out)
    assert set(document["compare"]) == {"continuous", "interleaved", "static", "disaggregated"}
    assert document["compare"]["disaggregated"]["prefill_replicas"] == 1
    for found in document["compare"].values():
        assert found["finished"] == 300
        assert found["e2e"]["mean_s"] >= found["floor"]["e2e_s"]
        assert found["ttft"]["p50_s"] <= found["ttft"]["p95_s"] <= found["ttft"]["p99_s"]
    assert "TTFT" in plot.read_text() and plot.read_text().startswith("<svg")


def test_one_replica_cannot_be_separated_but_the_others_are_compared() -> None:
    assert "needs a prefill and a generate replica" in run([*BASE, *LOAD, "--compare"]).out
    outcome = run([*BASE, *LOAD, "--policy", "disaggregated"])
    assert outcome.code == 2 and "--replicas 2" in outcome.err


def test_a_trace_is_simulated_with_its_shared_prefixes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    header = "arrival_s,input_tokens,output_tokens,prefix,prefix_tokens,tenant"
    lines = [f"{at / 10},700,9,system,640,{'ab'[at % 2]}" for at in range(40)]
    trace.write_text("\n".join([header, *lines]))
    document = json.loads(run([*BASE, "--trace", str(trace), "--json"]).out)
    assert document["requests"] == 40
    assert document["cached_tokens"] == 38 * 640  # the first of each tenant computes it


def simulated(clients: str) -> dict[str, Any]:
    words = [*BASE, "--concurrency", clients, "--isl", "512", "--osl", "64", "--json"]
    return json.loads(run(words).out)


def test_so_many_clients_have_so_many_requests_open() -> None:
    document = simulated("8")
    assert document["traffic"] == "8 open at all times, 512 in, 64 out"
    assert document["requests"] == 200 and document["finished"] == 200
    assert 6 < document["mean_rows"] <= 8
    more = simulated("30")
    assert more["requests"] == 300 and more["tpot"]["p50_s"] > document["tpot"]["p50_s"]


TURNS = ["--rate", "0.5", "--isl", "700", "--osl", "90", "--turns", "6", "--think", "5s"]


def test_sessions_are_simulated_turn_by_turn() -> None:
    words = [*BASE, *TURNS, "--requests", "300", "--prefix-tokens", "2000"]
    document = json.loads(run([*words, "--json"]).out)
    shared = "1 shared x 2000 tokens"
    assert document["traffic"] == f"0.5 sessions/s, 6 turns 5s apart, 700 in, 90 out, {shared}"
    assert document["requests"] == 300 == 50 * 6  # sessions
    assert document["input_tokens"] == 50 * sum(2700 + turn * 790 for turn in range(6))
    assert 0.7 < document["cached_tokens"] / document["input_tokens"] < 0.9
    assert document["ttft_later"]["p50_s"] < 1.3 * document["ttft_first"]["p50_s"]
    assert "hit_curve" not in document and document["restored_tokens"] == 0
    page = run(words).out
    assert "TTFT first" in page and "TTFT later" in page and "KV cache" not in page


def test_the_curve_marks_what_each_memory_holds() -> None:
    tiers = ["--hit-curve", "--host-memory", "10GB", "--ssd", "1TB"]
    words = [*BASE, *TURNS, "--requests", "300", *tiers]
    points = json.loads(run([*words, "--json"]).out)["hit_curve"]
    assert [p["tier"] for p in points if p["tier"]] == ["HBM", "with host memory", "with SSD"]
    shares = [p["share"] for p in points]
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] < 1
    hbm, both, all = (p["bytes"] for p in points if p["tier"])
    assert both - hbm == pytest.approx(10e9, rel=0.01)
    assert all - both == pytest.approx(1e12, rel=1e-3)
    page = run(words).out
    assert all_in_order(
        page, ["SSD of a replica", "KV cache", "HBM", "with host memory", "with SSD"]
    )


def all_in_order(text: str, words: list[str]) -> bool:
    places = [text.index(word) for word in words]
    return places == sorted(places)


def test_host_memory_serves_what_leaves_hbm() -> None:
    """A cache of two contexts: sessions push each other out."""
    crowd = ["--concurrency", "40", "--isl", "2000", *TURNS[4:], "--requests", "480", "--rows", "8"]
    small = ["simulate", "llama3-8b", "--on", "v5e:1x2", "--dtypes", "int8/bf16/bf16"]
    none, some = (
        json.loads(run([*small, *crowd, *more, "--json"]).out)
        for more in ([], ["--host-memory", "60GB"])
    )
    assert none["restored_tokens"] == 0 < some["restored_tokens"] < some["cached_tokens"]
    assert some["cached_tokens"] > 1.2 * none["cached_tokens"]
    assert some["ttft_later"]["mean_s"] < none["ttft_later"]["mean_s"]


def test_an_ssd_serves_what_leaves_host_memory() -> None:
    """Sessions come back after a minute; host memory has a context or two."""
    small = ["simulate", "llama3-8b", "--on", "v5e:1x2", "--dtypes", "int8/bf16/bf16"]
    calm = ["--rate", "0.1", "--isl", "2000", *TURNS[4:-1], "60s", "--requests", "480"]
    host, ssd = ["--rows", "8", "--host-memory", "5GB"], ["--ssd", "60GB"]
    little, both, slow = (
        json.loads(run([*small, *calm, *host, *more, "--json"]).out)
        for more in ([], ssd, [*ssd, "--ssd-bandwidth", "1GB"])
    )
    assert little["ssd_read_tokens"] == little["ssd_written_tokens"] == 0
    assert 0 < both["ssd_read_tokens"] <= both["cached_tokens"]
    assert both["cached_tokens"] > 2 * little["cached_tokens"]
    assert both["ttft_later"]["mean_s"] < 0.5 * little["ttft_later"]["mean_s"]
    assert slow["ttft_later"]["mean_s"] > both["ttft_later"]["mean_s"]


def test_a_recorded_session_waits_for_its_answers(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{at / 100},{900 + 300 * (at // 4)},200,{at % 4}" for at in range(40)]
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens,session", *lines]))
    document = json.loads(run([*BASE, "--trace", str(trace), "--json"]).out)
    assert document["requests"] == 40 and document["mean_rows"] <= 4
    assert document["ttft_later"] and document["cached_tokens"] > 30 * 768


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--rate", "20"], "--isl is missing"),
        ([*LOAD, "--think", "5s"], "--think is between turns"),
        ([*LOAD, "--turns", "3", "--think", "soon"], "--think 'soon' is not a time"),
        ([*LOAD, "--turns", "few"], "--turns 'few'"),
        (["--trace", "no.csv", "--turns", "3"], "--turns would be ignored"),
        ([*TURNS, *APART], "turns that wait"),
        ([*LOAD, "--ssd", "1TB"], "--ssd without --host-memory"),
        ([*LOAD, "--ssd-bandwidth", "9GB"], "--ssd-bandwidth without --ssd"),
        ([*LOAD, "--host-memory", "some"], "--host-memory 'some'"),
        (["--trace", "no.csv", "--rate", "20"], "--rate would be ignored"),
        (["--trace", "no.csv"], "cannot read"),
        ([*LOAD, "--replicas", "0"], "--replicas 0"),
        ([*LOAD, "--rows", "4096", "--step-tokens", "2048"], "above the budget"),
        ([*LOAD, "--ttft", "soon"], "--ttft 'soon' is not a time"),
        ([*LOAD, "--layout", "tp=4"], "is for 4 chips"),
        (
            [*LOAD, "--replicas", "3", "--policy", "disaggregated", "--prefill-replicas", "3"],
            "missing",
        ),
        (["--rate", "x", "--isl", "5", "--osl", "5"], "--rate 'x'"),
        ([*LOAD, "--concurrency", "4"], "--rate would be ignored"),
        (["--trace", "no.csv", "--concurrency", "4"], "--concurrency would be ignored"),
        (["--concurrency", "0", "--isl", "5", "--osl", "5"], "--concurrency 0"),
        (["--concurrency", "4", "--isl", "5", "--osl", "5", *APART], "closed loop"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], problem: str) -> None:
    outcome = run([*BASE, *words])
    assert outcome.code == 2 and problem in outcome.err
    assert "hint:" in outcome.err and not outcome.out


def test_a_model_that_leaves_no_room_for_a_cache_is_refused() -> None:
    outcome = run(["simulate", "llama3-70b", "--on", "v5e:2x2", *LOAD])
    assert outcome.code == 2 and "no room for a KV cache" in outcome.err
