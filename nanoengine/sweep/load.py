"""How busy the machine was with other work while a step was timed."""

import os
import time

from nanoengine.extras import need


class OtherLoad:
    """Counts from its making. `cores()`: cores that other processes kept busy on average since then.

    The kernel counts in ticks of about 10 ms, so for a visit of 100 ms it tells a busy neighbour from none, no more.
    """

    def __init__(self):
        need("psutil", "engine")
        self._begin = self._now()

    def cores(self) -> float:
        busy, elapsed = (now - begin for now, begin in zip(self._now(), self._begin, strict=True))
        return round(max(0.0, busy / elapsed), 3) if elapsed else 0.0

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
