"""nano-vLLM's published benchmark, priced by simulation: 256 requests, Qwen3-0.6B, an 8 GB laptop card. Chapter 12."""

import pandas as pd

from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.model import ModelSpec
from nanoengine.costmodel.simulate import EngineSettings, simulate
from nanoengine.costmodel.simulation import Simulation
from nanoengine.costmodel.workload import headline_workload
from nanoengine.datasets import load_table


def simulate_headline(
    kv_pool_gb: float = 4.0,
    block_size: int = 256,
    efficiency: float = 1.0,
    compute_efficiency: float = 1.0,
    overhead_ms: float = 0.0,
) -> Simulation:
    """The benchmark with nano-vLLM's limits (512 requests and 16,384 tokens a step, context 4,096).

    kv_pool_gb is not published: 8 GB less weights, activations and the desktop leave 3.5 to 5.
    """
    settings = EngineSettings(
        kv_pool_gb=kv_pool_gb,
        block_size=block_size,
        max_num_seqs=512,
        max_num_batched_tokens=16_384,
        max_model_len=4096,
    )
    return simulate(
        headline_workload(),
        ModelSpec.from_config("qwen3-0.6b"),
        DeviceSpec.named("rtx-4070-laptop"),
        settings,
        efficiency,
        compute_efficiency,
        overhead_ms,
    )


def headline_sensitivity() -> pd.DataFrame:
    """How far each unknown moves the simulated time, one at a time: columns varied, value, total_s, change.

    change is relative to the first row: 4 GB, blocks of 256, nothing lost. The last rows are the two published times.
    """
    variations = [
        ("nothing", {}),
        *(("kv_pool_gb", {"kv_pool_gb": pool}) for pool in (3.0, 3.5, 4.5, 5.0, 6.0)),
        *(("block_size", {"block_size": size}) for size in (16, 64)),
        *(("efficiency", {"efficiency": share}) for share in (0.95, 0.9, 0.8)),
        *(("compute_efficiency", {"compute_efficiency": share}) for share in (0.75, 0.5)),
        *(("overhead_ms", {"overhead_ms": ms}) for ms in (1.0, 2.0)),
    ]
    rows = [(name, next(iter(v.values()), None), simulate_headline(**v).total_s) for name, v in variations]
    published = load_table("headline_benchmark")
    rows += [(f"published: {row.framework}", None, row.total_s) for row in published.itertuples()]
    table = pd.DataFrame(rows, columns=["varied", "value", "total_s"])
    return table.assign(change=table.total_s / table.total_s[0] - 1)
