"""Which device holds what of a sharded array, as text and as SVG.

In: a `ShardPicture`, the array cut into blocks and the holders of each. Out: a grid of the last
two dims, one panel for each block of the dims before them.
"""

import colorsys
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from rooflight.ui.svg import marks as svg

_MAX_PANELS = 8
_PANELS_A_ROW = 4
_MAX_BLOCKS = 16  # a dim with more blocks shows its first ones and its last
_MARGIN = 24
_GUTTER = 40  # room for a panel's row numbers
_HEADER = 44  # room for a panel's name, dim and column numbers


@dataclass(frozen=True, slots=True)
class ShardPicture:
    """An array cut into `block_counts[i]` blocks along `dims[i]`, and who holds each block."""

    title: str
    dims: tuple[str, ...]
    block_counts: tuple[int, ...]
    holders: Mapping[tuple[int, ...], tuple[str, ...]]

    @property
    def caption(self) -> str:
        """How many blocks there are and how often each is held."""
        copies = sorted({len(ids) for ids in self.holders.values()})
        many = f"{copies[0]} to {copies[-1]}" if len(copies) > 1 else str(copies[0])
        blocks = math.prod(self.block_counts)
        each = "1 block" if blocks == 1 else f"{blocks} blocks, each"
        return f"{each} on {many} device{'' if copies == [1] else 's'}"


@dataclass(frozen=True, slots=True)
class _BlockGrid:
    """A grid of blocks: None where rows or columns are left out."""

    name: str
    rows: Sequence[int | None]
    cols: Sequence[int | None]
    holders: Mapping[tuple[int, int], tuple[str, ...]]


def name_holders(ids: Sequence[str], limit: int = 4) -> str:
    """Device ids joined by commas, the middle left out beyond `limit`.

    >>> name_holders(["0", "1"]), name_holders([str(i) for i in range(32)])
    ('0,1', '0,1,..,31')
    """
    return ",".join(ids if len(ids) <= limit else [*ids[: max(1, limit - 2)], "..", ids[-1]])


def _shown(count: int, limit: int) -> list[int | None]:
    """Indices to draw; None stands for those left out."""
    return [*range(count)] if count <= limit else [*range(max(1, limit - 2)), None, count - 1]


def _panels(picture: ShardPicture, *, max_cols: int) -> list[_BlockGrid]:
    """The last two dims as grids, one for each block of the dims before; a vector is one row."""
    rank = len(picture.dims)
    counts = (1, 1, *picture.block_counts)
    rows, cols = _shown(counts[-2], _MAX_BLOCKS), _shown(counts[-1], max_cols)
    leading = list(product(*(range(n) for n in picture.block_counts[:-2])))
    panels: list[_BlockGrid] = []
    for number in _shown(len(leading), _MAX_PANELS):
        if number is None:
            panels.append(_BlockGrid("..", (), (), {}))
            continue
        lead = leading[number]
        cells = product((r for r in rows if r is not None), (c for c in cols if c is not None))
        grid = {rc: picture.holders[(*lead, *rc)[len(lead) + 2 - rank :]] for rc in cells}
        panels.append(_BlockGrid(_panel_name(picture, lead), rows, cols, grid))
    return panels


def _panel_name(picture: ShardPicture, lead: Sequence[int]) -> str:
    return ", ".join(f"{d} block {i}" for d, i in zip(picture.dims, lead, strict=False))


def _across_and_down(picture: ShardPicture) -> tuple[str, str]:
    dims = ("", "", *picture.dims)
    return dims[-1], dims[-2]


def shard_text(picture: ShardPicture, *, width: int = 100) -> str:
    """The picture for a terminal, at most about `width` wide.

    >>> print(shard_text(ShardPicture("A[I_X]", ("I_X",), (2,), {(0,): ("0",), (1,): ("1",)})))
    A[I_X]: 2 blocks, each on 1 device
    <BLANKLINE>
         I_X
         0   1
       +---+---+
       | 0 | 1 |
       +---+---+
    """
    across, down = _across_and_down(picture)
    cell = max(len(name_holders(ids)) for ids in picture.holders.values())
    gutter = len(down) + len(str((1, 1, *picture.block_counts)[-2])) + 2
    max_cols = max(3, (width - gutter) // (cell + 3))
    lines = [f"{picture.title}: {picture.caption}"]
    for panel in _panels(picture, max_cols=max_cols):
        lines += ["", panel.name] if panel.name else [""]
        lines += _panel_lines(panel, across, down, gutter, cell) if panel.rows else []
    return "\n".join(lines)


def _panel_lines(panel: _BlockGrid, across: str, down: str, gutter: int, cell: int) -> list[str]:
    pad = " " * gutter
    rule = pad + "+" + "+".join("-" * (cell + 2) for _ in panel.cols) + "+"
    lines = [f"{pad}  {across}"] if across else []
    heads = "".join(f"  {number:<{cell}} " for number in _numbers(panel.cols))
    lines += [(pad + heads).rstrip()] if heads else []
    lines.append(rule)
    numbers = _numbers(panel.rows) or [""]
    for i, (row, number) in enumerate(zip(panel.rows, numbers, strict=True)):
        start = f"{down if i == 0 else '':>{len(down)}} {number}"
        lines += [f"{start:<{gutter}}|{_cells(panel, row, cell)}|", rule]
    return lines


def _cells(panel: _BlockGrid, row: int | None, cell: int) -> str:
    return "|".join(f" {_cell(panel, row, col):<{cell}} " for col in panel.cols)


def _cell(panel: _BlockGrid, row: int | None, col: int | None) -> str:
    return ".." if row is None or col is None else name_holders(panel.holders[row, col])


def _numbers(shown: Sequence[int | None]) -> list[str]:
    """Block numbers along a dim; a dim in one piece needs none."""
    return [".." if i is None else str(i) for i in shown] if len(shown) > 1 else []


def shard_svg(picture: ShardPicture, *, width: int = 800) -> str:
    """The picture as SVG: a colour for each set of holders, all of them in the tooltip."""
    body, height = _drawing(picture, width)
    return svg.document(width, height, title=picture.title, body=body)


def shards_svg(pictures: Sequence[ShardPicture], *, title: str, width: int = 1080) -> str:
    """Several arrays of one mesh side by side."""
    each = width // len(pictures)
    drawings = [_drawing(picture, each) for picture in pictures]
    body = [
        f'<g transform="translate({i * each} 0)">' + "\n".join(parts) + "</g>"
        for i, (parts, _) in enumerate(drawings)
    ]
    return svg.document(width, max(height for _, height in drawings), title=title, body=body)


def _drawing(picture: ShardPicture, width: float) -> tuple[list[str], float]:
    """The elements of a picture and their height."""
    per_row = min(math.prod(picture.block_counts[:-2]), _PANELS_A_ROW)
    panel_width = (width - 2 * _MARGIN) / per_row
    room = panel_width - _GUTTER - 16
    panels = _panels(picture, max_cols=_readable_cols(picture, room))
    cell = _cell_size(panels[0], room, is_vector=len(picture.dims) < 2)
    panel_height = _HEADER + cell[1] * len(panels[0].rows) + 16
    sets = list(dict.fromkeys(picture.holders[index] for index in sorted(picture.holders)))
    colours = {ids: _pale(0.55 + i / len(sets)) for i, ids in enumerate(sets)}
    size = min(17.0, (width - 2 * _MARGIN) / svg.text_width(picture.title, 1))
    body = [svg.text(_MARGIN, 32, picture.title, size=size, weight="bold")]
    body.append(svg.text(_MARGIN, 52, picture.caption, fill=svg.MUTED))
    for i, panel in enumerate(panels):
        x = _MARGIN + i % per_row * panel_width
        y = 64 + i // per_row * panel_height
        body += _panel_svg(panel, x, y, _across_and_down(picture), cell, colours)
    return body, 64 + math.ceil(len(panels) / per_row) * panel_height + 8


def _readable_cols(picture: ShardPicture, room: float) -> int:
    """Columns that leave each block room to name its holders in the shortest form."""
    longest = max((name_holders(ids, 2) for ids in picture.holders.values()), key=len)
    return max(3, min(_MAX_BLOCKS, int(room / (svg.text_width(longest, 10) + 6))))


def _cell_size(panel: _BlockGrid, room: float, *, is_vector: bool) -> tuple[float, float]:
    """Blocks of one outline however it is cut, growing only where they would get too small."""
    outline = min(room, 480.0)
    width = max(outline / len(panel.cols), min(120.0, room / len(panel.cols)))
    return width, 44.0 if is_vector else max(26.0, 0.43 * outline / len(panel.rows))


def _pale(hue: float) -> str:
    red, green, blue = colorsys.hls_to_rgb(hue % 1.0, 0.86, 0.6)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _panel_svg(
    panel: _BlockGrid,
    x: float,
    y: float,
    dims: tuple[str, str],
    cell: tuple[float, float],
    colours: Mapping[tuple[str, ...], str],
) -> list[str]:
    """A grid with its dims and block numbers; a panel left out is its two dots."""
    if not panel.rows:
        return [svg.text(x + _GUTTER, y + _HEADER, "..", size=20, fill=svg.MUTED)]
    (across, down), (width, height) = dims, cell
    left, top = x + _GUTTER, y + _HEADER
    middle = left + width * len(panel.cols) / 2, top + height * len(panel.rows) / 2
    head = f"{panel.name}: {across}" if panel.name else across
    size = min(13.0, (width * len(panel.cols) + _GUTTER) / svg.text_width(head or " ", 1))
    parts = [svg.text(middle[0], y + 20, head, size=size, anchor="middle")]
    parts.append(svg.text(x + 8, middle[1], down, size=13, anchor="middle", rotated=True))
    for j, number in enumerate(_numbers(panel.cols)):
        at = left + (j + 0.5) * width
        parts.append(svg.text(at, top - 6, number, size=11, fill=svg.MUTED, anchor="middle"))
    for i, number in enumerate(_numbers(panel.rows)):
        at = top + (i + 0.5) * height + 4
        parts.append(svg.text(left - 6, at, number, size=11, fill=svg.MUTED, anchor="end"))
    for i, row in enumerate(panel.rows):
        for j, col in enumerate(panel.cols):
            ids = panel.holders[row, col] if row is not None and col is not None else ()
            box = (left + j * width, top + i * height, width, height)
            parts += _block_svg(ids, box, colours.get(ids, svg.EMPTY))
    return parts


def _block_svg(
    ids: tuple[str, ...], box: tuple[float, float, float, float], fill: str
) -> list[str]:
    x, y, width, height = box
    words, size = _fit(ids, width - 6)
    middle, baseline = x + width / 2, y + height / 2 + size * 0.35
    ink = svg.ON_BAR if ids else svg.MUTED
    return [
        svg.rect(*box, fill=fill, stroke=svg.PAPER, tooltip=",".join(ids)),
        svg.text(middle, baseline, words, size=size, fill=ink, anchor="middle"),
    ]


def _fit(ids: tuple[str, ...], width: float) -> tuple[str, float]:
    """As many holders as can be read in `width`, and the size of their letters."""
    if not ids:
        return "..", 12
    sizes = {
        words: min(13.0, width / svg.text_width(words, 1))
        for words in (name_holders(ids, limit) for limit in (8, 6, 4, 3, 2))
    }
    readable = [words for words, size in sizes.items() if size >= 10]
    words = readable[0] if readable else min(sizes, key=len)
    return words, round(sizes[words], 1)
