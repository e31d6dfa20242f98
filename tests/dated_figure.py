"""Figures of this machine in the docs: written by the full test that measures them, never typed."""

import os
import re
from datetime import date
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def write_figure(page: str, name: str, text: str) -> None:
    """Puts today's figure between its marks, if `ROOFLIGHT_UPDATE_GOLDEN` is set."""
    if not os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        return
    path = DOCS / page
    whole, count = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- end -->)",
        lambda m: f"{m[1]}{text}\n{m[2]}",
        path.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    assert count == 1, f"{page} has no marks for {name}"
    path.write_text(whole, encoding="utf-8")


def today() -> str:
    return str(date.today())
