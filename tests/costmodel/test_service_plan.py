"""Plans: what keeps a promise must keep it, and nothing larger may."""

from dataclasses import replace

import numpy as np
import pytest

from nanoengine import DeviceSpec, ModelSpec, NanoengineError, price_step
from nanoengine.costmodel.decode import largest_batch
from nanoengine.costmodel.plan import (
    Service,
    ServiceLevel,
    batch_within,
    context_limit,
    frontier,
    plan,
    sustained_rate,
)

H100 = DeviceSpec.named("h100-sxm")
CHAT = Service(ModelSpec.from_config("llama-3.1-8b"), H100, prompt_tokens=500, output_tokens=50)


def test_the_frontier_trades_speed_for_cost():
    table = frontier(CHAT, usd_per_card_hour=3)
    assert table.batch.iloc[-1] == CHAT.batch_that_fits() == largest_batch(CHAT.model, H100, 550)
    assert table.itl_ms.is_monotonic_increasing and table.usd_per_million_tokens.is_monotonic_decreasing
    row = table.iloc[3]
    # A token costs the card's price over the tokens of an hour.
    assert row.usd_per_million_tokens == pytest.approx(3 / (row.output_tokens_per_s * 3600) * 1e6)
    assert row.output_tokens_per_s_per_user == pytest.approx(1e3 / row.itl_ms)
    assert (table.itl_ms > table.step_ms).all()
    assert frontier(CHAT).usd_per_million_tokens.isna().all()


def test_the_largest_batch_keeps_the_promise_and_one_more_breaks_it():
    level = ServiceLevel(itl_ms=20)
    batch = batch_within(CHAT, level)
    kept, broken = frontier(CHAT, batches=[batch, batch + 1]).itl_ms
    assert kept <= 20 < broken
    assert batch_within(CHAT, ServiceLevel()) == CHAT.batch_that_fits()
    assert batch_within(CHAT, ServiceLevel(itl_ms=0.1)) == 0
    assert batch_within(CHAT, ServiceLevel(ttft_ms=1)) == 0


def test_the_context_limit_is_set_by_memory_or_by_the_promise():
    by_memory = context_limit(CHAT, ServiceLevel(), 64)
    assert largest_batch(CHAT.model, H100, by_memory) >= 64 > largest_batch(CHAT.model, H100, by_memory + 1)
    by_time = context_limit(CHAT, ServiceLevel(itl_ms=10), 64)
    here, beyond = price_step(CHAT.model, H100, 64, [by_time, by_time + 1]).step_ms
    assert here <= 10 < beyond and by_time < by_memory
    assert context_limit(CHAT, ServiceLevel(), 1) == CHAT.model.max_context
    assert context_limit(CHAT, ServiceLevel(itl_ms=1), 1) == 0


def test_the_sustained_rate_keeps_the_percentiles():
    level = ServiceLevel(itl_ms=12)
    rate, run = sustained_rate(CHAT, level, 64)
    assert run.itl_percentile_ms(95) <= 12 and np.percentile(run.requests.ttft_ms, 95) <= level.ttft_ms
    most = frontier(CHAT, batches=[64]).output_tokens_per_s[0] / CHAT.output_tokens
    assert 0 < rate <= most
    stricter, _ = sustained_rate(CHAT, ServiceLevel(itl_ms=8), 64)
    assert stricter < rate
    assert sustained_rate(CHAT, ServiceLevel(itl_ms=0.1), 64) == (0.0, None)


def test_a_plan_by_cards():
    level = ServiceLevel(ttft_ms=200, itl_ms=15)
    big = replace(CHAT, model=ModelSpec.from_config("llama-3.1-70b", "fp8"))
    table = plan(big, level, cards=(1, 2, 4), requests_per_s=50, usd_per_card_hour=3)
    assert table.cards.tolist() == [2, 4]  # 70 GB of weights leave one card of 80 no promise to keep
    assert (table.itl_ms <= 15).all() and (table.ttft_ms <= 200).all()
    assert (table.replicas * table.requests_per_s >= 50).all()
    assert ((table.replicas - 1) * table.requests_per_s < 50).all()
    assert (table.total_cards == table.replicas * table.cards).all()
    assert (table.usd_per_million_tokens * table.output_tokens_per_s).tolist() == pytest.approx(
        [3 * n / 3600 * 1e6 for n in table.cards]
    )


def test_losses_make_a_plan_dearer():
    level = ServiceLevel(itl_ms=20)
    real = replace(CHAT, efficiency=0.7, compute_efficiency=0.5, overhead_ms=1)
    assert batch_within(real, level) < batch_within(CHAT, level)
    assert (frontier(real, 1).usd_per_million_tokens > frontier(CHAT, 1).usd_per_million_tokens).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ServiceLevel(itl_ms=0), "times above zero"),
        (lambda: ServiceLevel(percent=101), "percentile"),
        (lambda: replace(CHAT, cards=0), "at least one card"),
        (lambda: replace(CHAT, output_tokens=1), "two output tokens"),
        (lambda: replace(CHAT, prompt_tokens=10**6), "context"),
        (lambda: replace(CHAT, cards=16), "has 8 KV heads"),
        (lambda: replace(CHAT, efficiency=0), "efficiency is 0"),
        (lambda: frontier(replace(CHAT, model=ModelSpec.from_config("llama-3.1-70b"))), "do not fit on H100"),
        (lambda: plan(CHAT, ServiceLevel(itl_ms=0.01), cards=(1, 2)), "No number of cards among 1, 2"),
        (lambda: batch_within(replace(CHAT, device=DeviceSpec("x", 100)), ServiceLevel()), "memory size"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(NanoengineError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
