"""A device as the few numbers that price a step."""

from dataclasses import dataclass

import pandas as pd

from nanoengine.datasets import load_table
from nanoengine.errors import NanoengineError


@dataclass(frozen=True)
class DeviceSpec:
    """bandwidth_gb_per_s: memory reads, 1e9 bytes per second. memory_gb: 1e9 bytes. bf16_tflop_per_s: dense matrix
    rate with FP32 accumulation. None where nobody publishes it. source: data sheet, or how it was measured.
    """

    name: str
    bandwidth_gb_per_s: float
    memory_gb: float | None = None
    bf16_tflop_per_s: float | None = None
    source: str = ""

    def __post_init__(self):
        if not self.bandwidth_gb_per_s > 0:
            raise NanoengineError(f"{self.name}: the bandwidth must be positive, not {self.bandwidth_gb_per_s} GB/s.")

    @property
    def dense_flop_per_s(self) -> float:
        """The dense matrix rate in operations per second; raises NanoengineError where nobody publishes it."""
        if self.bf16_tflop_per_s is None:
            raise NanoengineError(f"The dense BF16 rate of {self.name} is not published; measure it, or give one.")
        return self.bf16_tflop_per_s * 1e12

    @classmethod
    def named(cls, name: str) -> "DeviceSpec":
        """A device of data/devices.csv by its id, as "rtx-4070". Raises NanoengineError listing the ids."""
        devices = load_table("devices")
        row = devices[devices.device == name]
        if row.empty:
            raise NanoengineError(f"There is no device {name!r}; known are {', '.join(devices.device)}.")
        row = row.iloc[0]

        def known(column: str) -> float | None:
            return None if pd.isna(row[column]) else float(row[column])

        return cls(
            name=row["name"],
            bandwidth_gb_per_s=float(row.bandwidth_gb_per_s),
            memory_gb=known("memory_gb"),
            bf16_tflop_per_s=known("bf16_tflop_per_s"),
            source=row.source,
        )
