"""A line of step time over KV that was drawn, not fitted: what two published points allow."""

from dataclasses import dataclass

import numpy as np

from nanoengine.costmodel.fit import GIB
from nanoengine.errors import NanoengineError


@dataclass(frozen=True)
class Line:
    """step_ms = intercept_ms + slope_ms_per_gib x KV in GiB. No interval: two points leave nothing to judge it by."""

    intercept_ms: float
    slope_ms_per_gib: float

    @classmethod
    def through(cls, kv_bytes, step_ms) -> "Line":
        """The line through exactly two points. Raises NanoengineError for another number, or for equal KV bytes."""
        kv_gib, step_ms = np.asarray(kv_bytes, dtype=float) / GIB, np.asarray(step_ms, dtype=float)
        if kv_gib.shape != (2,) or step_ms.shape != (2,) or kv_gib[0] == kv_gib[1]:
            raise NanoengineError("A line is drawn through two points of different KV; fit_steps fits three or more.")
        slope = float((step_ms[1] - step_ms[0]) / (kv_gib[1] - kv_gib[0]))
        return cls(float(step_ms[0] - slope * kv_gib[0]), slope)

    @property
    def kv_rate_gb_per_s(self) -> float:
        """1 / slope, in 1e9 B/s."""
        return GIB / self.slope_ms_per_gib / 1e6

    def step_ms(self, kv_bytes):
        """The line at kv_bytes (B), in ms."""
        return self.intercept_ms + self.slope_ms_per_gib * np.asarray(kv_bytes, dtype=float) / GIB
