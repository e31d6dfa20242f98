"""`Calibration`: few named constants of a chip and the software on it, fitted to measured runs.

In: `calibrations/*.toml`, and files or folders of the environment variable ROOFLIGHT_CALIBRATIONS
(several, joined like PATH). Out: records. A calibration says what it was fitted to, when, and how
far it was off on held-out runs; a chip without one is uncalibrated, and says so.
"""

import math
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflight.errors import ParseError
from rooflight.hardware.chip import Chip

_FOLDER = Path(__file__).parent / "calibrations"
_MEASURED_CHIPS = Path(__file__).parent / "measured_chips.toml"
_ERRORS = ("rows", "median_error", "mean_error", "spread")
DENSE, EXPERTS = "dense", "experts"
OWN = "rooflight"  # the engine of runs of one's own
_RENAMED = {"product_s": "matmul_launch_s"}  # since 0.2
ANY = "any"  # stands for every chip of a kind, or every engine
ROOFS = "none"  # no engine: the roofline bound


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant: its unit, the range that a fit may use, and where a fit starts."""

    name: str
    unit: str
    low: float
    high: float
    typical: float
    physics: str

    @property
    def is_time(self) -> bool:
        return self.unit == "s"

    def free(self, value: float) -> float:
        """A bounded value on the whole line: the logit of where it lies, times by their log."""
        part = min(max(self._part(value), 1e-3), 1 - 1e-3)
        return math.log(part / (1 - part))

    def bounded(self, free: float) -> float:
        """The inverse of `free`; never outside the range."""
        part = 1 / (1 + math.exp(-free))
        if self.is_time:
            return float(self.low * (self.high / self.low) ** part)
        return self.low + part * (self.high - self.low)

    def _part(self, value: float) -> float:
        if self.is_time:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of a chip under an engine, for models with or without experts."""

    chip: str  # as rows name it, or a kind of chip
    engine: str
    blocks: str  # dense or experts
    values: Mapping[str, float]
    rows: int
    sources: tuple[str, ...]
    made: str  # a date
    median_error: float  # of runs held out by configuration
    mean_error: float
    spread: float  # |log(measured / predicted)| that 80 % of held-out runs stay within

    def interval(self, seconds: float) -> tuple[float, float]:
        """The 80 % interval around a predicted time."""
        return seconds * math.exp(-self.spread), seconds * math.exp(self.spread)


@lru_cache(maxsize=4)
def calibration_constants(folder: Path = _FOLDER) -> Mapping[str, Constant]:
    """Every constant by name, in the order of the file."""
    tables = tomllib.loads((folder / "constants.toml").read_text(encoding="utf-8"))
    return {name: Constant(name, **table) for name, table in tables.items()}


def typical_values() -> dict[str, float]:
    """What to expect of a chip that nobody measured."""
    return {c.name: c.typical for c in calibration_constants().values()}


@lru_cache(maxsize=1)
def measured_chips() -> Mapping[str, Mapping[str, Any]]:
    """Chips as measured rows name them: the catalog's chip, and what differs in the variant."""
    return tomllib.loads(_MEASURED_CHIPS.read_text(encoding="utf-8"))


def measured_names(chip: str) -> tuple[str, ...]:
    """The names by which rows know a chip of the catalog, its plain one first.

    >>> measured_names("a100")
    ('a100_80g_sxm', 'a100_40g_sxm')
    """
    found = [
        (("source" in facts), name)
        for name, facts in measured_chips().items()
        if facts["chip"] == chip
    ]
    return tuple(name for _, name in sorted(found, key=lambda pair: pair[0]))


def host_calibration(chip: Chip) -> Calibration | None:
    """What a measured host says of itself, if its layouts were measured too."""
    detail: Mapping[str, float] = {}
    if chip.kind == "cpu":
        detail = _renamed(chip.name, **chip.detail)
    if not {*_ERRORS, *typical_values()} <= set(detail):
        return None
    values = {name: detail[name] for name in typical_values()}
    rows, median, mean, spread = (detail[name] for name in _ERRORS)
    made = chip.sources["detail.rows"].checked
    return Calibration(
        chip.name, OWN, DENSE, values, int(rows), ("this machine",), made, median, mean, spread
    )


def load_calibration(
    chip: str, kind: str, engine: str, blocks: str, *, folder: Path = _FOLDER
) -> Calibration | None:
    """The nearest shipped calibration: the chip's own, else its kind's; None where there is none.

    `kind` is tpu or gpu. `megatron@26.06` is a version of an engine; the engine comes after it, and
    after every engine the one of any.
    """
    shipped, base = shipped_calibrations(folder), engine.partition("@")[0]
    for key in ((chip, engine), (chip, base), (kind, engine), (kind, base), (kind, ANY)):
        if (*key, blocks) in shipped:
            return shipped[*key, blocks]
    return None


@lru_cache(maxsize=4)
def shipped_calibrations(folder: Path = _FOLDER) -> Mapping[tuple[str, str, str], Calibration]:
    """By chip, engine and blocks."""
    found: dict[tuple[str, str, str], Calibration] = {}
    for path in sorted(folder.glob("*.toml")):
        if path.stem != "constants":
            for table in tomllib.loads(path.read_text(encoding="utf-8"))["calibration"]:
                one = _read(path.stem, table)
                found[one.chip, one.engine, one.blocks] = one
    return found


def own_calibrations() -> Mapping[tuple[str, str], Calibration]:
    """Those of ROOFLIGHT_CALIBRATIONS by chip and blocks; `rooflight reconcile` writes them."""
    found: dict[tuple[str, str], Calibration] = {}
    for entry in os.environ.get("ROOFLIGHT_CALIBRATIONS", "").split(os.pathsep):
        path = Path(entry)
        paths = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        for one in (one for path in paths if entry for one in _read_file(path)):
            found[one.chip, one.blocks] = one
    return found


def _read_file(path: Path) -> list[Calibration]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["calibration"]
        found = [_read(path.stem, table) for table in tables]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ParseError(
            f"cannot read the calibration {path}: {error!r}",
            hint="ROOFLIGHT_CALIBRATIONS names files that `rooflight reconcile --save` wrote",
        ) from None
    missing = [c for one in found for c in typical_values() if c not in one.values]
    if missing:
        raise ParseError(
            f"the calibration {path} lacks {missing[0]}",
            hint="write it anew with `rooflight reconcile --save`",
        )
    return found


def _read(chip: str, table: Mapping[str, Any]) -> Calibration:
    read: Any = {"values": _renamed(chip, **table["values"]), "sources": tuple(table["sources"])}
    return Calibration(chip, **(dict(table) | read))


@lru_cache(maxsize=256)  # so that it is noted once
def _renamed(chip: str, **values: float) -> Mapping[str, float]:
    if _RENAMED.keys() & values.keys():
        print(f"note: the calibration of {chip} has names from before 0.2", file=sys.stderr)
    return {_RENAMED.get(name, name): value for name, value in values.items()}


def calibration_text(calibrations: list[Calibration]) -> str:
    """The TOML file of one chip; `shipped_calibrations` reads it back."""
    tables = [_table(c) for c in calibrations]
    return "# Written by `rooflight calibrate`; do not edit.\n" + "".join(tables)


def _table(one: Calibration) -> str:
    sources = ", ".join(f'"{s}"' for s in one.sources)
    values = "\n".join(f"{name} = {value:.4g}" for name, value in one.values.items())
    return (
        f'\n[[calibration]]\nengine = "{one.engine}"\nblocks = "{one.blocks}"\nrows = {one.rows}\n'
        f'sources = [{sources}]\nmade = "{one.made}"\nmedian_error = {one.median_error:.4f}\n'
        f"mean_error = {one.mean_error:.4f}\nspread = {one.spread:.4f}\n"
        f"\n[calibration.values]\n{values}\n"
    )
