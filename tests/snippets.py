"""The runnable parts of the documentation: console blocks and python blocks."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    """A page as a reader of the repository names it."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Command:
    """One `$ rooflight ...` line and the output the page shows."""

    line: str
    output: str

    @property
    def argv(self) -> list[str]:
        program, *argv = shlex.split(self.line)
        assert program == "rooflight", f"only rooflight commands are run: {self.line}"
        return argv


def commands(page: Path) -> list[Command]:
    found: list[Command] = []
    for block in _CONSOLE.findall(page.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.replace("\\\n", " ").partition("\n")
            found.append(Command(line, output.strip("\n")))
    return found


def examples(page: Path) -> list[str]:
    """Python blocks, doctest style."""
    return _PYTHON.findall(page.read_text())


def rewrite(page: Path, outputs: dict[str, str]) -> None:
    """Puts fresh outputs into a page's console blocks; the commands stay as written."""

    def block(match: re.Match[str]) -> str:
        parts = re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]
        shown: list[str] = []
        for part in parts:
            command = re.match(r"(?:.*\\\n)*.*\n", part)
            assert command
            line = command[0].replace("\\\n", " ").strip("\n")
            output = outputs[line]
            shown.append(f"$ {command[0]}{output}\n" if output else f"$ {command[0]}")
        return "```console\n" + "\n".join(shown) + "```"

    page.write_text(_CONSOLE.sub(block, page.read_text()))
