"""Plain text tables: columns padded with spaces, two apart, ASCII only.

In: a header and rows of cells. Out: one string without a trailing newline. On a terminal that is
too narrow a last column of text is wrapped, or else the least important columns are left out.
"""

from collections.abc import Sequence

from rooflight.ui.text.terminal import BINDS, TOO_MUCH, painted, width, wrapped

_GAP = "  "
_LEAST_TEXT = 24  # characters that a wrapped column needs
_ANSWER = 2  # columns
_BINDS = ("bound by", "binds")  # headers
_FITS = "then"


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    align: str = "",
    keep: Sequence[str] = (),
) -> str:
    """Sets rows in columns; `align` is one of `l` and `r` a column, else numbers go right.

    `keep` names columns by importance: the first two, which have the answer, are never left out.
    Those that it does not name follow, from left to right.

    >>> print(table(["axis", "GB/s"], [["X", "45"], ["Y", "180"]]))
    axis  GB/s
    ----  ----
    X       45
    Y      180
    """
    columns = list(zip(header, *rows, strict=True))
    sides = align or "".join("r" if _is_numeric(cells[1:]) else "l" for cells in columns)
    widths = [max(map(len, cells)) for cells in columns]
    shown = _shown(header, widths, sides, keep)
    columns = [_painted(columns[i], widths[i], sides[i]) for i in shown]
    rule = _GAP.join("-" * widths[i] for i in shown)
    blank = [" " * widths[i] for i in shown]
    head, *lines = (_lines(cells, blank) for cells in zip(*columns, strict=True))
    left = [name for i, name in enumerate(header) if i not in shown and name]
    said = [f"(too narrow for: {', '.join(left)})"] if left else []
    return "\n".join([*head, rule, *(line for row in lines for line in row), *said])


def _shown(header: Sequence[str], widths: list[int], sides: str, keep: Sequence[str]) -> list[int]:
    """Columns that fit beside each other; one of text is made narrower if that is enough."""
    shown, most = list(range(len(header))), width()
    ranked = sorted(shown, key=lambda i: keep.index(header[i]) if header[i] in keep else len(keep))
    while most is not None and _total(widths, shown) > most:
        last = max(shown, key=lambda i: widths[i]) if len(shown) <= _ANSWER else shown[-1]
        room = most - _total(widths, shown) + widths[last]
        if len(shown) <= _ANSWER or (sides[last] == "l" and room >= _LEAST_TEXT):
            widths[last] = max(room, 1)
            break
        shown.remove(ranked.pop())
    return shown


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1)


def _painted(column: Sequence[str], size: int, side: str) -> list[list[str]]:
    """The cells of a column as padded lines: several where a cell is wider than the column."""
    name, *cells = column
    found = [[_padded(part, size, side) for part in wrapped(name, size)]]
    for cell in cells:
        parts = wrapped(cell, size)
        code = BINDS if name in _BINDS else TOO_MUCH if (name, cell) == (_FITS, "no") else ""
        found.append([_padded(part, size, side, code) for part in parts])
    return found


def _padded(cell: str, size: int, side: str, code: str = "") -> str:
    padding = " " * (size - len(cell))
    text = painted(cell, code) if code and cell else cell
    return padding + text if side == "r" else text + padding


def _lines(cells: Sequence[Sequence[str]], blank: Sequence[str]) -> list[str]:
    """One line, or as many as the longest cell takes."""
    count = max(map(len, cells))
    full = [[*cell, *[gap] * (count - len(cell))] for cell, gap in zip(cells, blank, strict=True)]
    return [_GAP.join(parts).rstrip() for parts in zip(*full, strict=True)]


def _is_numeric(cells: Sequence[str]) -> bool:
    """A column is numeric when each cell that is not blank or `-` starts with a number."""
    filled = [cell for cell in cells if cell.strip() not in ("", "-")]
    return bool(filled) and all(_starts_with_number(cell.strip()) for cell in filled)


def _starts_with_number(cell: str) -> bool:
    first = cell.removeprefix("$").partition(" ")[0].rstrip("%x").replace(",", "")
    try:
        float(first)
    except ValueError:
        return False
    return True
