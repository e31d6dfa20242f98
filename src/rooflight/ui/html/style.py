"""How a page looks: one style sheet for light, dark, print and narrow screens.

Pictures are drawn for white paper (`svg`); in the dark their ink, grid and lines are given other
colours here, so that the same picture serves as a file and in a page.
"""

from rooflight.ui.svg import marks as svg

# The palette where lines lie on a dark ground.
_ON_DARK = ("#5ab4f0", "#ff9450", "#3ccf9e", "#e79cc5", "#e0b040", "#9ad0f5")

_PAGE = """
:root {
  --paper: #ffffff; --ground: #f5f7f9; --ink: #1f2933; --muted: #586472; --rule: #dde3e9;
  --grid: #e3e7eb; --idle: #eef1f4; --accent: #0067a3; --mark: #e8f3fb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #171c22; --ground: #0f1317; --ink: #e6ebf0; --muted: #a3b0bd; --rule: #2d3640;
    --grid: #2a323b; --idle: #252c34; --accent: #6cbcf3; --mark: #1b2d3d;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 78rem; background: var(--ground);
  color: var(--ink); font: 16px/1.55 -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial,
  sans-serif; overflow-wrap: break-word;
}
a { color: var(--accent); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: 0.5rem; background: var(--paper); padding: 0.3rem 0.8rem; }
h1 { font-size: clamp(1.4rem, 5vw, 2rem); line-height: 1.2; margin: 0.2rem 0 0.8rem; }
h2 { font-size: 1.3rem; margin: 0 0 0.6rem; }
.kicker { margin: 0; color: var(--muted); }
.answer { font-size: 1.15rem; margin: 0 0 0.6rem; max-width: 48rem; }
.note, figcaption, caption, .facts small { color: var(--muted); font-size: 0.9rem; }
.facts { display: grid; gap: 0.75rem; margin: 1.2rem 0; padding: 0;
  grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); }
.facts div { background: var(--paper); border: 1px solid var(--rule); border-radius: 8px;
  padding: 0.7rem 0.9rem; }
.facts dt { color: var(--muted); font-size: 0.9rem; }
.facts dd { margin: 0; font-size: 1.2rem; font-weight: 600; }
.facts small { display: block; font-weight: normal; line-height: 1.35; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; padding: 0; margin: 0 0 1.2rem;
  list-style: none; }
section { background: var(--paper); border: 1px solid var(--rule); border-radius: 8px;
  padding: 1.2rem; margin: 0 0 1.2rem; }
section > :last-child { margin-bottom: 0; }
p, ul { max-width: 48rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums;
  min-width: 100%; }
caption { text-align: left; padding-bottom: 0.4rem; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.7rem 0.35rem 0;
  border-bottom: 1px solid var(--rule); }
thead th { color: var(--muted); font-weight: 600; border-bottom: 2px solid var(--rule); }
tbody th { font-weight: 600; }
th.number, td.number { text-align: right; }
th, td { white-space: nowrap; }
td.words { white-space: normal; min-width: 9rem; }
tr.marked { background: var(--mark); }
th:first-child { padding-left: 0.5rem; }
th:last-child, td:last-child { padding-right: 0.5rem; }
figure { margin: 0 0 1rem; }
figcaption { max-width: 48rem; }
svg { display: block; width: 100%; height: auto; }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--accent); }
pre { overflow-x: auto; font-size: 0.8rem; line-height: 1.4; padding: 0.8rem; margin: 0.6rem 0 0;
  background: var(--ground); border-radius: 6px; }
dl.choices { margin: 0; max-width: 48rem; }
dl.choices dt { font-weight: 600; }
dl.choices dd { margin: 0 0 0.7rem; color: var(--muted); }
@media (max-width: 34rem) { section { padding: 0.9rem; } .facts { grid-template-columns: 1fr 1fr; }
  .facts dd { font-size: 1.1rem; } }
@media print {
  :root { --paper: #ffffff; --ground: #ffffff; --ink: #1f2933; --muted: #586472; --rule: #cfd6dd;
    --grid: #e3e7eb; --idle: #eef1f4; --accent: #1f2933; --mark: #eef1f4; }
  body { font-size: 10pt; max-width: none; padding: 0; }
  nav, .skip, #plan-file, details { display: none; }
  section { border: 0; padding: 0; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .scroll { overflow: visible; }
  svg { min-width: 0 !important; }
  table { font-size: 8pt; }
}
"""


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
