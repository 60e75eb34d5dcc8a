"""What to doubt in a fit: rows that no machine can produce, and terms that the data do not tell apart. Chapter 10."""

import numpy as np
import pandas as pd

from nanoengine.costmodel.fit import TERMS, StepFit
from nanoengine.errors import NanoengineError

_LARGE_COOKS_DISTANCE = 1.0
_TOGETHER = 0.95  # correlation above which two columns hardly vary apart


def implied_rates(
    frame: pd.DataFrame, bandwidth_gb_per_s: float, weight_bytes: float = 0.0, cache_bytes: float | None = None
) -> pd.DataFrame:
    """What each row says of the memory, and whether the memory can do it.

    frame: kv_bytes, step_ms (or kernel time in step_ms, with weight_bytes 0). bandwidth_gb_per_s: the data sheet's.
    cache_bytes: last-level cache; KV that fits in it need not come from memory. Adds implied_gb_per_s =
    (weight_bytes + kv_bytes) / step_ms, fraction_of_data_sheet, and verdict: "possible", "cached" (above the data
    sheet, but the KV fits in the cache and there are no weights to read), or "impossible".
    """
    if not bandwidth_gb_per_s > 0:
        raise NanoengineError(f"The bandwidth must be positive, not {bandwidth_gb_per_s} GB/s.")
    moved = weight_bytes + frame.kv_bytes.astype(float)
    rate = moved / frame.step_ms.astype(float) / 1e6
    fraction = rate / bandwidth_gb_per_s
    in_cache = (moved <= (cache_bytes or 0)) & (weight_bytes == 0)
    verdict = np.where(fraction <= 1, "possible", np.where(in_cache, "cached", "impossible"))
    return frame.assign(implied_gb_per_s=rate, fraction_of_data_sheet=fraction, verdict=verdict)


def not_identified(fit: StepFit) -> list[str]:
    """One sentence for each thing that these points do not settle, however well the line runs through them."""
    data, terms = fit.data, list(fit.result.params.index)
    said = [
        "The fixed cost holds weight reads and overhead together; a second dtype or model size would tell them apart."
    ]
    said += _about_batch(data, terms) + _about_order(data, terms)
    for term in terms:
        low, high = fit.interval(term)
        value, name = fit.result.params[term], TERMS[term][0]
        if term != "order" and value < 0:
            said.append(f"The value of '{name}' is negative ({value:.3g} {TERMS[term][1]}), which is not physical.")
        elif low <= 0 <= high:
            said.append(f"The interval of '{name}' includes zero ({low:.3g} to {high:.3g} {TERMS[term][1]}).")
    for row in np.flatnonzero(fit.cooks_distance > _LARGE_COOKS_DISTANCE):
        said.append(
            f"Row {row + 1} decides the fit (leverage {fit.leverage[row]:.2f}, Cook's distance "
            f"{fit.cooks_distance[row]:.1f}): repeat that measurement before believing the line."
        )
    low, high = fit.kv_range_gib
    said.append(f"Outside {low:.3g} to {high:.3g} GiB of KV the line is a guess.")
    return said


def _about_batch(data: pd.DataFrame, terms: list[str]) -> list[str]:
    if "batch" not in data or data.batch.isna().any():
        return ["The batch of the points is not known, so a cost per request cannot be told from the cost of KV."]
    if data.batch.nunique() == 1:
        return [f"Every point has batch {data.batch[0]:g}, so what each request costs is part of the fixed cost."]
    if "batch" not in terms:
        return ["Batch varies but has no term, so what each request costs is shared between fixed cost and slope."]
    if abs(np.corrcoef(data.batch, data.kv_bytes)[0, 1]) > _TOGETHER:
        return ["Batch and KV rise together, so their costs are hardly told apart; vary the history at one batch."]
    return []


def _about_order(data: pd.DataFrame, terms: list[str]) -> list[str]:
    if "order" not in data or data.order.isna().any():
        return ["The order of the measurements is not known, so a machine that grew hot could look like KV."]
    if abs(np.corrcoef(data.order.rank(), data.kv_bytes.rank())[0, 1]) > _TOGETHER:
        return ["KV rose as time passed, so heat and KV cannot be told apart; measure in random order."]
    if "order" not in terms and len(data) > len(terms) + 1:
        return ["The order is known but has no term; fit with drift to see whether the machine changed."]
    return []
