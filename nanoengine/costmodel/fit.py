"""Least squares of decode-step times on KV bytes: the two-term model, or three terms where batch varies."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import statsmodels.api as sm

from nanoengine.errors import NanoengineError

GIB = 2**30


def fit_steps(frame: pd.DataFrame, per_request: bool = False) -> "StepFit":
    """Ordinary least squares of step_ms on kv_bytes (B), and on batch too when `per_request`.

    step_ms = intercept_ms + slope x kv_bytes (+ per_request_ms x batch). Rows weigh the same. Chapter 08 uses it,
    chapter 10 takes it apart. Raises NanoengineError when the data cannot identify the terms: columns or values
    missing, as few rows as terms, one KV size only, or batch and KV that move together.
    """
    columns = ["kv_bytes", "step_ms", *(["batch"] if per_request else [])]
    if missing := [column for column in columns if column not in frame]:
        raise NanoengineError(f"A fit needs the columns {', '.join(columns)}; {', '.join(missing)} is missing.")
    data = frame[columns].astype(float).reset_index(drop=True)
    bad = ~np.isfinite(data.to_numpy()).all(axis=1) | (data.step_ms <= 0).to_numpy() | (data.kv_bytes < 0).to_numpy()
    if bad.any():
        raise NanoengineError(f"Row {int(bad.argmax()) + 1} has no usable {' or '.join(columns)}; mend or drop it.")
    if len(data) <= len(columns):
        raise NanoengineError(
            f"{len(data)} points cannot show how well {len(columns)} terms fit; measure at least {len(columns) + 1}."
        )
    if data.kv_bytes.nunique() < 2:
        raise NanoengineError("All points have the same KV bytes, so no slope can be told; vary batch or history.")
    design = pd.DataFrame({"intercept": 1.0, "kv_gib": data.kv_bytes / GIB})
    if per_request:
        design["batch"] = data.batch
    if np.linalg.matrix_rank(design.to_numpy()) < design.shape[1]:
        raise NanoengineError("Batch and KV bytes move together here, so their costs cannot be told apart; vary both.")
    return StepFit(sm.OLS(data.step_ms, design).fit(), data)


@dataclass(frozen=True)
class StepFit:
    """A fitted line with what is needed to doubt it. Times in ms, KV in bytes or GiB (2**30 B), rates in 1e9 B/s."""

    result: object  # statsmodels' regression results
    data: pd.DataFrame

    @property
    def n(self) -> int:
        return len(self.data)

    @property
    def intercept_ms(self) -> float:
        return float(self.result.params["intercept"])

    @property
    def slope_ms_per_gib(self) -> float:
        return float(self.result.params["kv_gib"])

    @property
    def slope_ms_per_gb(self) -> float:
        return self.slope_ms_per_gib / GIB * 1e9

    @property
    def per_request_ms(self) -> float | None:
        """Cost of one more request in the batch; None for a two-term fit."""
        return float(self.result.params["batch"]) if "batch" in self.result.params else None

    @property
    def r_squared(self) -> float:
        return float(self.result.rsquared)

    @property
    def kv_range_gib(self) -> tuple[float, float]:
        """Smallest and largest KV of the points: beyond them a line is a guess."""
        return float(self.data.kv_bytes.min() / GIB), float(self.data.kv_bytes.max() / GIB)

    @property
    def kv_rate_gb_per_s(self) -> float:
        """1 / slope: bytes of KV read per added second. Negative or huge where the slope is not above zero."""
        return 1e3 / self.slope_ms_per_gb

    def weight_rate_gb_per_s(self, weight_bytes: float) -> float:
        """weight_bytes / intercept: a lower bound on the rate of weight reads.

        The intercept holds the overhead of a step too, and one model in one dtype cannot tell the two apart.
        """
        return weight_bytes / (self.intercept_ms * 1e6)

    def interval(self, term: str, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval, by Student's t, of "intercept" (ms), "kv_gib" (ms per GiB) or "batch" (ms)."""
        low, high = self.result.conf_int(alpha=1 - level).loc[term]
        return float(low), float(high)

    @cached_property
    def leverage(self) -> np.ndarray:
        """How much each point pulls its own fitted value: the hat matrix's diagonal, summing to the number of terms."""
        return self.result.get_influence().hat_matrix_diag

    @cached_property
    def cooks_distance(self) -> np.ndarray:
        """How far all fitted values move when each point is left out (Cook, 1977); above 1 is large."""
        return self.result.get_influence().cooks_distance[0]

    @cached_property
    def residuals_ms(self) -> np.ndarray:
        return self.result.resid.to_numpy()

    def predict(self, kv_bytes, batch=None, level: float = 0.95) -> pd.DataFrame:
        """The line and the confidence band of its mean: columns kv_bytes, step_ms, low_ms, high_ms.

        batch is needed by a three-term fit.
        """
        kv_bytes = np.atleast_1d(np.asarray(kv_bytes, dtype=float))
        design = pd.DataFrame({"intercept": 1.0, "kv_gib": kv_bytes / GIB})
        if "batch" in self.result.params:
            if batch is None:
                raise NanoengineError("This fit has a cost per request; say for which batch to predict.")
            design["batch"] = np.broadcast_to(batch, kv_bytes.shape).astype(float)
        band = self.result.get_prediction(design).summary_frame(alpha=1 - level)
        return pd.DataFrame(
            {
                "kv_bytes": kv_bytes,
                "step_ms": band["mean"].to_numpy(),
                "low_ms": band["mean_ci_lower"].to_numpy(),
                "high_ms": band["mean_ci_upper"].to_numpy(),
            }
        )

    def leave_one_out(self) -> pd.DataFrame:
        """The fit without each point in turn: columns left_out (row), intercept_ms, slope_ms_per_gib, r_squared."""
        rows = []
        for row in self.data.index:
            fit = fit_steps(self.data.drop(row), per_request=self.per_request_ms is not None)
            rows.append((row, fit.intercept_ms, fit.slope_ms_per_gib, fit.r_squared))
        return pd.DataFrame(rows, columns=["left_out", "intercept_ms", "slope_ms_per_gib", "r_squared"])

    def table(self) -> pd.DataFrame:
        """Terms with their 95 % intervals: columns term, unit, value, low, high."""
        names = {
            "intercept": ("fixed cost (weights and overhead)", "ms"),
            "kv_gib": ("KV", "ms per GiB"),
            "batch": ("each request", "ms"),
        }
        rows = [(*names[term], value, *self.interval(term)) for term, value in self.result.params.items()]
        return pd.DataFrame(rows, columns=["term", "unit", "value", "low", "high"])

    def __str__(self) -> str:
        lines = [
            f"  {row.term}: {row.value:.4g} {row.unit} (95 % interval {row.low:.4g} to {row.high:.4g})"
            for row in self.table().itertuples()
        ]
        low, high = self.kv_range_gib
        lines.append(f"  R2 {self.r_squared:.4f} over {self.n} points, {low:.3g} to {high:.3g} GiB of KV")
        return "\n".join(lines)
