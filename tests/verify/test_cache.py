"""The cache of compiles: what leaves, what stays, several processes at once."""

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.compile.aot.cache import cache_entries, evict, failed, use, work_folder

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


def _key(at: object) -> str:
    return f"{at!s:0>32}"


def test_the_least_recently_used_leave_until_the_rest_fits(tmp_path: Path) -> None:
    ages = {"a": 3 * HOUR, "b": 2 * HOUR, "c": HOUR, "d": 4 * HOUR}
    _fill(tmp_path, {_key(name): age for name, age in ages.items()})
    assert evict(tmp_path, most_bytes=2500, now_s=NOW) == 2000
    assert _names(tmp_path) == {_key("b"), _key("c")}
    assert evict(tmp_path, most_bytes=2500, now_s=NOW) == 0


def test_what_was_just_used_stays_however_full_it_is(tmp_path: Path) -> None:
    old, used, new = map(_key, (1, 2, 3))
    _fill(tmp_path, {old: HOUR, used: HOUR, new: 60.0})
    assert use(tmp_path / used) and not use(tmp_path / _key(4))
    os.utime(tmp_path / used, (NOW, NOW))
    assert evict(tmp_path, most_bytes=0, now_s=NOW) == 1000
    assert _names(tmp_path) == {used, new}


def test_the_work_of_a_living_process_stays_and_that_of_a_dead_one_leaves(tmp_path: Path) -> None:
    living, dead = work_folder(tmp_path), work_folder(tmp_path)
    os.utime(living, (NOW - HOUR, NOW - HOUR))
    os.utime(dead, (NOW - 48 * HOUR, NOW - 48 * HOUR))
    _fill(tmp_path, {f"rooflight-evicted-1-{_key(1)}": 48 * HOUR})
    assert evict(tmp_path, most_bytes=10**9, now_s=NOW) == 1000
    assert _names(tmp_path) == {living.name}


def test_what_the_cache_did_not_make_is_never_touched(tmp_path: Path) -> None:
    """Old folders of a user who points the cache at a folder of theirs, whatever their names."""
    thesis = tmp_path / "elsewhere" / "thesis"
    foreign = ["thesis", "work-2024", "evicted-1-x", "failed-runs", "a" * 31, "A" * 32, ".git"]
    foreign += [f"work-{_key(1)}", f"{_key(1)}.bak", "rooflight-work-", "rooflight-evicted-1-x"]
    _fill(tmp_path, dict.fromkeys(foreign, 9000 * HOUR))
    (tmp_path / _key(7)).write_text("a file")
    thesis.mkdir(parents=True)
    (tmp_path / _key(8)).symlink_to(thesis)
    before = {*tmp_path.rglob("*")}
    _fill(tmp_path, {_key(1): HOUR, failed(tmp_path / _key(2)).name: HOUR})
    assert _names(tmp_path) == {_key(1), f"failed-{_key(2)}"}
    assert evict(tmp_path, most_bytes=0, now_s=NOW) == 2000
    assert {*tmp_path.rglob("*")} == before


def test_an_empty_or_missing_cache_has_nothing_to_evict(tmp_path: Path) -> None:
    assert evict(tmp_path / "none", most_bytes=0, now_s=NOW) == 0


def test_processes_that_evict_at_once_free_every_byte_once(tmp_path: Path) -> None:
    _fill(tmp_path, {_key(at): HOUR for at in range(100)})
    # Not forks: a thread of jax, which an earlier test imported, could hold a lock in one.
    with ProcessPoolExecutor(max_workers=3, mp_context=get_context("spawn")) as pool:
        freed = list(pool.map(partial(evict, most_bytes=0, now_s=NOW), [tmp_path] * 3))
    assert sum(freed) == 100_000
    assert _names(tmp_path) == set()


def test_doctor_says_how_full_the_cache_is_and_how_to_clear_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "of mine; and more"
    folder.mkdir()
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(folder))
    assert main(["doctor"]) == 0 and "will be kept in" in capsys.readouterr().out
    _fill(folder, {_key(1): HOUR, _key(2): HOUR})
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "2 results of compiles (2 kB)" in said and f"rm -r '{folder}'; " in said
    (folder / "a thesis").mkdir()
    assert main(["doctor"]) == 0
    assert "rm -r" not in capsys.readouterr().out  # it would take the thesis too
