"""Least squares of decode-step times on KV bytes: two terms, a third for each request, a fourth for drift."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import statsmodels.api as sm

from nanoengine.errors import NanoengineError

GIB = 2**30
_SMALLEST_KV_BYTES = 1024  # less than one token of any model: a number of GiB, or of MB

TERMS = {
    "intercept": ("fixed cost (weights and overhead)", "ms"),
    "kv_gib": ("KV", "ms per GiB"),
    "batch": ("each request", "ms"),
    "order": ("drift", "ms per row in time"),
}


def fit_steps(frame: pd.DataFrame, per_request: bool = False, drift: bool = False) -> "StepFit":
    """Ordinary least squares of step_ms on kv_bytes (B), on batch too if `per_request`, on order too if `drift`.

    step_ms = intercept_ms + slope x kv_bytes (+ per_request_ms x batch) (+ drift x (order - its mean)), where order
    numbers the rows in the order in which they were measured. Rows weigh the same. Chapter 08 uses it, chapter 10
    takes it apart. Raises NanoengineError when the data cannot identify the terms: columns or values missing, as few
    rows as terms, one KV size only, values in another unit, or terms that move together.
    """
    columns = ["kv_bytes", "step_ms", *(["batch"] if per_request else []), *(["order"] if drift else [])]
    data = _checked(frame, columns)
    if len(data) < len(columns) + 1:
        raise NanoengineError(
            f"{len(data)} points cannot show how well {len(columns)} terms fit; measure at least {len(columns) + 1}."
        )
    if data.kv_bytes.nunique() < 2:
        raise NanoengineError("All points have the same KV bytes, so no slope can be told; vary batch or history.")
    small = (data.kv_bytes > 0) & (data.kv_bytes < _SMALLEST_KV_BYTES)
    if small.any():
        raise NanoengineError(
            f"Row {int(small.argmax()) + 1} has {data.kv_bytes[small.argmax()]:g} bytes of KV, less than one token "
            "holds; kv_bytes counts bytes, not MB or GiB."
        )
    design = pd.DataFrame({"intercept": 1.0, "kv_gib": data.kv_bytes / GIB})
    if per_request:
        design["batch"] = data.batch
    if drift:
        design["order"] = data.order - data.order.mean()
    if np.linalg.matrix_rank(design.to_numpy()) < design.shape[1]:
        names = " or ".join({"batch": "Batch", "order": "Order"}[term] for term in design.columns[2:])
        raise NanoengineError(
            f"{names} and KV bytes move together here, so their costs cannot be told apart; vary both."
        )
    return StepFit(sm.OLS(data.step_ms, design).fit(), data)


def _checked(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The columns of a fit as floats, with batch and order beside them where the frame has them."""
    if missing := [column for column in columns if column not in frame]:
        raise NanoengineError(f"A fit needs the columns {', '.join(columns)}; {', '.join(missing)} is missing.")
    beside = [column for column in ("batch", "order") if column in frame and column not in columns]
    data = frame[columns + beside].astype(float).reset_index(drop=True)
    needed = data[columns]
    bad = ~np.isfinite(needed.to_numpy()).all(axis=1) | (data.step_ms <= 0).to_numpy() | (data.kv_bytes < 0).to_numpy()
    if bad.any():
        raise NanoengineError(f"Row {int(bad.argmax()) + 1} has no usable {' or '.join(columns)}; mend or drop it.")
    return data


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
    def drift_ms_per_row(self) -> float | None:
        """How much later rows cost more, in ms per place in the order; None without a drift term."""
        return float(self.result.params["order"]) if "order" in self.result.params else None

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
        """Confidence interval, by Student's t, of a term: "intercept", "kv_gib", "batch" or "order"."""
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

    def points(self) -> pd.DataFrame:
        """Each point and what it does to the fit: the data, fitted_ms, residual_ms, leverage, cooks_distance."""
        return self.data.assign(
            fitted_ms=self.result.fittedvalues,
            residual_ms=self.residuals_ms,
            leverage=self.leverage,
            cooks_distance=self.cooks_distance,
        )

    def predict(self, kv_bytes, batch=None, level: float = 0.95) -> pd.DataFrame:
        """The line and the confidence band of its mean: columns kv_bytes, step_ms, low_ms, high_ms.

        batch is needed by a fit with a cost per request. Drift is taken at the middle of the run.
        """
        kv_bytes = np.atleast_1d(np.asarray(kv_bytes, dtype=float))
        design = pd.DataFrame({"intercept": 1.0, "kv_gib": kv_bytes / GIB})
        if "batch" in self.result.params:
            if batch is None:
                raise NanoengineError("This fit has a cost per request; say for which batch to predict.")
            design["batch"] = np.broadcast_to(batch, kv_bytes.shape).astype(float)
        if "order" in self.result.params:
            design["order"] = 0.0
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
        """The fit without each point in turn: columns left_out (row), intercept_ms, slope_ms_per_gib, r_squared.

        Rows that the other terms cannot spare are left in: without them nothing is identified.
        """
        per_request, drift = self.per_request_ms is not None, self.drift_ms_per_row is not None
        rows = []
        for row in self.data.index[self.leverage < 1 - 1e-9]:
            fit = fit_steps(self.data.drop(row), per_request=per_request, drift=drift)
            rows.append((row, fit.intercept_ms, fit.slope_ms_per_gib, fit.r_squared))
        return pd.DataFrame(rows, columns=["left_out", "intercept_ms", "slope_ms_per_gib", "r_squared"])

    def table(self) -> pd.DataFrame:
        """Terms with their 95 % intervals: columns term, unit, value, low, high."""
        rows = [(*TERMS[term], value, *self.interval(term)) for term, value in self.result.params.items()]
        return pd.DataFrame(rows, columns=["term", "unit", "value", "low", "high"])

    def __str__(self) -> str:
        lines = [
            f"  {row.term}: {row.value:.4g} {row.unit} (95 % interval {row.low:.4g} to {row.high:.4g})"
            for row in self.table().itertuples()
        ]
        low, high = self.kv_range_gib
        lines.append(f"  R2 {self.r_squared:.4f} over {self.n} points, {low:.3g} to {high:.3g} GiB of KV")
        return "\n".join(lines)
