"""How busy the machine was with other work while a step was timed."""

import math
import os
import time

from nanoengine.extras import need

_LEAST_S = 0.1


class OtherLoad:
    """Counts from its making. `cores()`: cores that other processes kept busy on average since then, NaN if unknown.

    The kernel counts in ticks of 10 ms, so over 100 ms it just tells a busy neighbour from none; shorter is unknown.
    """

    def __init__(self):
        need("psutil", "engine")
        self._begin = self._now()

    def cores(self) -> float:
        busy, elapsed = (now - begin for now, begin in zip(self._now(), self._begin, strict=True))
        return round(max(0.0, busy / elapsed), 3) if elapsed >= _LEAST_S else math.nan

    @staticmethod
    def _now() -> tuple[float, float]:
        import psutil

        # user already contains guest, so summing every field would count virtual machines twice.
        times = psutil.cpu_times()
        busy = times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "irq", 0.0)
        busy += getattr(times, "softirq", 0.0) + getattr(times, "steal", 0.0)
        own = os.times()
        children = own.children_user + own.children_system
        return busy - own.user - own.system - children, time.perf_counter()
