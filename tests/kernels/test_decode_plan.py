"""How a decode is cut, and that the bytes counted from the plan are those that the kernels ask for."""

import pytest
import torch

from nanoengine.kernels.decode_plan import MAX_SPLITS, TILE, bytes_asked, plan_decode


@pytest.fixture
def traffic(monkeypatch):
    """Every load and store of the interpreter while the test runs: (address, bytes) of each lane that is not masked."""
    InterpreterBuilder = pytest.importorskip("triton.runtime.interpreter").InterpreterBuilder
    loads, stores = [], []

    def listen(name, log, mask_at):
        original = getattr(InterpreterBuilder, name)

        def listening(self, pointers, *rest):
            itemsize = pointers.get_element_ty().primitive_bitwidth // 8
            log.extend((address, itemsize) for address in pointers.data[rest[mask_at].data].tolist())
            return original(self, pointers, *rest)

        monkeypatch.setattr(InterpreterBuilder, name, listening)

    listen("create_masked_load", loads, 0)  # the unmasked ones come through here too
    listen("create_masked_store", stores, 1)
    return loads, stores


def bytes_within(log, *tensors):
    spans = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors]
    return sum(size for address, size in log if any(start <= address < start + n for start, n in spans))


@pytest.mark.parametrize("num_splits", [1, 2, 4, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_bytes_asked_are_the_bytes_that_the_kernels_ask_for(paged_history, traffic, num_splits, dtype):
    from nanoengine.kernels import triton_kernels

    lens = [1, TILE - 1, TILE, 3 * TILE + 1, 0]
    history = paged_history([max(length, 1) for length in lens], 7, 1, 80, dtype=dtype)
    history.context_lens[-1] = 0
    loads, stores = traffic
    triton_kernels.paged_decode(*history.arguments(), num_splits)

    plan = triton_kernels.launch_plan(history.q, history.k_cache, history.block_tables, num_splits)
    count = bytes_asked(plan, lens, history.q.itemsize)
    assert count.kv == bytes_within(loads, history.k_cache, history.v_cache)
    assert count.q == bytes_within(loads, history.q)
    assert count.block_table == bytes_within(loads, history.block_tables)
    assert count.context_lens == bytes_within(loads, history.context_lens)
    named = count.kv + count.q + count.block_table + count.context_lens
    assert count.partials == 2 * (sum(size for _, size in loads) - named)
    assert count.out + count.partials / 2 == sum(size for _, size in stores)
    assert count.asked == sum(size for _, size in loads + stores)
    assert count.must_read == sum(lens) * 2 * 1 * 80 * history.q.itemsize
    assert (count.partials > 0) == (num_splits > 1)


def test_splitting_adds_less_than_a_tenth_to_what_must_be_read():
    """Llama 3.1 8B at batch 1 and 4,096 tokens in 16 bits: the most splits for the least history."""
    plan = plan_decode(1, 32, 8, 128, 4096, num_sms=132)
    count = bytes_asked(plan, [4096], 2)
    assert count.must_read == 4096 * 2 * 8 * 128 * 2
    assert 1 < count.asked / count.must_read < 1.1


@pytest.mark.parametrize(
    ("batch", "max_context", "num_sms", "splits"),
    [
        (1, 131072, 132, 33),  # 2 programs on each of 132 multiprocessors, over 8 KV heads
        (4, 131072, 132, 9),
        (33, 131072, 132, 1),
        (1000, 131072, 132, 1),
        (1, 131072, 10_000, MAX_SPLITS),
        (1, 2 * TILE + 1, 132, 3),  # none shorter than a tile
        (1, 1, 132, 1),
        (0, 0, 132, 1),
        (1, 4096, 0, 2),  # interpreted
        (64, 4096, 0, 2),
        (1, TILE, 0, 1),
    ],
)
def test_splits_fill_the_machine_and_no_more(batch, max_context, num_sms, splits):
    assert plan_decode(batch, 32, 8, 128, max_context, num_sms).num_splits == splits


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 64])
def test_live_splits_share_the_tiles_evenly(num_splits):
    plan = plan_decode(1, 1, 1, 64, 10**6, 1, num_splits)
    for length in [*range(0, 5 * TILE), 64 * TILE, 65 * TILE, 10**6]:
        tiles = -(-length // TILE)
        per_split = -(-tiles // num_splits)
        live = sum(1 for split in range(num_splits) if split * per_split < tiles)
        assert plan.live_splits(length) == live


@pytest.mark.parametrize(("group", "rows"), [(1, 16), (7, 16), (16, 16), (17, 32), (32, 32)])
@pytest.mark.parametrize(("head_dim", "padded"), [(8, 16), (64, 64), (80, 128), (128, 128)])
def test_matrices_are_padded_to_sides_that_a_gpu_multiplies(group, rows, head_dim, padded):
    plan = plan_decode(2, 3 * group, 3, head_dim, 100, 1, 4)
    assert (plan.group, plan.rows, plan.padded_dim, plan.grid) == (group, rows, padded, (3, 4, 2))
