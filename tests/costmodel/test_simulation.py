"""The simulator: the headline benchmark, hand-counted schedules, and what must hold for any workload."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoengine import DeviceSpec, ModelSpec, NanoengineError, load_table, price_step
from nanoengine.costmodel.headline import headline_sensitivity, simulate_headline
from nanoengine.costmodel.prefill import price_prefill
from nanoengine.costmodel.simulate import EngineSettings, simulate
from nanoengine.costmodel.step_clock import StepClock
from nanoengine.costmodel.workload import headline_workload, poisson_workload, read_workload

MODEL, CARD = ModelSpec.from_config("qwen3-0.6b"), DeviceSpec.named("rtx-4070-laptop")


def requests(*rows):
    return pd.DataFrame(rows, columns=["arrival_s", "prompt_tokens", "output_tokens"])


class TestHeadline:
    def test_the_workload_is_the_published_one(self):
        workload = headline_workload()
        assert len(workload) == 256 and workload.prompt_tokens.sum() == 142_827
        assert workload.output_tokens.sum() == 133_966 == load_table("headline_benchmark").output_tokens[0]
        assert workload[["prompt_tokens", "output_tokens"]].min().min() >= 100

    def test_kv_read_and_room_needed(self):
        workload, k = headline_workload(), MODEL.kv_bytes_per_token
        steps = workload.output_tokens - 1  # prefill yields the first token
        attended = (steps * (workload.prompt_tokens + workload.output_tokens / 2)).sum()
        assert attended * k / 1e12 == pytest.approx(13.85, abs=0.02)
        assert attended * k / 256e9 == pytest.approx(54.1, abs=0.1)
        assert workload.prompt_tokens.sum() * k / 2**30 == pytest.approx(15.3, abs=0.05)
        assert (workload.prompt_tokens + workload.output_tokens).sum() * k / 2**30 == pytest.approx(29.6, abs=0.05)

    def test_priced_with_no_fitted_parameter(self):
        small, large = simulate_headline(3.5), simulate_headline(5.0)
        assert 81 <= small.total_s <= 87 and 79 <= large.total_s <= 87
        assert 1.05 < small.total_s / large.total_s < 1.1  # the pool moves it more than the 5.3 % between the engines
        for simulation in (small, large):
            causes = simulation.causes().set_index("cause").seconds
            assert causes.sum() == pytest.approx(simulation.total_s)
            assert causes["KV read"] == pytest.approx(54.1, abs=0.1) and 17.5 < causes["weights read"] < 24.5
            assert causes["prompts computed again after preemption"] > 2
            assert simulation.requests.preemptions.sum() > 100 and simulation.steps.used_blocks.max() <= 170
        published = load_table("headline_benchmark").total_s
        assert small.total_s < published.min() < 1.2 * large.total_s

    def test_sensitivity(self):
        table = headline_sensitivity().set_index("varied")
        assert (table.loc["efficiency"].total_s > table.total_s["nothing"]).all()
        assert table.loc["kv_pool_gb"].total_s.is_monotonic_decreasing
        assert table.loc["overhead_ms"].change.iloc[0] == pytest.approx(0.056, abs=0.01)  # 1 ms in 4,600 steps
        assert table.total_s["published: nano-vllm"] == 93.41


def test_one_request_by_hand():
    run = simulate(requests((0.5, 100, 4)), MODEL, CARD)
    prefill = price_prefill(MODEL, CARD, 100).prefill_ms[0]
    decodes = price_step(MODEL, CARD, 1, [101, 102, 103]).step_ms
    row = run.requests.iloc[0]
    assert row.ttft_ms == pytest.approx(prefill, rel=0.02)  # one roofline for the whole, or one for each kernel
    assert run.steps.decodes.tolist() == [0, 1, 1, 1]
    assert row.end_s == pytest.approx(0.5 + (row.ttft_ms + decodes.sum()) / 1e3)
    assert row.itl_ms == pytest.approx(decodes.mean())
    idle = run.causes().set_index("cause").seconds["idle"]
    assert idle == pytest.approx(0.5) and row.preemptions == 0


def test_a_step_of_decodes_costs_what_price_step_says():
    for name in ("qwen3-0.6b", "gemma-3-1b", "mixtral-8x7b"):
        model = ModelSpec.from_config(name)
        clock = StepClock(model, DeviceSpec.named("h100-sxm"), efficiency=0.8, overhead_ms=2)
        for batch, history in [(1, 100), (16, 3000)]:
            step = clock.price(batch, batch * float(model.layer_tokens(history)))
            priced = price_step(model, DeviceSpec.named("h100-sxm"), batch, history, 2, 0.8).iloc[0]
            assert step.total_ms == pytest.approx(priced.step_ms), name


def test_prompts_hide_behind_the_weights_until_the_ridge():
    clock = StepClock(MODEL, CARD)
    alone, few = clock.price(8, 8 * 28 * 500.0), clock.price(8, 8 * 28 * 500.0, [(0, 16)], 1)
    many = clock.price(8, 8 * 28 * 500.0, [(0, 2000)], 1)
    assert few.total_ms < 1.01 * alone.total_ms and many.prefill_ms > 10 * few.prefill_ms


lengths = st.tuples(st.floats(0, 2), st.integers(1, 300), st.integers(1, 200))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(lengths, min_size=1, max_size=12),
    st.integers(40, 200),
    st.integers(1, 8),
    st.sampled_from(["qwen3-0.6b", "gemma-3-1b"]),
)
def test_leaping_changes_nothing(rows, blocks, max_num_seqs, name):
    model = ModelSpec.from_config(name)
    pool = EngineSettings(
        kv_pool_gb=blocks * 16 * model.kv_bytes_per_token / 1e9 + 1e-9,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=256,
    )
    leaping, walking = (simulate(requests(*rows), model, CARD, pool, leap=leap) for leap in (True, False))
    pd.testing.assert_frame_equal(leaping.requests, walking.requests)
    pd.testing.assert_frame_equal(leaping.steps, walking.steps)
    assert leaping.gaps.tokens.sum() == walking.gaps.tokens.sum()
    # What must hold of any simulation: nobody is lost, time is accounted for, the pool is never overdrawn.
    done = leaping.requests
    assert done.end_s.notna().all() and (done.ttft_ms > 0).all() and (done.queue_ms >= 0).all()
    assert leaping.causes().seconds.sum() == pytest.approx(leaping.total_s)
    assert leaping.steps.used_blocks.max() <= leaping.num_blocks
    computed = leaping.steps[["decodes", "prompt_tokens"]].sum().sum() - leaping.steps.recomputed_tokens.sum()
    assert computed == (done.prompt_tokens + done.output_tokens - 1).sum()  # each token but the last, once
    assert leaping.gaps.tokens.sum() == (done.output_tokens - 1).sum()


def test_preemption_makes_a_request_wait_and_compute_again():
    pool = EngineSettings(kv_pool_gb=40 * 16 * MODEL.kv_bytes_per_token / 1e9 + 1e-9)
    run = simulate(requests((0, 250, 150), (0, 250, 150)), MODEL, CARD, pool)
    assert run.requests.preemptions.tolist() == [0, 1]
    assert run.steps.recomputed_tokens.sum() > 250
    assert run.gaps.itl_ms.max() > 50 * run.gaps.itl_ms.median()  # it waited for the first to end
    assert run.summary()["preemptions"] == 1 and run.summary()["peak_kv_share"] == 1


def test_more_load_never_shortens_the_wait():
    waits = []
    for rate in (1, 10, 100):
        workload = poisson_workload(60, rate, (50, 100), (50, 100), seed=3)
        waits.append(simulate(workload, MODEL, CARD, EngineSettings(max_num_seqs=8)).summary()["ttft_p95_ms"])
    assert waits == sorted(waits)


def test_a_slower_machine_takes_longer():
    workload = poisson_workload(20, 100, 200, 50)
    base = simulate(workload, MODEL, CARD).total_s
    for slower in ({"efficiency": 0.5}, {"compute_efficiency": 0.3}, {"overhead_ms": 1}):
        assert simulate(workload, MODEL, CARD, **slower).total_s > base


def test_poisson_has_the_rate_and_repeats():
    workload = poisson_workload(5000, 20, (10, 30), 5, seed=1)
    assert workload.arrival_s.max() == pytest.approx(5000 / 20, rel=0.05)
    assert workload.prompt_tokens.between(10, 30).all() and workload.prompt_tokens.nunique() == 21
    assert workload.equals(poisson_workload(5000, 20, (10, 30), 5, seed=1))
    assert (poisson_workload(5, np.inf, 5, 5).arrival_s == 0).all()


def test_a_trace_file(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,who,prompt_tokens,output_tokens\n2,a,10,5\n0,b,20,5\n")
    assert read_workload(path).to_numpy().tolist() == [[0, 20, 5], [2, 10, 5]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a readable CSV"),
        ("arrival_s,prompt_tokens\n0,1\n", "output_tokens is missing"),
        ("arrival_s,prompt_tokens,output_tokens\n", "has no requests"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n0,0,1\n", "line 3: prompt_tokens is 0"),
        ("arrival_s,prompt_tokens,output_tokens\n-1,1,1\n", "line 2: arrival_s is -1"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1.5,1\n", "line 2: prompt_tokens is 1.5"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,\n", "line 2: output_tokens is nan"),
    ],
)
def test_bad_traces(tmp_path, text, says):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(NanoengineError, match=says):
        read_workload(path)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: simulate(requests((0, 10, 10)), MODEL, DeviceSpec.named("gb10")), "not published"),
        (lambda: simulate(requests((0, 10, 10)), ModelSpec.from_config("llama-3.1-70b"), CARD), "no room for KV"),
        (lambda: simulate(requests((0, 10, 10)), MODEL, CARD, overhead_ms=-1), "must not be negative"),
        (lambda: simulate(requests((0, 10, 10)), MODEL, CARD, efficiency=2), "efficiency is 2"),
        (lambda: simulate(requests((0, 50_000, 10)), MODEL, CARD), "50000 tokens"),
        (lambda: simulate(requests((0, 100, 900)), MODEL, CARD, EngineSettings(kv_pool_gb=0.05)), "the pool has"),
        (lambda: poisson_workload(0, 1, 1, 1), "at least one request"),
        (lambda: poisson_workload(1, 1, (5, 3), 1), "must not fall"),
        (lambda: read_workload("nowhere.csv"), "There is no file"),
        (lambda: simulate(requests((0, 10, 1)), MODEL, CARD).itl_percentile_ms(50), "no time between tokens"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(NanoengineError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_simulating_imports_no_torch():
    import subprocess
    import sys

    code = (
        "import sys; from nanoengine.costmodel.headline import simulate_headline; simulate_headline();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
