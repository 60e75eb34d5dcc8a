"""What a token costs: a price model for LLM decode, and a small engine to check it on.

The public names are imported on first use, so that pricing a model never imports torch.
"""

import importlib
import os

# OpenMP threads wait for one another by spinning. Without a bound on it, a step whose threads share the cores with any
# other program takes tens of times as long; with this one it is no slower on quiet cores. Read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# Weights and KV cache are read end to end each step: in pages of 2 MiB that takes some 5% less time (Linux only).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"

_HOMES = {
    "LLM": "nanoengine.engine.llm",
    "SamplingParams": "nanoengine.engine.sequence",
    "ModelSpec": "nanoengine.costmodel.model",
    "DeviceSpec": "nanoengine.costmodel.device",
    "average_history": "nanoengine.costmodel.decode",
    "price_step": "nanoengine.costmodel.decode",
    "fit_steps": "nanoengine.costmodel.fit",
    "run_sweep": "nanoengine.sweep.runner",
    "load_table": "nanoengine.datasets",
    "NanoengineError": "nanoengine.errors",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'nanoengine' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__():
    return [*globals(), *__all__]
