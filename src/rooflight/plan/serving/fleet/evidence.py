"""Which serving layouts have been measured, and how far off a forecast without rows is.

In: a `ServingLayout`, a chip, dense blocks or experts. Out: what of it published rows do not cover.
A layout of schemes that no two rows had at once, or split further than theirs, is an extrapolation:
it is the answer only where it wins by more. So are replicas that are disaggregated, by as much as
their rows are predicted worse. What nobody does at all is the answer only where nothing else keeps
the SLO.
"""

import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any  # JSON

from rooflight.hardware.calibration import DENSE
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Chip
from rooflight.hardware.serving_calibration import SERVING_FOLDER
from rooflight.plan.serving.step.layout import ServingLayout

EVIDENCE_FILE = SERVING_FOLDER / "evidence.json"
_TWICE = 2  # rows: what was measured once may be chance
_SCHEMES = ("tp", "pp", "dp", "ep", "ws", "cp")
_CHIPS = ("tp", "pp", "dp", "cp")  # experts lie on those of the others
_Row = dict[str, Any]


def extrapolated(blocks: str) -> float:
    """What 80 % of rows stay within, in logs, when no fit saw their source."""
    return float(_index()["extrapolated"][blocks])


def disaggregated(blocks: str) -> float:
    """What 80 % of rows with disaggregated prefill stay within, in logs, held out."""
    return float(_index()["disaggregated"][blocks])


@lru_cache(maxsize=1024)
def rows_of(layout: ServingLayout, kind: str, blocks: str) -> int:
    """Measured rows of a layout.

    >>> rows_of(ServingLayout(tp=8), "gpu", "dense") > rows_of(ServingLayout(tp=6), "gpu", "dense")
    True
    """
    own = {"kind": kind, "blocks": blocks, "kv": layout.kv} | _ways(layout)
    told = ("chip", "engine", "rows")
    rows = _index()["rows"]
    return sum(r["rows"] for r in rows if {k: v for k, v in r.items() if k not in told} == own)


@lru_cache(maxsize=1024)
def novel_of(layout: ServingLayout, chip: Chip) -> tuple[str, ...]:
    """What of a layout nobody does: a scheme that no two rows had on any chip, a split of the cache
    that none had on the kind, schemes that none had at once across its nodes.

    >>> h100 = load_chip("h100")
    >>> novel_of(ServingLayout(tp=4, pp=2), h100), novel_of(ServingLayout(tp=4, ep=4), h100)
    (('pp=2',), ())
    """
    rows, ways = _index()["rows"], _ways(layout)
    of_kind = [row for row in rows if row["kind"] == chip.kind]
    found = [f"{name}={n}" for name, n in ways.items() if _most(rows, name) == 1]
    found += _new_cache(layout, of_kind)
    if not found and _is_wide(ways, chip):
        wide = [r for r in _alike(ways, of_kind) if _is_wide(r, load_chip(r["chip"]))]
        if _count(wide) < _TWICE:
            found.append(f"{' with '.join(ways)} across nodes")
    return tuple(found)


def unseen_of(layout: ServingLayout, chip: Chip, blocks: str) -> tuple[str, ...]:
    """What of a layout no two rows had; dense models' count too.

    >>> unseen_of(ServingLayout(tp=4, pp=2), load_chip("h100"), "dense")
    ('pp=2',)
    """
    kinds = (chip.kind, blocks), (chip.kind, DENSE)
    rows = [row for row in _index()["rows"] if (row["kind"], row["blocks"]) in kinds]
    if not rows:
        return ()
    ways = _ways(layout)
    alike = _alike(ways, rows)
    is_new = bool(ways) and _count(alike) < _TWICE  # one chip splits nothing
    found = [
        f"{name}={n}" + (f" ({most} measured)" if most > 1 else "")
        for name, n in ways.items()
        if n > (most := _most(rows if is_new else alike, name))
    ]
    found += _new_cache(layout, rows)
    if not found and is_new:
        found.append(" with ".join(ways))
    return tuple(found)


def _alike(ways: dict[str, int], rows: Iterable[_Row]) -> list[_Row]:
    """Rows of the same schemes."""
    return [row for row in rows if {s for s in _SCHEMES if row.get(s, 1) > 1} == set(ways)]


def _new_cache(layout: ServingLayout, rows: Sequence[_Row]) -> tuple[str, ...]:
    """How the cache is split, if rows there are and no two of them split it so."""
    is_new = rows and _count(row for row in rows if row["kv"] == layout.kv) < _TWICE
    return (f"kv={layout.kv}",) if is_new else ()


def _ways(layout: ServingLayout) -> dict[str, int]:
    return {name: n for name in _SCHEMES if (n := getattr(layout, name)) > 1}


def _is_wide(ways: dict[str, Any], chip: Chip) -> bool:
    """True if GPUs of several NVLink domains make one replica."""
    chips = math.prod(ways.get(name, 1) for name in _CHIPS)
    return chip.switched is not None and chips > chip.switched.domain_chips


def _count(rows: Iterable[_Row]) -> int:
    return sum(row["rows"] for row in rows)


def _most(rows: Sequence[_Row], name: str) -> int:
    """The most ways that two rows split a scheme."""
    ways = sorted(r.get(name, 1) for r in rows for _ in range(min(_TWICE, r["rows"])))
    return ways[-_TWICE] if len(ways) >= _TWICE else 1


@lru_cache(maxsize=1)
def _index() -> dict[str, Any]:
    return json.loads(EVIDENCE_FILE.read_text(encoding="utf-8"))
