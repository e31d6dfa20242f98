"""Which serving layouts have been measured: how many ways published rows split each scheme.

In: the index beside the serving calibrations. Out: what of a layout fewer than two rows of such
chips had. A layout with any of it is an extrapolation: its interval is wider, and it is not the
answer unless it wins by more.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rooflight.hardware.calibration import DENSE
from rooflight.hardware.serving_calibration import SERVING_FOLDER
from rooflight.plan.serving.step.layout import ServingLayout

EVIDENCE_FILE = SERVING_FOLDER / "evidence.json"
_TWICE = 2  # rows: what was measured once may be chance
_SCHEMES = ("tp", "pp", "dp", "ep", "ws", "cp")


@lru_cache(maxsize=1)
def _index() -> dict[str, Any]:
    return json.loads(EVIDENCE_FILE.read_text(encoding="utf-8"))


def extrapolated(blocks: str) -> float:
    """What 80 % of rows stay within, in logs, when no fit saw their source."""
    return float(_index()["extrapolated"][blocks])


def unseen_of(layout: ServingLayout, kind: str, blocks: str) -> tuple[str, ...]:
    """What of a layout no two rows had; dense models' count too.

    >>> unseen_of(ServingLayout(tp=4, pp=2), "gpu", "dense")
    ('pp=2',)
    """
    rows = [r for r in _index()["rows"] if r["kind"] == kind and r["blocks"] in (blocks, DENSE)]
    if not rows:
        return ()
    found: list[str] = []
    for name in _SCHEMES:
        ways, most = getattr(layout, name), _most(rows, name)
        if ways > most:
            found.append(f"{name}={ways}" + (f" ({most} measured)" if most > 1 else ""))
    if sum(r["rows"] for r in rows if r["kv"] == layout.kv) < _TWICE:
        found.append(f"kv={layout.kv}")
    return tuple(found)


def _most(rows: Sequence[dict[str, Any]], name: str) -> int:
    """The most ways that two rows split a scheme."""
    ways = sorted(r.get(name, 1) for r in rows for _ in range(min(_TWICE, r["rows"])))
    return ways[-_TWICE] if len(ways) >= _TWICE else 1
