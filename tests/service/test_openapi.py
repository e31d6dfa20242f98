"""The OpenAPI document, and a fuzzer that reads it and tries to break what it describes."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .server_process import Server, start_server

pytest.importorskip("schemathesis")
# Data that follows the schema may still be refused: lengths are bounded together.
_LEFT_OUT = "positive_data_acceptance"
# Besides those it knows: too late, too large, of another kind.
_SETTINGS = """
[checks.negative_data_rejection]
expected-statuses = [400, 404, 408, 413, 415]
"""


@pytest.fixture(scope="module")
def fuzzed(folder: Path) -> Iterator[Server]:
    """Texts are short, so that thousands of them are quick."""
    sizes = ("--block-tokens", "16", "--max-tokens", "16")
    with start_server(folder, *sizes, name="fuzzed") as server:
        yield server


def fuzz(server: Server, folder: Path, *words: str) -> int:
    """Runs the fuzzer; how many requests it sent."""
    url = f"http://{server.client.host}:{server.client.port}/openapi.json"
    settings = folder / "settings.toml"
    settings.write_text(_SETTINGS)
    program = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings)]
    command = [*program, "run", url, *words, "--seed", "1"]
    done = subprocess.run(
        [*command, "--exclude-checks", _LEFT_OUT, "--no-shrink", "--suppress-health-check", "all"],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert server.client.get("/health").status == 200 and server.client.complete().status == 200
    assert not any(line["event"] == "bug" for line in server.lines())
    found = re.search(r"(\d[\d,]*) generated", done.stdout)
    assert found is not None, done.stdout[-2000:]
    return int(found[1].replace(",", ""))


def test_a_fuzzer_finds_nothing(server: Server, tmp_path: Path) -> None:
    """One change to a valid body after another; texts that take longer are cut off."""
    cut = ("-H", "X-Request-Timeout: 0.05")
    assert fuzz(server, tmp_path, "--phases", "coverage", *cut) > 400


@pytest.mark.full
def test_a_fuzzer_finds_nothing_in_ten_thousand_requests(fuzzed: Server, tmp_path: Path) -> None:
    assert fuzz(fuzzed, tmp_path, "--phases", "coverage,fuzzing", "-n", "2500") > 10_000
