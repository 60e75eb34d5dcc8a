"""From a promise to users to a machine: the largest batch, the longest context, the cards, the price. Chapter 13."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nanoengine.costmodel.decode import average_history, checked_share, largest_batch, price_step
from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.model import ModelSpec
from nanoengine.costmodel.prefill import price_prefill
from nanoengine.costmodel.simulate import EngineSettings, simulate
from nanoengine.costmodel.simulation import Simulation
from nanoengine.costmodel.workload import poisson_workload
from nanoengine.errors import NanoengineError


@dataclass(frozen=True)
class ServiceLevel:
    """What users are promised: ttft_ms to the first token, itl_ms between tokens, for `percent` % of them."""

    ttft_ms: float = np.inf
    itl_ms: float = np.inf
    percent: float = 95.0

    def __post_init__(self):
        if not (self.ttft_ms > 0 and self.itl_ms > 0 and 0 < self.percent <= 100):
            raise NanoengineError("A service level needs times above zero and a percentile from above 0 to 100.")

    def met_by(self, run: Simulation) -> bool:
        ttft = float(np.percentile(run.requests.ttft_ms, self.percent))
        itl = 0.0 if run.gaps.empty else run.itl_percentile_ms(self.percent)
        return ttft <= self.ttft_ms and itl <= self.itl_ms


@dataclass(frozen=True)
class Service:
    """A model on `cards` equal cards for requests of prompt_tokens and output_tokens.

    The cards share weights and KV evenly and talk for free (tensor parallel at its best; a replica per card is the
    case of one card). efficiency, compute_efficiency and overhead_ms bring the floor to a real engine.
    """

    model: ModelSpec
    device: DeviceSpec
    prompt_tokens: int
    output_tokens: int
    cards: int = 1
    efficiency: float = 1.0
    compute_efficiency: float = 1.0
    overhead_ms: float = 0.0
    reserve: float = 0.1

    def __post_init__(self):
        if min(self.prompt_tokens, self.cards) < 1 or self.output_tokens < 2:
            raise NanoengineError("A service needs at least one card, one prompt token and two output tokens.")
        if self.length > self.model.max_context:
            raise NanoengineError(
                f"Prompt and answer have {self.length} tokens, more than the {self.model.max_context} of "
                f"{self.model.name}'s context."
            )
        if self.cards > self.model.kv_heads:
            raise NanoengineError(
                f"{self.model.name} has {self.model.kv_heads} KV heads, so {self.cards} cards would hold copies of KV; "
                "plan replicas instead."
            )
        checked_share("efficiency", self.efficiency)

    @property
    def length(self) -> int:
        """Tokens of a request at its end."""
        return self.prompt_tokens + self.output_tokens

    @property
    def machine(self) -> DeviceSpec:
        """The cards as one device."""
        device, n = self.device, self.cards
        return replace(
            device,
            name=device.name if n == 1 else f"{n} x {device.name}",
            bandwidth_gb_per_s=device.bandwidth_gb_per_s * n,
            memory_gb=None if device.memory_gb is None else device.memory_gb * n,
            bf16_tflop_per_s=None if device.bf16_tflop_per_s is None else device.bf16_tflop_per_s * n,
        )

    def batch_that_fits(self) -> int:
        """Requests at their full length whose KV fits, so that none is ever preempted."""
        return int(largest_batch(self.model, self.machine, self.length, self.reserve))


def frontier(service: Service, usd_per_card_hour: float | None = None, batches=None) -> pd.DataFrame:
    """What each batch size gives when it is always full: columns batch, step_ms, itl_ms, ttft_ms, output_tokens_per_s,
    output_tokens_per_s_per_user, usd_per_million_tokens (NaN without a price).

    A new prompt enters whenever a request ends, so over one answer of N tokens each request meets batch prefills:
    itl_ms = step_ms + batch x prefill_ms / (N - 1), the mean. ttft_ms is without a queue: the step under way, then
    the prompt. batches: default powers of two up to the most that fit, and that.
    """
    fits = service.batch_that_fits()
    if fits < 1:
        raise NanoengineError(
            f"{service.model.name} and one request of {service.length} tokens do not fit on {service.machine.name}."
        )
    if batches is None:
        batches = sorted({*(2**i for i in range(int(np.log2(fits)) + 1)), fits})
    batches = np.asarray(batches, dtype=float)
    history = average_history(service.prompt_tokens, service.output_tokens)
    loss = (service.overhead_ms, service.efficiency)
    step_ms = price_step(service.model, service.machine, batches, history, *loss).step_ms.to_numpy()
    prefill_ms = price_prefill(
        service.model,
        service.machine,
        service.prompt_tokens,
        efficiency=service.efficiency,
        compute_efficiency=service.compute_efficiency,
    ).prefill_ms[0]
    steps = service.output_tokens - 1
    itl_ms = step_ms + batches * prefill_ms / steps
    tokens_per_s = batches * service.output_tokens / (steps * itl_ms) * 1e3
    usd_per_s = np.nan if usd_per_card_hour is None else usd_per_card_hour * service.cards / 3600
    return pd.DataFrame(
        {
            "batch": batches.astype(int),
            "step_ms": step_ms,
            "itl_ms": itl_ms,
            "ttft_ms": step_ms + prefill_ms,
            "output_tokens_per_s": tokens_per_s,
            "output_tokens_per_s_per_user": 1e3 / itl_ms,
            "usd_per_million_tokens": usd_per_s / tokens_per_s * 1e6,
        }
    )


def batch_within(service: Service, level: ServiceLevel) -> int:
    """The largest batch that fits and whose mean ITL and unqueued TTFT keep the service level; 0 where none does."""
    fits = service.batch_that_fits()
    if fits < 1:
        return 0
    # Both times rise with the batch, so the first batch that breaks the promise ends the search.
    low, high = 0, fits
    while low < high:
        middle = (low + high + 1) // 2
        row = frontier(service, batches=[middle]).iloc[0]
        if row.itl_ms <= level.itl_ms and row.ttft_ms <= level.ttft_ms:
            low = middle
        else:
            high = middle - 1
    return low


def context_limit(service: Service, level: ServiceLevel, batch: int) -> int:
    """The longest history, in tokens, that `batch` requests can all have: it must fit, and a step must keep the ITL.

    At most the model's context; 0 where even one token each is too much.
    """

    def holds(history: int) -> bool:
        if largest_batch(service.model, service.machine, history, service.reserve) < batch:
            return False
        price = price_step(service.model, service.machine, batch, history, service.overhead_ms, service.efficiency)
        return price.step_ms[0] <= level.itl_ms

    low, high = 0, service.model.max_context
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def sustained_rate(
    service: Service, level: ServiceLevel, max_num_seqs: int, requests: int = 300, seed: int = 0
) -> tuple[float, Simulation | None]:
    """Requests per second, arriving at random, for which a simulation keeps the percentiles; and that simulation.

    At most what an always full batch serves; below it, found by halving to 2 %. 0 and None where not even a request on
    its own keeps them. At least two batches of requests are drawn, so that the batch fills: fewer would leave before
    they met. Few requests leave the tail rough: the 95th percentile of 300 rests on 15.
    """
    settings = EngineSettings(reserve=service.reserve, max_num_seqs=max_num_seqs)
    if max_num_seqs > settings.max_num_batched_tokens:
        settings = replace(settings, max_num_batched_tokens=max_num_seqs)

    def run(rate: float) -> Simulation:
        count = max(requests, 2 * max_num_seqs)
        workload = poisson_workload(count, rate, service.prompt_tokens, service.output_tokens, seed)
        loss = (service.efficiency, service.compute_efficiency, service.overhead_ms)
        return simulate(workload, service.model, service.machine, settings, *loss)

    full = float(frontier(service, batches=[max_num_seqs]).output_tokens_per_s[0]) / service.output_tokens
    best = run(full)
    if level.met_by(best):
        return full, best
    low, high, best = 0.0, full, None
    while high - low > 0.02 * high and high > full / 1e3:
        middle = (low + high) / 2
        simulation = run(middle)
        if level.met_by(simulation):
            low, best = middle, simulation
        else:
            high = middle
    return low, best


def plan(
    service: Service,
    level: ServiceLevel,
    cards: tuple[int, ...] = (1, 2, 4, 8),
    requests_per_s: float | None = None,
    usd_per_card_hour: float | None = None,
) -> pd.DataFrame:
    """One row per number of cards in a replica that can keep the promise.

    Columns: cards, batch (largest within the level), context_limit (at that batch), requests_per_s (sustained, by
    simulation), output_tokens_per_s, ttft_ms and itl_ms (simulated, at the level's percentile), replicas and
    total_cards for the wanted requests_per_s (NaN without one), usd_per_million_tokens (output tokens, at the
    sustained rate). Numbers of cards that cannot keep it are left out; raises NanoengineError where none can.
    """
    rows = []
    for n in cards:
        if n > service.model.kv_heads:
            continue
        sharded = replace(service, cards=n)
        batch = batch_within(sharded, level)
        if batch < 1:
            continue
        rate, run = sustained_rate(sharded, level, batch)
        if run is None:
            continue
        tokens_per_s = rate * service.output_tokens
        replicas = np.nan if requests_per_s is None else np.ceil(requests_per_s / rate)
        usd_per_s = np.nan if usd_per_card_hour is None else usd_per_card_hour * n / 3600
        rows.append(
            {
                "cards": n,
                "batch": batch,
                "context_limit": context_limit(sharded, level, batch),
                "requests_per_s": rate,
                "output_tokens_per_s": tokens_per_s,
                "ttft_ms": float(np.percentile(run.requests.ttft_ms, level.percent)),
                "itl_ms": run.itl_percentile_ms(level.percent),
                "replicas": replicas,
                "total_cards": replicas * n,
                "usd_per_million_tokens": usd_per_s / tokens_per_s * 1e6,
            }
        )
    if not rows:
        raise NanoengineError(
            f"No number of cards among {', '.join(map(str, cards))} of {service.device.name} keeps "
            f"{level.ttft_ms:g} ms to the first token and {level.itl_ms:g} ms between tokens for {service.model.name}; "
            "relax the promise, take a narrower dtype or a faster card."
        )
    return pd.DataFrame(rows)
