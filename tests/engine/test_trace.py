"""The step trace: it tells what happened, all of it, and costs nothing once closed."""

import pytest

from nanoengine import LLM, SamplingParams

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture
def crowded(tiny_config):
    """An engine whose pool is too small for the requests of these tests: some are preempted."""
    return LLM(
        tiny_config, block_size=4, num_kv_blocks=12, max_num_seqs=8, max_num_batched_tokens=16, prefix_caching=False
    )


def run(llm, prompts, params=PARAMS):
    with llm.trace() as trace:
        answers = llm.generate(prompts, params, progress=False)
    return trace, answers


def test_every_token_is_in_the_steps(crowded):
    prompts = [[i + 1] * (6 + i) for i in range(4)]
    trace, answers = run(crowded, prompts)
    steps = trace.steps()
    made = sum(len(answer.token_ids) for answer in answers)
    fed = sum(len(prompt) for prompt in prompts) + made - len(prompts)  # the last token of each is never fed in
    assert steps.decode_tokens.sum() + steps.prefill_tokens.sum() - steps.recomputed_tokens.sum() == fed
    assert (steps.decode_tokens + steps.prefill_tokens).max() <= 16
    assert steps.finished.sum() == len(prompts)


def test_the_pool_is_accounted_for_at_every_step(crowded):
    steps = run(crowded, [[i + 1] * 9 for i in range(5)])[0].steps()
    assert (steps.used_blocks + steps.cached_blocks + steps.free_blocks == 12).all()
    assert steps.step_ms.notna().all() and (steps.step_ms > 0).all()
    assert steps.start_s.is_monotonic_increasing


def test_a_preemption_is_told_with_what_it_wasted(crowded):
    trace, _ = run(crowded, [[i + 1] * 10 for i in range(4)])
    steps, events = trace.steps(), trace.events()
    preempted = events[events.event == "preempt"]
    assert len(preempted) == steps.preempted.sum() > 0
    assert (preempted.blocks_lost.map(len) > 0).all() and (preempted.block_table.map(len) == 0).all()
    assert steps.recomputed_tokens.sum() > 0
    again = events[events.reason == "computed again after preemption"]
    assert set(again.seq_id) == set(preempted.seq_id)


def test_a_request_is_admitted_first_and_finishes_last(crowded):
    events = run(crowded, [[1, 2, 3], [4] * 8])[0].events()
    for _, own in events.groupby("seq_id"):
        assert own.event.iloc[0] == "admit" and own.event.iloc[-1] == "finish"
        assert own.reason.iloc[-1] == "length"
        computed = own[own.event.isin(["prefill", "decode"])]
        assert computed.tokens.sum() == computed.start_token.iloc[-1] + computed.tokens.iloc[-1]


def test_without_sharing_no_block_has_two_owners_in_a_step(crowded):
    blocks = run(crowded, [[i + 1] * 10 for i in range(4)])[0].blocks()
    assert len(blocks)
    for _, stays in blocks.groupby("block"):
        assert (stays.first_step.iloc[1:].to_numpy() > stays.last_step.iloc[:-1].to_numpy()).all()


def test_a_shared_beginning_shows_as_cached_tokens(tiny_config):
    llm = LLM(tiny_config, block_size=4, num_kv_blocks=32)
    prompt = list(range(1, 14))
    cold = run(llm, [prompt])[0].steps()
    warm = run(llm, [prompt])[0].steps()
    assert cold.cached_tokens.sum() == 0
    assert warm.cached_tokens.sum() == 12  # three whole blocks; the last token is always computed
    assert warm.prefill_tokens.sum() == cold.prefill_tokens.sum() - 12


def test_who_waits_is_told_why(crowded):
    steps = run(crowded, [[i + 1] * 16 for i in range(4)])[0].steps()
    waiting = steps[steps.waiting > 0]
    assert len(waiting) and waiting.held_back.notna().all()


def test_a_closed_trace_records_nothing_more(crowded):
    trace, _ = run(crowded, [[1, 2, 3]])
    before = len(trace.steps())
    crowded.generate([[1, 2, 3]], PARAMS, progress=False)
    assert len(trace.steps()) == before and crowded.scheduler.trace is None
