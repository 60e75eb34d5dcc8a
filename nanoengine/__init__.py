"""What a token costs: a price model for LLM decode, and a small engine to check it on.

The public names are imported on first use, so that pricing a model never imports torch.
"""

import importlib

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
