"""The real engines behind a sweep, on a model small enough for a test; SmolLM2 where its size matters."""

import pytest
import torch

from nanoengine import LLM
from nanoengine.errors import NanoengineError
from nanoengine.sweep.backends import load_backend
from nanoengine.sweep.backends.nanoengine import NanoengineBackend
from nanoengine.sweep.runner import run_sweep, summary


@pytest.fixture
def llm(tiny_config):
    return LLM(tiny_config, num_kv_blocks=200)


def test_the_engine_describes_itself(llm):
    found = NanoengineBackend(llm=llm).describe()
    assert (found.backend, found.dtype, found.device) == ("nanoengine", "float32", llm.device)
    assert found.kv_bytes_per_token == 2 * 2 * 2 * 8 * 4  # layers, K and V, KV heads, head size, bytes
    assert found.weight_bytes == llm.weight_bytes
    assert (found.kv_capacity_tokens, found.kv_block_tokens) == (200 * 16, 16)
    assert found.max_context == 256


def test_a_step_attends_to_the_history_that_was_prepared(llm, monkeypatch):
    from nanoengine import kernels

    attended = []
    real = kernels.paged_decode

    def spy(q, k_cache, v_cache, block_tables, context_lens, *rest, **named):
        attended.append(context_lens.tolist())
        return real(q, k_cache, v_cache, block_tables, context_lens, *rest, **named)

    monkeypatch.setattr(kernels, "paged_decode", spy)
    backend = NanoengineBackend(llm=llm)
    backend.prepare(3, 40)
    backend.step()
    backend.step()
    layers = llm.model.config.layers
    assert attended == [[40] * 3] * layers + [[41] * 3] * layers


def test_a_sweep_of_an_llm_leaves_no_sequence_behind_on_close(llm):
    samples = run_sweep(llm, [(1, 8), (4, 100), (1, 256)], progress=False, visits=1, samples_per_visit=2)
    assert set(samples.backend) == {"nanoengine"} and len(summary(samples)) == 3
    backend = NanoengineBackend(llm=llm)
    backend.prepare(2, 10)
    backend.close()
    assert llm.blocks.num_available_blocks == 200


def test_a_batch_that_the_engine_cannot_hold_is_one_sentence(llm):
    with pytest.raises(NanoengineError, match="raise num_kv_blocks"):
        NanoengineBackend(llm=llm).prepare(20, 250)


def test_a_step_that_serves_fewer_requests_than_asked_is_refused(llm):
    backend = NanoengineBackend(llm=llm)
    backend.prepare(2, 20)
    llm.scheduler.abort(next(iter(llm.scheduler.running.values())))
    with pytest.raises(NanoengineError, match="1 of 2 requests"):
        backend.step()


def test_unknown_backend_and_dtype_are_one_sentence():
    with pytest.raises(NanoengineError, match="no backend 'sglang'; choose one of nanoengine, transformers"):
        load_backend("sglang")
    with pytest.raises(NanoengineError, match="dtype is 'int3'"):
        load_backend("transformers", dtype="int3")


@pytest.fixture(scope="module")
def transformers_backend(smollm2_path):
    backend = load_backend("transformers", model=smollm2_path, device="cpu")
    yield backend
    backend.close()


def test_transformers_runs_the_same_weights_and_counts_the_same_bytes(transformers_backend, smollm2):
    theirs, ours = transformers_backend.describe(), NanoengineBackend(llm=smollm2).describe()
    assert theirs.weight_bytes == ours.weight_bytes
    assert theirs.kv_bytes_per_token == ours.kv_bytes_per_token
    assert theirs.max_context == ours.max_context
    prompt = smollm2.tokenizer.encode("The capital of France is")
    with torch.inference_mode():
        logits = transformers_backend.model(torch.tensor([prompt])).logits
    assert smollm2.tokenizer.decode([logits[0, -1].argmax().item()]) == " Paris"


def test_transformers_attends_to_the_history_that_was_prepared(transformers_backend):
    transformers_backend.prepare(2, 30)
    for history in (30, 31):
        transformers_backend.step()
        assert transformers_backend._cache.get_seq_length() == history
        assert transformers_backend._cache.layers[0].keys.shape[:3] == (2, 3, history)
