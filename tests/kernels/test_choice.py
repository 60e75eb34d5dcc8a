"""Which kernels serve a call, and what the engine makes of them."""

import pytest
import torch

from nanoengine import LLM, NanoengineError, SamplingParams, kernels
from nanoengine.commands import doctor
from nanoengine.kernels import native, torch_reference

needs_native = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))


@pytest.fixture
def served(monkeypatch):
    """Names of the backends that served paged_decode, in order."""
    names = []
    for module, name in ((native, "native"), (torch_reference, "torch")):
        real = module.paged_decode
        monkeypatch.setattr(module, "paged_decode", lambda *a, real=real, name=name: (names.append(name), real(*a))[1])
    monkeypatch.delenv("NANOENGINE_KERNELS", raising=False)
    return names


def decode(head_dim=64, dtype=torch.float32, backend=None):
    cache = torch.ones(2, 4, 16, 1, head_dim, dtype=dtype)
    kernels.store_kv(*torch.ones(2, 1, 1, head_dim, dtype=dtype), *cache, torch.tensor([5]), backend=backend)
    q = torch.ones(1, 2, head_dim, dtype=dtype)
    return kernels.paged_decode(q, *cache, torch.tensor([[2, 1]]), torch.tensor([20]), 0.1, backend=backend)


def test_every_backend_is_listed_and_one_that_cannot_run_says_why(monkeypatch):
    assert tuple(kernels.backends()) == kernels.NAMES
    assert kernels.backends()["torch"] is None
    monkeypatch.setattr(native, "load", lambda: "there is no C++ compiler")
    assert kernels.backends()["native"] == "there is no C++ compiler"


@needs_native
def test_native_serves_what_it_takes_and_torch_the_rest(served):
    for arguments in ({}, {"dtype": torch.bfloat16}, {"dtype": torch.float16}, {"head_dim": 65}):
        assert (decode(**arguments) == 1).all()
    assert served == ["native", "native", "torch", "torch"]


@needs_native
def test_the_argument_outranks_the_environment(served, monkeypatch):
    decode(backend="torch")
    monkeypatch.setenv("NANOENGINE_KERNELS", "torch")
    decode()
    decode(backend="native")
    assert served == ["torch", "torch", "native"]


def test_triton_serves_when_it_is_named(served):
    if reason := kernels.backends()["triton"]:
        pytest.skip(reason)
    assert (decode(backend="triton") == 1).all()
    assert served == []


def test_a_backend_that_was_named_is_never_replaced(monkeypatch):
    with pytest.raises(NanoengineError, match="not float16; use the torch kernels"):
        decode(dtype=torch.float16, backend="native")
    with pytest.raises(NanoengineError, match="no kernels called 'cuda'; use one of native, torch, triton"):
        decode(backend="cuda")
    monkeypatch.setattr(native, "load", lambda: "there is no C++ compiler")
    monkeypatch.setenv("NANOENGINE_KERNELS", "native")
    with pytest.raises(NanoengineError, match=r"There is no C\+\+ compiler"):
        decode()


@needs_native
def test_the_engine_gives_the_same_tokens_on_both(served, monkeypatch, tiny_config):
    config = {**tiny_config, "head_dim": 32, "num_attention_heads": 6}
    prompts = [list(range(1, 1 + n)) for n in (1, 17, 40)]
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    tokens = {}
    for name in ("native", "torch"):
        monkeypatch.setenv("NANOENGINE_KERNELS", name)
        llm = LLM(config, dtype="float32", num_kv_blocks=64)
        llm.runner.kv_cache.fill_(float("nan"))
        tokens[name] = [c.token_ids for c in llm.generate(prompts, params, progress=False)]
    assert tokens["native"] == tokens["torch"]
    assert set(served) == {"native", "torch"}


@needs_native
def test_doctor_says_which_kernels_the_cpu_has(monkeypatch):
    (check,) = doctor._cpu_kernels()
    assert check.state == "ok" and "native" in check.found
    monkeypatch.setattr(native, "load", lambda: "there is no C++ compiler; install g++")
    (check,) = doctor._cpu_kernels()
    assert check.state == "optional" and "install g++" in check.found and "slower" in check.fix
