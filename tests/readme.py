"""Runs the commands of the README in an installed environment: `python tests/readme.py BIN`.

BIN is the folder of the environment's programs. Each command must print what the README shows.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import snippets

README = Path(__file__).parents[1] / "README.md"


def main(bin: Path) -> int:
    """The number of commands whose output differs."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    different = 0
    commands = snippets.commands(README)
    assert commands, "the README has no commands"
    for command in commands:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [bin / "rooflight", *command.argv],
                capture_output=True,
                text=True,
                cwd=folder,
                env=environment,
            )
        same = done.stdout.strip("\n") == command.output
        different += not same
        print("same     " if same else "DIFFERENT", command.line)
        if not same:
            print(done.stdout, done.stderr, sep="\n")
    return different


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()) != 0)
