"""Of two ways to serve, which is faster? Held-out predictions of rows that differ in one thing.

In: rows of a CSV, and what was said of each without having seen it. Out: `Directions`: of pairs
that share model, chip, engine and its version, dtypes and lengths, how many are further apart than
noise and how many of these are in order. A setting that was measured several times counts once.
Draft tokens came with another version of the engine, which such pairs do not share.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from rooflight.errors import RooflightError
from rooflight.measure.published.serving_question import ServingQuestion, ask_serving
from rooflight.measure.published.serving_replay import Directions
from rooflight.measure.published.serving_rows import read_serving_rows
from rooflight.measure.published.validation import Replay

from .regret import FAR_APART

_SHARED = (
    "precision",
    "gemm_quant_mode",
    "moe_quant_mode",
    "mode",
    "isl",
    "osl",
)
# One run's dates and numbers; what is left names the file or the dump and the image.
_OF_A_RUN = re.compile(r"(silicon_concurrency|config_id|workflow_run_id)=[^;]*;?")
_SIDES = ("prefill_", "decode_")


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run, but for what pairs differ in."""

    shared: tuple[str, ...]
    workers: tuple[str, ...]  # of disaggregated rows, all that is stated
    clients: float
    tp: int
    dp: int
    ep: int
    drafted: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Timed:
    """A setting's time, by the geometric mean of its rows, and what was said of it."""

    setting: Setting
    measured_s: float
    said_s: float


def read_settings(path: Path) -> dict[str, Setting]:
    """The setting of every row that can be asked, by its id."""
    found: dict[str, Setting] = {}
    for row in read_serving_rows(path):
        try:
            found[row.id] = setting_of(ask_serving(row))
        except RooflightError:
            continue
    return found


def setting_of(question: ServingQuestion) -> Setting:
    row = question.row
    source = row.source
    version = row.text("backend_version")
    if source != "aiconfigurator":  # whose file is of one configuration
        version += _OF_A_RUN.sub("", row.text("silicon_data_source"))
    sides = [name for name in row.fields if name.startswith(_SIDES) and "batch" not in name]
    return Setting(
        (source, row.model, row.chip, row.engine, *map(row.text, _SHARED)),
        tuple(row.text(name) for name in sides) if row.is_disaggregated else (),
        row.concurrency or question.batch * question.dp,
        question.tp,
        question.dp,
        question.ep,
        question.drafted,
        version,
    )


def timed(settings: dict[str, Setting], replays: Sequence[Replay]) -> list[tuple[str, Timed]]:
    """Each setting once, with its kind of model."""
    rows: dict[tuple[str, Setting], list[Replay]] = {}
    for one in replays:
        if one.id in settings:
            kind = f"{one.blocks}, {one.family}"
            rows.setdefault((kind, settings[one.id]), []).append(one)
    return [
        (kind, Timed(s, _mean([r.measured_s for r in of]), _mean([r.predicted_s for r in of])))
        for (kind, s), of in rows.items()
    ]


def _mean(seconds: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, seconds)) / len(seconds))


def pairs_of(each: Sequence[tuple[str, Timed]]) -> Iterator[tuple[str, str, Timed, Timed]]:
    """Pairs that differ in one thing: the kind of model, what differs, and both."""
    groups: dict[tuple[object, ...], list[tuple[str, Timed]]] = {}
    for kind, one in each:
        s = one.setting
        groups.setdefault((kind, s.shared), []).append((kind, one))
    for group in groups.values():
        for (kind, one), (_, other) in combinations(group, 2):
            what = difference(one.setting, other.setting)
            if what:
                yield kind, what, one, other


def difference(one: Setting, other: Setting) -> str | None:
    """What one thing two settings differ in; None where it is several, or workers too."""
    if one.workers != other.workers:
        return None
    split = (one.tp * one.dp, one.dp, one.ep)
    then = (other.tp * other.dp, other.dp, other.ep)
    if one.drafted != other.drafted:
        return "draft tokens" if (one.clients, split) == (other.clients, then) else None
    if one.version != other.version:
        return None
    if one.clients != other.clients:
        return "clients" if split == then else None
    if split[0] == then[0]:
        return "EP, DP" if split != then else None
    return "TP" if (one.dp, other.dp) == (1, 1) and (one.ep, other.ep) == (1, 1) else "TP, EP, DP"


def directions_of(
    settings: dict[str, Setting], replays: Sequence[Replay]
) -> tuple[Directions, ...]:
    """By kind of model and what differs; pairs closer than noise have no order."""
    found: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for kind, what, one, other in pairs_of(timed(settings, replays)):
        apart = math.log(one.measured_s / other.measured_s)
        if abs(apart) > math.log(FAR_APART):
            right = (apart > 0) == (one.said_s > other.said_s)
            found.setdefault((kind, what), []).append((abs(apart), right))
    return tuple(
        Directions(kind, what, len(pairs), sum(right for _, right in pairs), _middle(pairs))
        for (kind, what), pairs in sorted(found.items())
    )


def _middle(pairs: Sequence[tuple[float, bool]]) -> float:
    """How many times the slower takes, in the middle one of those ordered wrong; 1 of none."""
    wrong = sorted(apart for apart, right in pairs if not right)
    return math.exp(wrong[len(wrong) // 2]) if wrong else 1.0
