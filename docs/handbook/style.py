"""The style sheet of pictures: the rules of our reports, on the ground of the theme."""

from pathlib import Path

from sphinx.application import Sphinx

from rooflight.ui.html.style import dark_picture_rules, picture_rules

FILE = "pictures.css"
_GROUND = """.drawn {
  --paper: var(--color-background-primary); --ink: var(--color-foreground-primary);
  --muted: var(--color-foreground-secondary); --grid: var(--color-background-border);
  --idle: var(--color-background-hover);
}"""


def picture_style() -> str:
    """CSS that nests: a reader may have chosen dark, or the system may have."""
    dark = dark_picture_rules()
    chosen = f'body[data-theme="dark"] .drawn {{\n{dark}\n}}'
    system = f'body:not([data-theme="light"]) .drawn {{\n{dark}\n}}'
    by_system = f"@media (prefers-color-scheme: dark) {{\n{system}\n}}"
    return "\n".join([_GROUND, f".drawn {{\n{picture_rules()}\n}}", chosen, by_system, ""])


def write_style(app: Sphinx) -> None:
    """Puts it beside the theme's own style sheets."""
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(picture_style(), encoding="utf-8")
