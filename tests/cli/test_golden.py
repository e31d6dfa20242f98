"""What the commands print, word for word; ROOFLIGHT_UPDATE_GOLDEN=1 writes the files anew."""

import os
import shlex
from pathlib import Path

import pytest

from .command import run

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "overview": "--help",
    "chips": "chips",
    "chips_one": "chips v5e",
    "chips_verbose": "chips h100 -v",
    "chips_toml": "chips v5e --toml",
    "chips_json": "chips v5e --json",
    "slice_pod": "slice v5p:16x20x28",
    "slice_mesh": "slice v5e:16x16 --mesh X=4,Y=4,Z=16",
    "slice_switched": "slice h100:8x128 --mesh X=8,Y=128",
    "slice_two": "slice 2*v5e:16x16 --mesh X=2,Y=256",
    "slice_json": "slice v5e:4x4 --mesh X=16 --json",
    "roofline": "roofline --on v5e",
    "roofline_matmuls": "roofline --on v5p --dtype int8 --matmul 16x8192x8192 --matmul 4Kx8Kx8K",
    "roofline_pad": "roofline --on v5e --matmul 100x100x100 --pad --json",
    "collective_line": "collective all-gather --bytes 34MB --on v5e:4x4 --mesh X=4,Y=4 --axes X",
    "collective_switched": "collective all-reduce --bytes 1GB --on h100:8x16",
    "collective_json": "collective all-to-all --bytes 1GB --on v5p:4x4x4 --json",
    "error_verb": "chisp",
    "error_mesh": "slice v5e:4x4 --mesh X=4",
    "collective_help": "collective --help",
}


@pytest.mark.parametrize("name", CASES)
def test_output_is_as_in_the_golden_file(name: str) -> None:
    outcome = run(shlex.split(CASES[name]))
    text = f"$ rooflight {CASES[name]}\n{outcome.out}--- stderr, exit {outcome.code}\n{outcome.err}"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_has_its_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)
