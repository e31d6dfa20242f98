"""How a page looks: one style sheet for light, dark, print and narrow screens.

Pictures are drawn for white paper (`svg`); in the dark their ink, grid and lines are given other
colours here, so that the same picture serves as a file and in a page.
"""

from importlib.resources import files

from rooflight.ui.svg import marks as svg

# The palette where lines lie on a dark ground.
_ON_DARK = ("#5ab4f0", "#ff9450", "#3ccf9e", "#e79cc5", "#e0b040", "#9ad0f5")

_PAGE = (files("rooflight.ui.html") / "page.css").read_text("utf-8")


def picture_rules() -> str:
    """Rules that give the colours of a picture their page's own; a bar keeps its colour.

    Attributes of SVG elements yield to any rule. Words on a bar have colours of their own.
    """
    rules = [
        f'svg > rect[fill="{svg.PAPER}"], svg circle[fill="{svg.PAPER}"] {{ fill: var(--paper); }}',
        f'svg rect[stroke="{svg.PAPER}"] {{ stroke: var(--paper); }}',
        f'svg rect[fill="{svg.EMPTY}"] {{ fill: var(--idle); }}',
        f'svg line[stroke="{svg.GRID}"] {{ stroke: var(--grid); }}',
        f'svg text[fill="{svg.INK}"], svg circle[fill="{svg.INK}"] {{ fill: var(--ink); }}',
        f'svg [stroke="{svg.INK}"] {{ stroke: var(--ink); }}',
        f'svg text[fill="{svg.MUTED}"] {{ fill: var(--muted); }}',
        f'svg line[stroke="{svg.MUTED}"] {{ stroke: var(--muted); }}',
    ]
    return "\n".join(rules)


def dark_picture_rules() -> str:
    """In the dark, lines and their words take the brighter palette."""
    rules = [
        f'  svg [stroke="{light}"] {{ stroke: {dark}; }}\n'
        f'  svg text[fill="{light}"], svg circle[fill="{light}"] {{ fill: {dark}; }}'
        for light, dark in zip(svg.PALETTE, _ON_DARK, strict=True)
    ]
    return "\n".join(rules)


_DARK = "@media screen and (prefers-color-scheme: dark) {\n" + dark_picture_rules() + "\n}"
STYLE = "\n".join([_PAGE.strip(), picture_rules(), _DARK])


def as_file(picture: str) -> str:
    """An SVG that follows the reader's light or dark setting where no page says its colours."""
    colours = _PAGE.partition("* {")[0]
    style = f"<style>\n{colours}{picture_rules()}\n{_DARK}\n</style>"
    return picture.replace("</title>\n", f"</title>\n{style}\n", 1)
