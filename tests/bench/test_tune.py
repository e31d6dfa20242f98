"""`rooflight tune`: settings predicted, started, measured, and predicted again by what was seen."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rooflight.api.replica import read_setup
from rooflight.errors import UsageError
from rooflight.measure.load.tune import PacedCost, filled, last_words, started

from ..cli.command import run
from ..dated_figure import write_figure
from ..service.tiny_model import make_folder

SERVER = Path(__file__).with_name("stepping_server.py")
STEP_S = 0.05
COMMAND = f"{sys.executable} {SERVER} {{port}} {{rows}} {{step_tokens}} {STEP_S}"
WORDS = ["tune", "llama3.2-1b", "--on", "v5e:1x1", "--command", COMMAND]
# Requests take 0.3 s and more: four rows cannot keep up, sixteen can.
LOAD = ["--rate", "30", "--isl", "64", "--osl", "6", "--requests", "45", "--ttft", "700ms"]


@pytest.mark.alone
def test_a_server_is_fitted_and_what_was_not_started_is_predicted() -> None:
    """The engine takes 50 ms a step whatever it does; v5e was planned to take five."""
    asked = [*WORDS, *LOAD, "--step-tokens", "64", "--json", "--rows"]
    found = json.loads(run([*asked, "4,8,16", "--tries", "2"]).out)["trials"]
    (unseen,) = [t for t in found if t["measured"] is None]
    assert not any("error" in fault for t in found for fault in t["faults"])  # no prompt twice
    for one in (t for t in found if t["measured"]):  # far from the plan, near once fitted
        measured, planned = one["measured"]["tpot"]["mean_s"], one["predicted"]["tpot"]["mean_s"]
        assert measured == pytest.approx(STEP_S, rel=0.3) and planned < measured / 3
        assert one["refitted"]["tpot"]["mean_s"] == pytest.approx(measured, rel=0.2)
    (last,) = json.loads(run([*asked, str(unseen["max_rows"]), "--tries", "1"]).out)["trials"]
    said, seen = unseen["refitted"], last["measured"]
    assert said["tpot"]["mean_s"] == pytest.approx(seen["tpot"]["mean_s"], rel=0.25)
    by_rows = {t["max_rows"]: t["measured"] or seen for t in found}
    assert by_rows[16]["good_share"] > by_rows[4]["good_share"]  # as the second prediction says
    again = {t["max_rows"]: t["refitted"]["good_share"] for t in found}
    assert again[16] > again[4]


@pytest.mark.alone
def test_the_page_says_what_was_best_what_was_expected_and_what_failed() -> None:
    words = [*WORDS, *LOAD, "--rows", "16,128", "--step-tokens", "64,128", "--tries", "3"]
    outcome = run(words)
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.startswith("best of 2 settings measured: tp=1, 16 rows,")
    assert "tp=1, 128 rows, 128 step tokens: the server ended: out of memory" in outcome.out
    assert "left out: tp=1, 128 rows, 64 step tokens: " in outcome.out
    assert "times as long as planned, and" in outcome.out and "measured TTFT" in outcome.out


def test_without_tries_nothing_is_started() -> None:
    words = [*WORDS[:-1], "false {port}", *LOAD, "--rows", "2,16", "--tries", "0"]
    outcome = run(words)
    assert outcome.code == 0 and outcome.out.startswith("best by prediction: ")
    assert "such as tp=1, " in outcome.out
    assert "measured" not in outcome.out


def test_a_server_that_never_comes_up_is_told_with_its_last_words() -> None:
    words = [
        *WORDS[:-1],
        f"{shlex.quote(sys.executable)} -c 'raise SystemExit(\"no such flag\")' {{port}}",
    ]
    outcome = run([*words, *LOAD, "--tries", "1"])
    assert outcome.code == 2 and "the server ended: no such flag" in outcome.err
    outcome = run([*WORDS[:-1], "no-such-server {port}", *LOAD, "--tries", "1"])
    assert outcome.code == 2 and "cannot be started" in outcome.err and "install it" in outcome.err
    outcome = run([*WORDS[:-1], "sleep 60", *LOAD, "--tries", "1"])
    assert outcome.code == 2 and "write --port {port}" in outcome.err
    slow = [*WORDS[:-1], "sleep 60 {port}"]
    outcome = run([*slow, *LOAD, "--tries", "1", "--start-timeout", "300ms"])
    assert outcome.code == 2 and "within 0.3 s" in outcome.err


def test_what_a_command_started_is_ended(tmp_path: Path) -> None:
    setup = read_setup("llama3.2-1b", on="v5e:1x1", rows=4, step_tokens=64)
    log = tmp_path / "log"
    shell = f"sh -c '{COMMAND} & echo $!; wait'"
    with started(shell, setup, log, within_s=60):
        (child,) = [int(line) for line in log.read_text().split()]
        os.kill(child, 0)
    until = time.monotonic() + 60  # a signal takes a moment to arrive
    while _runs(child):
        assert time.monotonic() < until, "what the command started still runs"
        time.sleep(0.01)


def test_a_command_that_is_ended_ends_its_server(tmp_path: Path) -> None:
    log, files = tmp_path / "log", f"{sys.executable} -u -m http.server {{port}}"
    log.touch()
    words = [*WORDS[:-1], f"sh -c 'exec 2> {log}; echo $$ >&2; exec {files}'", *LOAD]
    words += ["--rows", "1", "--step-tokens", "64", "--tries", "1"]
    with subprocess.Popen([sys.executable, "-m", "rooflight", *words]) as tuning:
        until = time.monotonic() + 60
        while "/ready" not in log.read_text():  # it is asked whether it is up
            assert time.monotonic() < until and tuning.poll() is None
            time.sleep(0.01)
        tuning.terminate()
        assert tuning.wait(60) == 128 + signal.SIGTERM
    assert not _runs(int(log.read_text().split()[0]))


def test_the_cause_is_told_though_a_server_says_much_after_it() -> None:
    """As an engine of vLLM in a child process: the server only says that the engine failed."""
    log = (
        "WARNING: there may be an OSError: not now\n(Engine) ValueError: no room for the KV cache\n"
    )
    log += 200 * "  File of a traceback, line 3, in run\n" + "RuntimeError: see root cause above\n"
    said = last_words(log)
    assert said.startswith("(Engine) ValueError: no room") and said.endswith("cause above")
    assert len(said) < 2100 and last_words("WARNING: all\nis said\n") == "WARNING: all\nis said"


def test_requests_that_fail_are_told_with_their_setting() -> None:
    words = [*WORDS, *LOAD, "--rows", "32", "--step-tokens", "64", "--tries", "1"]
    outcome = run(words)
    assert outcome.code == 1
    expected = "tp=1, 32 rows, 64 step tokens: error: 45 x http 429, such as:"
    assert expected in outcome.out, outcome.out + outcome.err


def test_a_server_that_wants_a_key_is_asked_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*WORDS[:-1], f"{COMMAND} secret", *LOAD, "--rows", "16", "--step-tokens", "64"]
    refused = run([*words, "--tries", "1"])
    assert refused.code == 1 and "--key-env NAME if it wants a key" in refused.err
    monkeypatch.setenv("TUNE_KEY", "secret")
    outcome = run([*words, "--tries", "1", "--key-env", "TUNE_KEY"])
    assert outcome.out.startswith("best of 1 setting measured:") and "error" not in outcome.out


def _runs(pid: int) -> bool:
    """Whether it does anything: nobody may have asked yet how it ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] not in "ZX"


def test_braces_that_no_setting_has_are_refused() -> None:
    setup = read_setup("llama3.2-1b", on="v5e:2x2", layout="tp=2,dp=2", rows=4, step_tokens=64)
    words = filled("serve --port {port} -tp {tp} --dp={dp} --rows {rows}", setup, 8000)
    assert words == ["serve", "--port", "8000", "-tp", "2", "--dp=2", "--rows", "4"]
    for command, why in (("serve", "no {port}"), ("{port} {batch}", "batch"), ("{port} {", "{")):
        with pytest.raises(UsageError, match=why):
            filled(command, setup, 8000)


class _Fixed:
    def seconds(self, **_: int) -> float:
        return 2.0

    def late_s(self, **_: int) -> float:
        return 1.0


def test_a_paced_cost_is_slower_and_takes_a_time_of_its_own() -> None:
    cost = PacedCost(_Fixed(), 1.5, 0.25)
    step = {"decode_rows": 1, "kv_tokens": 1, "prefill_tokens": 0, "prefill_kv_tokens": 0}
    assert cost.seconds(**step) == 3.25
    assert cost.late_s(prefill_tokens=1, prefill_kv_tokens=1) == 1.5


@pytest.mark.full
def test_our_own_server_is_tuned(tmp_path: Path) -> None:
    """More rows at once are better under a load that one cannot keep up with."""
    chip = tmp_path / "this-host.toml"
    assert run(["measure", "--devices", "1", "--write", str(chip)]).code == 0
    folder = make_folder(tmp_path / "tiny")
    serve = f"{sys.executable} -m rooflight serve {folder} --port {{port}} --rows {{rows}}"
    serve += " --step-tokens {step_tokens} --block-tokens 128 --max-tokens 512"
    words = ["tune", str(folder / "config.json"), "--on", "this-host", "--dtypes", "f32"]
    words += ["--command", serve, "--rows", "1,8", "--step-tokens", "128", "--tries", "2"]
    words += ["--rate", "inf", "--isl", "64", "--osl", "32", "--requests", "64", "--ttft", "60s"]
    done = subprocess.run(
        [sys.executable, "-m", "rooflight", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"ROOFLIGHT_CHIPS": str(chip)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    write_figure("bench.md", "tuned", f"```text\n{done.stdout.rstrip()}\n```")
    assert done.stdout.startswith("best of 2 settings measured: tp=1, 8 rows, 128 step tokens")
