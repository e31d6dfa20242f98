"""The cache of compiles: what leaves, what stays, several processes at once."""

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.verify.cache import cache_entries, evict, use

HOUR = 3600.0
NOW = 1_000_000_000.0


def _fill(folder: Path, ages: dict[str, float]) -> None:
    for name, age_s in ages.items():
        entry = folder / name
        entry.mkdir(parents=True)
        (entry / "summary.json").write_bytes(b" " * 1000)
        os.utime(entry, (NOW - age_s, NOW - age_s))


def _names(folder: Path) -> set[str]:
    return {entry.path.name for entry in cache_entries(folder)}


def test_the_least_recently_used_leave_until_the_rest_fits(tmp_path: Path) -> None:
    _fill(tmp_path, {"a": 3 * HOUR, "b": 2 * HOUR, "c": HOUR, "d": 4 * HOUR})
    assert evict(tmp_path, most_bytes=2500, now_s=NOW) == 2000
    assert _names(tmp_path) == {"b", "c"}
    assert evict(tmp_path, most_bytes=2500, now_s=NOW) == 0


def test_what_was_just_used_stays_however_full_it_is(tmp_path: Path) -> None:
    _fill(tmp_path, {"old": HOUR, "used": HOUR, "new": 60.0})
    assert use(tmp_path / "used") and not use(tmp_path / "gone")
    os.utime(tmp_path / "used", (NOW, NOW))
    assert evict(tmp_path, most_bytes=0, now_s=NOW) == 1000
    assert _names(tmp_path) == {"used", "new"}


def test_the_work_of_a_living_process_stays_and_that_of_a_dead_one_leaves(tmp_path: Path) -> None:
    _fill(tmp_path, {"work-living": HOUR, "work-dead": 48 * HOUR, "evicted-1-x": 48 * HOUR})
    assert evict(tmp_path, most_bytes=10**9, now_s=NOW) == 2000
    assert _names(tmp_path) == {"work-living"}


def test_an_empty_or_missing_cache_has_nothing_to_evict(tmp_path: Path) -> None:
    assert evict(tmp_path / "none", most_bytes=0, now_s=NOW) == 0


def test_processes_that_evict_at_once_free_every_byte_once(tmp_path: Path) -> None:
    _fill(tmp_path, {f"{at:03}": HOUR for at in range(100)})
    # Not forks: a thread of jax, which an earlier test imported, could hold a lock in one.
    with ProcessPoolExecutor(max_workers=3, mp_context=get_context("spawn")) as pool:
        freed = list(pool.map(partial(evict, most_bytes=0, now_s=NOW), [tmp_path] * 3))
    assert sum(freed) == 100_000
    assert _names(tmp_path) == set()


def test_doctor_says_how_full_the_cache_is_and_how_to_clear_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    assert main(["doctor"]) == 0 and "will be kept in" in capsys.readouterr().out
    _fill(tmp_path, {"a": HOUR, "b": HOUR})
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "2 results of compiles (2 kB)" in said and f"rm -r {tmp_path}" in said
