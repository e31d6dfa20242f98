"""The load of other processes, made on purpose."""

import os
import subprocess
import sys
import time

import pytest

from rooflight.measure.load.machine import CpuUsage, busy, other_load

from .scripted import scripted

_BURN = "import time; end = time.process_time() + 0.6\nwhile time.process_time() < end: pass"

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="no /proc here")


def test_the_work_of_another_process_is_other_load() -> None:
    with scripted() as server:
        begin = time.process_time()
        before = busy(server.url)
        with subprocess.Popen([sys.executable, "-c", _BURN], start_new_session=True):
            pass
        after = busy(server.url)
        own_s = time.process_time() - begin
    assert before and after
    assert after.ours_s - before.ours_s < own_s + 0.1  # it has ended: no longer a child of ours
    other = other_load(before, after)
    assert other is not None and other >= 0.1 / (os.cpu_count() or 1)


def test_our_own_work_is_not() -> None:
    with scripted() as server:
        before = busy(server.url)
        exec(_BURN)
        after = busy(server.url)
    assert before and after and after.ours_s - before.ours_s > 0.5


def test_the_share_is_of_all_cores() -> None:
    cores = os.cpu_count() or 1
    assert other_load(CpuUsage(0.0, 10.0, 4.0), CpuUsage(2.0, 13.0, 5.0)) == pytest.approx(
        1 / cores
    )


def test_what_cannot_be_seen_is_unknown() -> None:
    assert busy("http://example.org:80") is None
    assert busy("http://127.0.0.1:9") is None
    assert other_load(None, CpuUsage(0.0, 0.0, 0.0)) is None
