"""The linear layers of a model alone: as the engine lays them out, and as plain F.linear."""

import random
import statistics
import time

import torch
import torch.nn.functional as F
from rich.table import Table

from nanoengine.models.config import DecoderConfig
from nanoengine.models.linear import Linear
from nanoengine.models.loader import Checkpoint

BATCHES = (1, 4, 16)
_REPEATS = 3


def linear_table(model: str, dtypes: tuple[str, ...], rounds: int) -> Table:
    """Time of all layers' linear operations, ms, and the rate at which their weights were read at batch 1."""
    config = DecoderConfig.from_hf(Checkpoint(model).hf_config)
    ways = {}
    for dtype in dtypes:
        weights = _layer_weights(config, getattr(torch, dtype))
        ways["as loaded", dtype] = [(Linear(weight), weight.shape[1]) for weight in weights]
        ways["F.linear", dtype] = [(_plain(weight), weight.shape[1]) for weight in weights]
    num_bytes = {dtype: sum(layer.num_bytes for layer, _ in ways["as loaded", dtype]) for dtype in dtypes}
    times = _measure(ways, rounds)
    table = Table(title=f"linear layers alone (x {config.layers}), ms")
    for column in ("dtype", "layout", *(f"batch {batch}" for batch in BATCHES), "GB/s at batch 1"):
        table.add_column(column, justify="right")
    for way, dtype in ways:
        medians = [statistics.median(times[way, dtype, batch]) for batch in BATCHES]
        rate_gb_per_s = num_bytes[dtype] / medians[0] / 1e6
        table.add_row(dtype, way, *(f"{median:.1f}" for median in medians), f"{rate_gb_per_s:.1f}")
    return table


def _layer_weights(config: DecoderConfig, dtype: torch.dtype) -> list[torch.Tensor]:
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = [
        (q + 2 * kv, config.hidden),
        (config.hidden, q),
        (2 * config.intermediate, config.hidden),
        (config.hidden, config.intermediate),
    ]
    return [torch.randn(shape, dtype=dtype) / shape[1] ** 0.5 for _ in range(config.layers) for shape in shapes]


def _plain(weight: torch.Tensor):
    return lambda x: F.linear(x, weight)


@torch.inference_mode()
def _measure(ways: dict, rounds: int) -> dict[tuple[str, str, int], list[float]]:
    shuffle = random.Random(0)
    jobs = [(way, dtype, batch) for way, dtype in ways for batch in BATCHES]
    times = {job: [] for job in jobs}
    for _ in range(rounds):
        for way, dtype, batch in shuffle.sample(jobs, len(jobs)):
            layers = ways[way, dtype]
            inputs = {width: torch.randn(batch, width, dtype=getattr(torch, dtype)) for _, width in layers}
            for repeat in range(1 + _REPEATS):
                begin = time.perf_counter()
                for layer, width in layers:
                    layer(inputs[width])
                if repeat:  # the first one warms up
                    times[way, dtype, batch].append((time.perf_counter() - begin) * 1e3)
    return times
