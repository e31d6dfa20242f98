"""`rooflight bench`: the answer, its exit code, its document, and what it refuses."""

import json
from pathlib import Path

import pytest

from ..cli.command import run
from .scripted import scripted

LOAD = ["--rate", "100", "--isl", "16", "--osl", "4", "--requests", "20"]
PREDICTED = ["llama3-8b", "--on", "v5e:2x4"]
TRACE = Path(__file__).parents[1] / "cli" / "traces" / "three.csv"


def test_the_answer_names_the_share_that_got_what_was_promised() -> None:
    with scripted({"first_s": 0.02, "gap_s": 0.005}) as server:
        outcome = run(["bench", "--url", server.url, *LOAD, "--ttft", "60s", "--tpot", "20s"])
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("100.00% of 20 requests within TTFT 60 s and TPOT 20 s:")
    for word in ("scripted; 100 requests/s, 16 in, 4 out; seed 0", "ITL", "late (p50)", "other"):
        assert word in outcome.out


def test_a_broken_promise_and_errors_are_findings() -> None:
    with scripted({"first_s": 0.1}) as server:
        assert run(["bench", "--url", server.url, *LOAD, "--ttft", "1ms"]).code == 1
    with scripted({"status": 429}, {}) as server:
        outcome = run(["bench", "--url", server.url, *LOAD])
    assert outcome.code == 1
    assert 'error: 10 x http 429, such as: {"error": "scripted"}' in outcome.out


def test_the_document_holds_measured_and_predicted_and_the_plot_draws_both(tmp_path: Path) -> None:
    plot = tmp_path / "latency.svg"
    words = [*PREDICTED, *LOAD, "--json", "--plot", str(plot), "--tpot", "1s"]
    with scripted({"first_s": 0.02, "gap_s": 0.1}) as server:
        outcome = run(["bench", "--url", server.url, *words])
    document = json.loads(outcome.out)
    assert (document["requests"], document["finished"], document["errors"]) == (20, 20, {})
    assert document["short"] == 0
    assert (document["model"], document["takes_ids"]) == ("scripted", True)
    assert document["ttft_s"] is None and document["tpot_s"] == 1.0
    assert document["ttft"]["p50_s"] >= 0.02 and document["itl"]["p50_s"] >= 0.05
    assert 0 <= document["other_load"] < 1.2  # ticks are coarse
    predicted = document["predicted"]
    assert predicted["is_calibrated"] and predicted["on"] == "v5e:2x4"
    assert predicted["tpot"]["p50_s"] >= predicted["tpot"]["roof_s"] > 0
    drawn = plot.read_text()
    for name in ("TTFT", "TPOT", "E2E"):
        assert f">{name}<" in drawn and f">{name} predicted<" in drawn
    assert drawn.count("<polyline") == 7 and "TPOT SLO" in drawn  # ITL is not predicted


def test_a_recorded_trace_is_sent_at_its_times_with_its_lengths() -> None:
    with scripted() as server:
        outcome = run(["bench", "--url", server.url, "--trace", str(TRACE), "--json"])
        log = server.log()
    assert json.loads(outcome.out)["finished"] == 3
    asked = [(len(entry["body"]["prompt"]), entry["body"]["max_tokens"]) for entry in log]
    assert asked == [(64, 8), (100, 3), (30, 12)]
    assert log[2]["came_s"] - log[0]["came_s"] == pytest.approx(0.2, abs=0.05)


def test_a_dry_run_sends_nothing_and_predicts() -> None:
    words = ["bench", "--url", "http://127.0.0.1:9", "--rate", "inf", "--isl", "100", "--osl", "9"]
    outcome = run([*words, "--requests", "7", "--prefix-tokens", "64", "--dry-run", *PREDICTED])
    assert outcome.code == 0
    assert "7 requests to http://127.0.0.1:9 over 0.0 s, none sent: all at once" in outcome.out
    assert "700 tokens in (448 of them shared), 63 out; at most 7 due in one" in outcome.out
    assert "roof" in outcome.out and "calibrated: engine any on tpu" in outcome.out
    bare = run([*words, "--requests", "7", "--dry-run", *PREDICTED, "--engine", "none"])
    assert "uncalibrated: the roofline bound" in bare.out


def test_a_dry_run_of_a_closed_loop_has_no_times() -> None:
    words = ["bench", "--url", "http://127.0.0.1:9", "--isl", "100", "--osl", "9", "--dry-run"]
    page = run([*words, "--concurrency", "4"]).out
    assert "200 requests to http://127.0.0.1:9, none sent: 4 open at all times" in page
    assert "due" not in page


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_KEY", "secret")
    with scripted() as server:
        run(["bench", "--url", server.url, *LOAD, "--key-env", "BENCH_KEY", "--served", "mine"])
        entry = server.log()[0]
    assert entry["headers"]["authorization"] == "Bearer secret"
    assert entry["body"]["model"] == "mine"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--url", "127.0.0.1:8000", *LOAD], "is not the address of a server"),
        (["--url", "http://127.0.0.1:99999", *LOAD], "is not the address of a server"),
        (["--url", "http://127.0.0.1:9/v1", *LOAD], "is not the address of a server"),
        (["--url", "http://127.0.0.1:9"], "--rate is missing"),
        (["--url", "http://127.0.0.1:9", *LOAD, "--on", "v5e"], "a model is missing"),
        (["--url", "http://127.0.0.1:9", *LOAD, "llama3-8b"], "--on is missing"),
        (["--url", "http://127.0.0.1:9", *LOAD, "--key-env", "NO_SUCH_KEY"], "no such variable"),
        (["--url", "http://127.0.0.1:9", *LOAD, "--requests", "1e7"], "is not from 1 to"),
        (["--url", "http://127.0.0.1:9", *LOAD, "--time-limit", "soon"], "is not a time"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], problem: str) -> None:
    outcome = run(["bench", *words])
    assert outcome.code == 2 and problem in outcome.err
    assert "hint:" in outcome.err and not outcome.out


def test_a_server_that_is_not_there_is_said_in_words() -> None:
    outcome = run(["bench", "--url", "http://127.0.0.1:9", *LOAD])
    assert outcome.code == 1 and "names no model" in outcome.err and not outcome.out
