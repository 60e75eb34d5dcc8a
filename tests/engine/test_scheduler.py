"""The scheduler and block manager alone: no model, no torch."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoengine.engine.block_manager import BlockManager
from nanoengine.engine.scheduler import Scheduler
from nanoengine.engine.sequence import SamplingParams, Sequence, Status
from nanoengine.errors import NanoengineError


def make_scheduler(num_blocks=64, block_size=4, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=128):
    return Scheduler(BlockManager(num_blocks, block_size), max_num_seqs, max_num_batched_tokens, max_model_len)


def make_sequence(seq_id, prompt_len, max_tokens=4):
    return Sequence(seq_id, [1] * prompt_len, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def run_step(scheduler, token=1):
    step = scheduler.schedule()
    scheduler.update(step, {chunk.seq.seq_id: token for chunk in step.chunks if chunk.samples})
    return step


@pytest.mark.parametrize("block_size", [1, 2, 16, 256])
def test_decode_takes_a_block_exactly_when_the_length_passes_a_boundary(block_size):
    blocks = BlockManager(1000, block_size)
    seq = make_sequence(0, 1)
    for length in range(1, 2 * block_size + 3):
        blocks.reserve(seq, length)
        assert len(seq.block_table) == (length - 1) // block_size + 1


def test_chunks_cover_the_prompt_once_and_only_the_last_one_samples():
    scheduler = make_scheduler(max_num_batched_tokens=10)
    seq = make_sequence(0, 25, max_tokens=2)
    scheduler.add(seq)
    steps = [run_step(scheduler) for _ in range(4)]
    assert [step.num_tokens for step in steps] == [10, 10, 5, 1]
    assert [len(step.sampled) for step in steps] == [0, 0, 1, 1]
    assert seq.finish_reason == "length" and len(seq.output_token_ids) == 2


def test_arriving_prompts_never_starve_a_decode():
    scheduler = make_scheduler(num_blocks=1000, max_num_seqs=64, max_num_batched_tokens=64)
    first = make_sequence(0, 4, max_tokens=40)
    scheduler.add(first)
    run_step(scheduler)
    for arrival in range(1, 30):
        scheduler.add(make_sequence(arrival, 60, max_tokens=1))
        before = len(first)
        run_step(scheduler)
        assert len(first) == before + 1


def test_no_more_sequences_run_than_allowed():
    scheduler = make_scheduler(max_num_seqs=2)
    for i in range(6):
        scheduler.add(make_sequence(i, 3))
    while scheduler.has_work:
        assert len(run_step(scheduler).chunks) <= 2
        assert len(scheduler.running) <= 2


def test_the_youngest_is_preempted_and_computed_again():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    old, young = make_sequence(0, 8, max_tokens=8), make_sequence(1, 8, max_tokens=8)
    scheduler.add(old)
    scheduler.add(young)
    run_step(scheduler)
    step = run_step(scheduler)  # both need a third block, and one is left
    assert step.preempted == [young] and [c.seq for c in step.decodes] == [old]
    assert young.status is Status.WAITING and young.block_table == [] and young.num_computed_tokens == 0
    while scheduler.has_work:
        run_step(scheduler)
    assert [len(s.output_token_ids) for s in (old, young)] == [8, 8]
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)


def test_abort_frees_the_blocks_of_waiting_and_of_half_prefilled_sequences():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    running, waiting = make_sequence(0, 20), make_sequence(1, 5)
    scheduler.add(running)
    run_step(scheduler)
    scheduler.add(waiting)
    scheduler.abort(waiting)
    scheduler.abort(running)
    scheduler.abort(running)
    assert not scheduler.has_work and scheduler.blocks.num_available_blocks == 64
    assert running.finish_reason == waiting.finish_reason == "abort"


def test_a_sequence_aborted_while_its_step_runs_is_left_alone():
    scheduler = make_scheduler()
    seq = make_sequence(0, 4)
    scheduler.add(seq)
    step = scheduler.schedule()
    scheduler.abort(seq)
    scheduler.update(step, {0: 1})
    assert len(seq) == 4 and scheduler.blocks.num_available_blocks == 64


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "says"),
    [
        (128, 4, "prompt has 128 tokens, but the context holds 128"),
        (60, 30, "may grow to 90 tokens, 23 KV blocks of 4, but the pool has 20"),
    ],
)
def test_a_request_that_can_never_finish_is_refused_with_its_numbers(prompt_len, max_tokens, says):
    scheduler = make_scheduler(num_blocks=20)
    with pytest.raises(NanoengineError, match=says):
        scheduler.add(make_sequence(0, prompt_len, max_tokens))
    assert not scheduler.has_work


def test_a_budget_below_the_batch_is_refused():
    with pytest.raises(NanoengineError, match="max_num_batched_tokens"):
        make_scheduler(max_num_seqs=8, max_num_batched_tokens=7)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": float("nan")}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"max_tokens": 0}],
)
def test_sampling_parameters_without_meaning_are_refused(wrong):
    with pytest.raises(NanoengineError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_an_empty_prompt_is_refused():
    with pytest.raises(NanoengineError, match="empty"):
        make_sequence(0, 0)


requests = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 5)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=200)
@given(requests, st.sampled_from([1, 3, 4, 16]), st.integers(0, 20), st.data())
def test_every_request_finishes_and_no_block_is_lost_or_shared(arrivals, block_size, spare_blocks, data):
    largest = max(-(-(prompt + output) // block_size) for prompt, output, _ in arrivals)
    total = largest + spare_blocks
    scheduler = make_scheduler(num_blocks=total, block_size=block_size, max_num_seqs=5, max_num_batched_tokens=16)
    sequences, step_index = [], 0
    pending = [(arrival, make_sequence(i, p, o)) for i, (p, o, arrival) in enumerate(arrivals)]
    while pending or scheduler.has_work:
        for _, seq in [x for x in pending if x[0] <= step_index]:
            scheduler.add(seq)
            sequences.append(seq)
        pending = [x for x in pending if x[0] > step_index]
        if sequences and data.draw(st.integers(0, 30)) == 0:
            scheduler.abort(data.draw(st.sampled_from(sequences)))
        step = run_step(scheduler)
        step_index += 1
        owned = [block for seq in sequences for block in seq.block_table]
        assert len(owned) == len(set(owned))
        assert len(owned) + scheduler.blocks.num_available_blocks == total
        assert step.num_tokens <= 16
        assert all(seq.status is not Status.FINISHED or not seq.block_table for seq in sequences)
        assert step_index < 5000
    for (_, output, _), seq in zip(arrivals, sorted(sequences, key=lambda s: s.seq_id), strict=True):
        assert seq.finish_reason in ("length", "abort")
        assert seq.finish_reason == "abort" or len(seq.output_token_ids) == output


def test_scheduler_imports_no_torch():
    code = "import sys, nanoengine.engine.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
