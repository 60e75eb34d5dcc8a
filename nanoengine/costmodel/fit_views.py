"""Other looks at the data of a fit: within one batch size, on matched cells, resampled. Chapter 10."""

import numpy as np
import pandas as pd
import statsmodels.api as sm

from nanoengine.costmodel.fit import GIB, StepFit, fit_steps
from nanoengine.errors import NanoengineError


def within_batch(frame: pd.DataFrame) -> pd.DataFrame:
    """The slope over KV inside each batch size, and pooled with an intercept for each batch size.

    A cost per request cannot disturb it, since batch does not vary inside a group. frame: batch, kv_bytes, step_ms.
    Columns: batch (NaN in the pooled row, the last), n, intercept_ms (NaN where pooled), slope_ms_per_gib, low, high
    (its 95 % interval; NaN where two points leave none), kv_rate_gb_per_s. Batch sizes with one KV size are left out.
    Raises NanoengineError where none has two.
    """
    groups = {b: rows for b, rows in frame.groupby("batch") if rows.kv_bytes.nunique() > 1}
    if not groups:
        raise NanoengineError("No batch size has two KV sizes, so no slope can be told within one; vary the history.")
    lines = []
    for batch, rows in groups.items():
        design = pd.DataFrame({"intercept": 1.0, "kv_gib": rows.kv_bytes / GIB})
        lines.append((batch, len(rows), *_slope(rows.step_ms, design)))
    rows = pd.concat(groups.values())
    design = pd.get_dummies(rows.batch.astype(int), prefix="batch", dtype=float).assign(kv_gib=rows.kv_bytes / GIB)
    lines.append((np.nan, len(rows), *_slope(rows.step_ms, design)))
    table = pd.DataFrame(lines, columns=["batch", "n", "intercept_ms", "slope_ms_per_gib", "low", "high"])
    return table.assign(kv_rate_gb_per_s=GIB / table.slope_ms_per_gib / 1e6)


def _slope(step_ms: pd.Series, design: pd.DataFrame) -> tuple[float, float, float, float]:
    result = sm.OLS(step_ms.astype(float), design).fit()
    low, high = result.conf_int().loc["kv_gib"] if result.df_resid > 0 else (np.nan, np.nan)
    return result.params.get("intercept", np.nan), result.params["kv_gib"], low, high


def segments(frame: pd.DataFrame) -> pd.DataFrame:
    """The slope between each two neighbours in KV of one batch size: where a line bends, these differ.

    Columns: batch, from_gib, to_gib, slope_ms_per_gib, kv_rate_gb_per_s.
    """
    rows = frame[["batch", "kv_bytes", "step_ms"]].astype(float).sort_values(["batch", "kv_bytes"])
    rise = rows.groupby("batch")[["kv_bytes", "step_ms"]].diff()
    slope = rise.step_ms / rise.kv_bytes * GIB
    table = pd.DataFrame(
        {
            "batch": rows.batch,
            "from_gib": (rows.kv_bytes - rise.kv_bytes) / GIB,
            "to_gib": rows.kv_bytes / GIB,
            "slope_ms_per_gib": slope,
            "kv_rate_gb_per_s": GIB / slope / 1e6,
        }
    )
    return table[(rise.kv_bytes > 0).to_numpy()].reset_index(drop=True)


def matched_cells(
    left: pd.DataFrame, right: pd.DataFrame, length: str = "context", tolerance: float = 0.03
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of two series that have a partner in the other: same batch, `length` column within `tolerance`.

    Two lines fitted over different cells differ for that reason alone; these do not. Returns both, in the same order.
    Raises NanoengineError where no cell matches.
    """
    pairs = []
    free = set(right.index)
    for i, row in left.iterrows():
        near = [j for j in free if right.batch[j] == row.batch and abs(right[length][j] / row[length] - 1) <= tolerance]
        if near:
            j = min(near, key=lambda j: (abs(right[length][j] - row[length]), j))
            free.remove(j)
            pairs.append((i, j))
    if not pairs:
        raise NanoengineError(f"The two series share no cell of the same batch and {length}.")
    lefts, rights = zip(*pairs, strict=True)
    return left.loc[list(lefts)].reset_index(drop=True), right.loc[list(rights)].reset_index(drop=True)


def bootstrap(fit: StepFit, draws: int = 2000, seed: int = 0) -> pd.DataFrame:
    """The terms of `fit` over resampled rows (Efron, 1979): one row per draw, one column per term.

    Rows are drawn with replacement, which assumes nothing of their errors but that they are independent. Draws that
    identify no fit, such as one point only, are drawn again. Take quantiles for an interval; with a dozen points or
    fewer it is rough, and shows above all how much hangs on single rows.
    """
    design, y = fit.result.model.exog, fit.result.model.endog
    n, terms = design.shape
    rng = np.random.default_rng(seed)
    kept: list[np.ndarray] = []
    while sum(map(len, kept)) < draws:
        chosen = rng.integers(0, n, (draws, n))
        x = design[chosen]
        solvable = np.linalg.matrix_rank(x) == terms
        x, target = x[solvable], y[chosen[solvable]]
        gram, moment = np.einsum("dni,dnj->dij", x, x), np.einsum("dni,dn->di", x, target)
        kept.append(np.linalg.solve(gram, moment[..., None])[..., 0])
    return pd.DataFrame(np.concatenate(kept)[:draws], columns=fit.result.model.exog_names)


def all_fits(frame: pd.DataFrame) -> dict[str, StepFit]:
    """The fits that the data allow: "two terms", "three terms" where batch varies, "with drift" where order is known.

    The first always; the others are left out where they are not identified.
    """
    fits = {"two terms": fit_steps(frame)}
    batch_varies = "batch" in frame and frame.batch.nunique() > 1
    wishes = []
    if batch_varies:
        wishes.append(("three terms", False))
    if "order" in frame:
        wishes.append(("with drift", True))
    for name, drift in wishes:
        try:
            fits[name] = fit_steps(frame, per_request=batch_varies, drift=drift)
        except NanoengineError:  # too few rows, or terms that move together: the smaller fit stands alone
            continue
    return fits
