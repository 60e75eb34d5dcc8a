"""Predicted against published, for every stored decode measurement: where the price model is right, and where not."""

from dataclasses import replace

import numpy as np
import pandas as pd

from nanoengine.costmodel.decode import price_step
from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.headline import simulate_headline
from nanoengine.costmodel.model import ModelSpec
from nanoengine.datasets import load_table


def predictions() -> pd.DataFrame:
    """Every stored step time that can be priced, one row each, with no fitted parameter.

    Columns: series, device, model, engine, chips, batch, history, measured_ms, predicted_ms (full bandwidth of the data
    sheet, no overhead; chips share weights and KV evenly and talk for free), ratio = predicted / measured, suspect.
    A ratio above 1 means a measurement that the data sheet does not allow. Runs that mix prompts into the time per
    token are suspect, and kept.
    """
    rows = pd.concat([_measurements(), _dgx_spark()], ignore_index=True)
    predicted = []
    alike = ["device", "model", "weight_dtype", "kv_dtype"]
    for (device, model, weights, kv), cells in rows.groupby(alike, sort=False):
        spec = ModelSpec.from_config(model, weights, kv)
        # Benchmarks of random tokens may run past the context that a model was trained for.
        spec = replace(spec, max_context=max(spec.max_context, int(cells.history.max()) + 1))
        priced = price_step(spec, DeviceSpec.named(device), cells.batch, cells.history)
        predicted.append(pd.Series(priced.step_ms.to_numpy() / cells.chips.to_numpy(), index=cells.index))
    rows["predicted_ms"] = pd.concat(predicted).sort_index()
    rows["ratio"] = rows.predicted_ms / rows.measured_ms
    return rows.drop(columns=["weight_dtype", "kv_dtype"])


def accuracy_table(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Median absolute errors by series and engine, without and with one factor per device and engine.

    Columns: series, engine, device, n, error (median of |ratio - 1|, no fitted parameter), efficiency (the median
    ratio: the share of the data sheet that the engine reaches), error_with_efficiency, worst_with_efficiency. The last
    row is over all, each row scaled by its own factor.
    efficiency is fitted to the rows that it is judged on, so the last two columns say how much one number explains,
    not how well it would predict another model. rows: as `predictions` returns them.
    """
    rows = predictions() if rows is None else rows
    groups = rows.groupby(["series", "engine", "device"], sort=False)
    scaled = (rows.ratio / groups.ratio.transform("median") - 1).abs()
    plain = (rows.ratio - 1).abs()
    table = [
        (*names, len(cells), plain[cells.index].median(), cells.ratio.median(), *_median_and_worst(scaled[cells.index]))
        for names, cells in groups
    ]
    table.append(("all", "", "", len(rows), plain.median(), rows.ratio.median(), *_median_and_worst(scaled)))
    names = ["series", "engine", "device", "n", "error", "efficiency", "error_with_efficiency", "worst_with_efficiency"]
    return pd.DataFrame(table, columns=names)


def _median_and_worst(errors: pd.Series) -> tuple[float, float]:
    return errors.median(), errors.max()


def end_to_end() -> pd.DataFrame:
    """The stored runs of a whole workload against their simulation with no fitted parameter, for both ends of the
    unpublished KV pool: columns framework, kv_pool_gb, measured_s, predicted_s, ratio.
    """
    published = load_table("headline_benchmark")
    rows = []
    for pool in (3.5, 5.0):
        predicted = simulate_headline(pool).total_s
        rows += [
            (row.framework, pool, row.total_s, predicted, predicted / row.total_s) for row in published.itertuples()
        ]
    return pd.DataFrame(rows, columns=["framework", "kv_pool_gb", "measured_s", "predicted_s", "ratio"])


def _measurements() -> pd.DataFrame:
    table = load_table("measurements")
    known = table.step_ms.notna() & table.model.notna() & table.weight_dtype.notna() & table.history_tokens.notna()
    table = table[known]
    return pd.DataFrame(
        {
            "series": table.series,
            "device": table.device,
            "model": table.model,
            "engine": table.engine,
            "chips": table.chips.astype(float),
            "batch": table.batch.astype(float),
            "history": table.history_tokens.astype(float),
            "measured_ms": table.step_ms.astype(float),
            "suspect": table.suspect.fillna(""),
            "weight_dtype": table.weight_dtype,
            "kv_dtype": table.kv_dtype,
        }
    )


def _dgx_spark() -> pd.DataFrame:
    table = load_table("dgx_spark_decode")
    flagged = (table.framework == "vllm") & (table.batch == 16) & (table.context == 16_384)
    return pd.DataFrame(
        {
            "series": "dgx-spark",
            "device": "gb10",
            "model": "qwen2.5-7b",
            "engine": table.framework,
            "chips": 1.0,
            "batch": table.batch.astype(float),
            "history": table.context.astype(float),
            "measured_ms": table.step_ms.astype(float),
            "suspect": np.where(flagged, "its source says that it needs a repeat", ""),
            "weight_dtype": "float16",
            "kv_dtype": "float16",
        }
    )
