import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from nanoengine.sweep import load
from nanoengine.sweep.load import OtherLoad


def test_a_busy_neighbour_is_seen():
    spin = "import time; end = time.monotonic() + 1.2\nwhile time.monotonic() < end: pass"
    other = subprocess.Popen([sys.executable, "-c", spin])
    time.sleep(0.2)
    counting = OtherLoad()
    time.sleep(0.6)
    assert counting.cores() > 0.5
    other.wait()


def test_a_visit_too_short_for_the_kernels_ticks_is_unknown():
    assert math.isnan(OtherLoad().cores())


def test_our_own_time_and_our_children_are_taken_off(monkeypatch):
    clock, busy, own = [0.0], [100.0], [5.0]
    monkeypatch.setattr(load.time, "perf_counter", lambda: clock[0])
    times = {"idle": 1e6, "nice": 0.0, "irq": 0.0, "softirq": 0.0, "steal": 0.0, "system": 0.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=busy[0], **times))
    monkeypatch.setattr(
        os, "times", lambda: SimpleNamespace(user=own[0], system=1.0, children_user=own[0], children_system=0.0)
    )
    counting = OtherLoad()
    clock[0], busy[0], own[0] = 2.0, 105.0, 6.5  # five core-seconds in two seconds, of them three our own
    assert counting.cores() == pytest.approx(1.0)
