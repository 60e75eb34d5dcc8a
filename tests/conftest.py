"""Fixtures that many tests share: the packaged model, loaded once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import chromium

ROOT = Path(__file__).resolve().parents[1]

# Triton decides between compiling and interpreting when it is imported, so this comes before any test module.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def smollm2_path():
    from nanoengine.models.find import find_model

    return find_model("smollm2")


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct in float32; tests that use it leave no sequence behind."""
    from nanoengine import LLM

    return LLM("smollm2", dtype="float32", num_kv_blocks=1024)


@pytest.fixture(scope="session")
def tiny_config():
    """A Llama of a few thousand parameters, for tests where only the machinery matters."""
    return {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 96,
        "vocab_size": 128,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }


@pytest.fixture(scope="session")
def built_book():
    """The folder of the built site; builds it when its sources have changed."""
    run = subprocess.run([sys.executable, "book/build.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests: its driver allows no second one in a process."""
    with chromium() as browser:
        yield browser
