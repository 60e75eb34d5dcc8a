"""What a sweep is about to read, and how fast it could at best: printed before the first step is timed."""

from dataclasses import dataclass

import pandas as pd

from nanoengine.sweep.backends import Description
from nanoengine.sweep.bandwidth import MeasuredBandwidth
from nanoengine.sweep.grid import Cell


@dataclass(frozen=True)
class CostCard:
    """One engine, one grid, one measured bandwidth."""

    description: Description
    cells: list[Cell]
    bandwidth: MeasuredBandwidth
    note: str = ""

    def table(self) -> pd.DataFrame:
        """A row per cell: kv_bytes, read_bytes (weights and KV of one step) and floor_ms, their time at the ceiling."""
        d = self.description
        frame = pd.DataFrame(self.cells, columns=["batch", "history"])
        frame["kv_bytes"] = frame.batch * frame.history * d.kv_bytes_per_token
        frame["read_bytes"] = frame.kv_bytes + d.weight_bytes
        frame["floor_ms"] = frame.read_bytes / self.bandwidth.gb_per_s / 1e6
        return frame

    def __str__(self) -> str:
        d, rows = self.description, self.table()
        threads = f", {d.threads} threads" if d.threads else ""
        room = d.kv_capacity_tokens * d.kv_bytes_per_token / 1e9
        lines = [
            f"{d.model}, {d.dtype}, by {d.backend} on {self.bandwidth.machine} ({d.device}{threads})",
            f"weights read by a step  {d.weight_bytes / 1e6:8.1f} MB",
            f"KV of one token         {d.kv_bytes_per_token:8,} B",
            f"KV that memory holds    {d.kv_capacity_tokens:8,} tokens, {room:.2f} GB",
            f"read bandwidth          {self.bandwidth}",
            "",
            " batch  history     KV MB   read MB   ms at the measured bandwidth",
        ]
        lines += [
            f"{row.batch:6d} {row.history:8d} {row.kv_bytes / 1e6:9.1f} {row.read_bytes / 1e6:9.1f} {row.floor_ms:9.2f}"
            for row in rows.itertuples()
        ]
        return "\n".join([*lines, *([self.note] if self.note else [])])
