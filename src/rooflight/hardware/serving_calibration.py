"""Calibrations of serving: constants of an engine on a chip, fitted to measured times of a token.

In: `serving_calibrations/*.toml`. Out: `Calibration`s. Names of chips are the catalog's, or
a kind of chip that stands for all of it; the engine `any` stands for all engines.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from rooflight.hardware.calibration import ANY, Calibration, Constant

SERVING_FOLDER = Path(__file__).parent / "serving_calibrations"
_MOST = 12  # constants of an engine on a chip


@lru_cache(maxsize=1)
def serving_constants() -> Mapping[str, Constant]:
    """Every constant by name, in the order of the file."""
    tables = tomllib.loads((SERVING_FOLDER / "constants.toml").read_text(encoding="utf-8"))
    if len(tables) > _MOST:
        raise ValueError(f"{len(tables)} constants; more than {_MOST} fit noise")
    return {name: Constant(name, **table) for name, table in tables.items()}


def load_serving_calibration(chip: str, kind: str, engine: str, blocks: str) -> Calibration | None:
    """The nearest shipped calibration: the chip's own, else its kind's; None where there is none.

    `kind` is tpu or gpu; of a kind, the engine's calibration comes before that of any engine.
    """
    shipped = shipped_serving()
    for key in ((chip, engine), (kind, engine), (kind, ANY)):
        if (*key, blocks) in shipped:
            return shipped[*key, blocks]
    return None


@lru_cache(maxsize=1)
def shipped_serving() -> Mapping[tuple[str, str, str], Calibration]:
    """By chip, engine and blocks."""
    found: dict[tuple[str, str, str], Calibration] = {}
    for path in sorted(SERVING_FOLDER.glob("*.toml")):
        if path.stem == "constants":
            continue
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["calibration"]:
            one = Calibration(path.stem, **(table | {"sources": tuple(table["sources"])}))
            found[one.chip, one.engine, one.blocks] = one
    return found
