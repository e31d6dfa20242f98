"""Writes the explorer as a folder: a page for each view, the package, and Pyodide beside them.

A page has its form and no answer; `worker.js` loads Pyodide, which answers from the package.
"""

import json
import re
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import rooflight
from rooflight.errors import UsageError
from rooflight.ui.browser.page import home_page, view_page
from rooflight.ui.browser.view import View
from rooflight.ui.html.style import STYLE

_RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json")


def write_static(folder: Path, views: Sequence[View], pyodide: Path, numpy: str | None) -> None:
    """All files of the site; what else is in the folder stays."""
    assets = files("rooflight.ui.browser") / "assets"
    texts = {f"assets/{a.name}": a.read_text("utf-8") for a in assets.iterdir()}
    texts["assets/explore.css"] = f"{STYLE}\n{texts['assets/explore.css']}"
    has = {"numpy": numpy and Path(numpy).name, "answers": "rooflight.ui.static.here"}
    texts["static.json"] = json.dumps(has)
    texts["index.html"] = _moved(home_page(views), ".")
    for view in views:
        texts[f"{view.name}/index.html"] = _moved(view_page(views, view, {}, {}), "..")
    copied = {pyodide / name: f"pyodide/{name}" for name in (*_RUNTIME, "python_stdlib.zip")}
    copied |= {Path(numpy): Path(numpy).name} if numpy else {}
    for path in copied:
        if not path.is_file():
            hint = "`npm pack pyodide`, unpack it, and write --pyodide package"
            raise UsageError(f"there is no {path}", hint=hint)
    for name in (*texts, *copied.values()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for path, name in copied.items():
        shutil.copyfile(path, folder / name)
    source = Path(rooflight.__file__).parent
    with ZipFile(folder / "rooflight.zip", "w", ZIP_DEFLATED) as archive:
        for path in sorted(source.rglob("*.*")):
            if "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(source.parent))


def _moved(page: str, root: str) -> str:
    """Its addresses from where it lies, and the worker before the script that asks it."""
    page = re.sub("(?<=<noscript>).*?(?=</noscript>)", "<p>Answers need scripts here.</p>", page)
    page = re.sub('<img class="thumb"[^>]*>', "", page)  # no server draws them
    page = re.sub(r'(href|action)="/(\w*)(\?[^"]*)?"', rf'\1="{root}/\2/\3"', page)
    page = re.sub(r'(href|src)="/', rf'\1="{root}/', page).replace(f'"{root}//"', f'"{root}/"')
    script = f'<script type="module" src="{root}/assets/'
    return page.replace(script, f'{script}static.js"></script>\n{script}', 1)
