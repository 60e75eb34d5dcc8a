"""Parts of nanoengine that need more than the price model does."""

import importlib.util

from nanoengine.errors import NanoengineError


def need(module: str, extra: str) -> None:
    """Raise NanoengineError with the install command when `module` of the extra `extra` is not installed."""
    if importlib.util.find_spec(module) is None:
        raise NanoengineError(f"This needs {module}, which is not installed; run: pip install 'nanoengine[{extra}]'")
