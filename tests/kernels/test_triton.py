"""The Triton kernels, interpreted on the CPU, against SDPA in float32."""

import pytest
import torch

from nanoengine import LLM, NanoengineError, SamplingParams, kernels
from nanoengine.kernels.decode_plan import TILE

pytest.importorskip("triton")

from nanoengine.kernels import triton_kernels

pytestmark = pytest.mark.usefixtures("uninitialized_is_nan")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
BORDERS = [1, 16, TILE - 1, TILE, TILE + 1, 2 * TILE + 22]


def largest_error(history, num_splits=None):
    out = triton_kernels.paged_decode(*history.arguments(), num_splits)
    assert out.shape == history.q.shape and out.dtype == history.q.dtype
    return (out.float() - history.attention()).abs().nan_to_num(nan=torch.inf).max().item()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("block_size", "head_dim", "heads", "kv_heads", "num_splits", "lens"),
    [
        (16, 64, 6, 2, 1, BORDERS),
        (16, 80, 7, 1, 4, BORDERS),
        (16, 128, 2, 2, None, BORDERS),
        (1, 80, 3, 1, 1, [1, 2, TILE, TILE + 5]),
        (1, 64, 7, 1, 4, [1, 2, TILE, TILE + 5]),
        (64, 128, 14, 2, 1, [63, 64, 65, 129]),
        (64, 80, 2, 2, 4, [63, 64, 65, 129]),
        (256, 64, 3, 1, 4, [1, 255, 256, 257]),
        (256, 128, 6, 2, 1, [1, 255, 256, 257]),
        (48, 64, 18, 1, 2, [47, 48, 49, 96, 100]),
        (16, 8, 6, 2, 64, [1, 100]),
    ],
)
def test_decode_equals_attention(paged_history, block_size, head_dim, heads, kv_heads, num_splits, lens, dtype):
    history = paged_history(lens, heads, kv_heads, head_dim, block_size, dtype)
    assert largest_error(history, num_splits) < TOLERANCE[dtype]


def test_scores_far_from_zero_do_not_overflow(paged_history):
    history = paged_history([100, 200])
    history.q *= 300
    assert largest_error(history, 1) < 1e-3 and largest_error(history, 4) < 1e-3


@pytest.mark.parametrize("num_splits", [1, 3])
def test_an_empty_history_gives_zeros_and_leaves_its_neighbours_alone(paged_history, num_splits):
    history = paged_history([5, 70, 70])
    history.context_lens[1] = 0
    out = triton_kernels.paged_decode(*history.arguments(), num_splits)
    assert (out[1] == 0).all()
    assert (out - history.attention())[[0, 2]].abs().max() < 1e-5


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_indices_may_be_strided_and_of_either_width(paged_history, index_dtype):
    history = paged_history([5, 20, 70])
    tables = history.block_tables.to(index_dtype).t().contiguous().t()
    lens = torch.stack([history.context_lens, torch.full_like(history.context_lens, 999)], dim=1).to(index_dtype)[:, 0]
    assert tables.stride(1) != 1 and lens.stride(0) == 2
    history.block_tables, history.context_lens = tables, lens
    assert largest_error(history) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_store_writes_the_named_slots_bit_for_bit_and_no_others(dtype):
    block_size, kv_heads, head_dim = 4, 3, 80
    slots = torch.tensor([17, -1, 0, 5, 23, -1, 16]).repeat_interleave(2)[::2]  # strided too
    qkv = torch.randn(len(slots), 4 * kv_heads, head_dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    k, v = qkv[:, kv_heads : 2 * kv_heads], qkv[:, 2::4].transpose(0, 1).contiguous().transpose(0, 1)
    pool = torch.full((7, 2, block_size, kv_heads, head_dim), 7.0, dtype=dtype)
    others = torch.full((7, kv_heads, block_size, head_dim), 7.0, dtype=dtype)
    k_cache, v_cache = pool[1:, 0], others[1:].transpose(1, 2)
    assert not any(x.is_contiguous() for x in (k, v, k_cache, v_cache))

    triton_kernels.store_kv(k, v, k_cache, v_cache, slots)
    for source, cache in ((k, k_cache), (v, v_cache)):
        expected = torch.full((6 * block_size, kv_heads, head_dim), 7.0, dtype=dtype)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                expected[slot] = source[row]
        assert torch.equal(cache.flatten(0, 1), expected)
    assert (pool[0] == 7).all() and (pool[:, 1] == 7).all() and (others[0] == 7).all(), "written outside the cache"


def test_the_engine_generates_the_same_tokens(tiny_config, monkeypatch):
    prompts = [list(range(1, 1 + n)) for n in (1, 4, 5, TILE + 3)]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    calls = []

    def traced(name):
        kernel = getattr(triton_kernels, name)

        def call(*args, **_):
            calls.append(name)
            return kernel(*args[:6])

        return call

    llm = LLM(tiny_config, num_kv_blocks=64, block_size=4)
    expected = [output.token_ids for output in llm.generate(prompts, params, progress=False)]
    llm = LLM(tiny_config, num_kv_blocks=64, block_size=4)
    llm.runner.kv_cache.fill_(float("nan"))
    for name in ("store_kv", "paged_decode"):
        monkeypatch.setattr(kernels, name, traced(name))
    tokens = [output.token_ids for output in llm.generate(prompts, params, progress=False)]
    assert tokens == expected and len({*map(tuple, tokens)}) > 1
    assert calls.count("paged_decode") >= 5 * tiny_config["num_hidden_layers"] and "store_kv" in calls


@pytest.mark.parametrize("num_splits", [0, -1, 65])
def test_a_number_of_splits_out_of_range_is_refused(paged_history, num_splits):
    with pytest.raises(NanoengineError, match=f"num_splits is {num_splits}; give 1 to 64"):
        triton_kernels.paged_decode(*paged_history([3]).arguments(), num_splits)


def test_shapes_that_do_not_fit_are_refused(paged_history):
    q, k_cache, v_cache, tables, lens, scale = paged_history([3, 4]).arguments()
    for arguments in (
        (q[..., :32], k_cache, v_cache, tables, lens),
        (q, k_cache[:, :8], v_cache, tables, lens),
        (q, k_cache, v_cache, tables[:1], lens),
        (q, k_cache, v_cache, tables, lens[:1]),
    ):
        with pytest.raises(NanoengineError, match="shapes do not fit together: q "):
            triton_kernels.paged_decode(*arguments, scale)
    with pytest.raises(NanoengineError, match="5 query heads cannot share 2 KV heads"):
        triton_kernels.paged_decode(q[:, :5], k_cache, v_cache, tables, lens, scale)
    k = torch.zeros(3, 2, 64)
    with pytest.raises(NanoengineError, match="shapes do not fit together: k "):
        triton_kernels.store_kv(k, k, k_cache, v_cache, torch.tensor([0, 1]))


def test_cpu_tensors_are_refused_where_triton_compiles(paged_history, monkeypatch):
    monkeypatch.setattr(triton_kernels, "INTERPRETED", False)
    history = paged_history([3])
    with pytest.raises(NanoengineError, match="these tensors are on cpu"):
        triton_kernels.paged_decode(*history.arguments())
    with pytest.raises(NanoengineError, match="these tensors are on cpu"):
        triton_kernels.store_kv(history.keys[0], history.values[0], history.k_cache, history.v_cache, torch.arange(3))
