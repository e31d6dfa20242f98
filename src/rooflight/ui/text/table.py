"""Plain text tables: columns padded with spaces, two apart, ASCII only.

In: a header and rows of cells. Out: one string without a trailing newline.
"""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, align: str = "") -> str:
    """Sets rows in columns; `align` is one of `l` and `r` a column, else numbers go right.

    >>> print(table(["axis", "GB/s"], [["X", "45"], ["Y", "180"]]))
    axis  GB/s
    ----  ----
    X       45
    Y      180
    """
    columns = list(zip(header, *rows, strict=True))
    sides = align or "".join("r" if _is_numeric(cells[1:]) else "l" for cells in columns)
    widths = [max(map(len, cells)) for cells in columns]
    rule = ["-" * width for width in widths]
    lines = [_line(cells, widths, sides) for cells in (header, rule, *rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], sides: str) -> str:
    padded = [
        cell.rjust(width) if side == "r" else cell.ljust(width)
        for cell, width, side in zip(cells, widths, sides, strict=True)
    ]
    return "  ".join(padded).rstrip()


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
