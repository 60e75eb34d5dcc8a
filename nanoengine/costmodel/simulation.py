"""What a simulation found: requests, steps, and where the seconds went."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nanoengine.errors import NanoengineError

STEP_COLUMNS = [
    "start_ms",
    "weight_ms",
    "kv_ms",
    "arithmetic_ms",
    "prefill_ms",
    "recompute_ms",
    "overhead_ms",
    "decodes",
    "prompt_tokens",
    "recomputed_tokens",
    "used_blocks",
    "waiting",
]
_CAUSES = {
    "weight_ms": "weights read",
    "kv_ms": "KV read",
    "arithmetic_ms": "arithmetic of decodes",
    "prefill_ms": "prompts computed",
    "recompute_ms": "prompts computed again after preemption",
    "overhead_ms": "overhead of steps",
}


@dataclass(frozen=True)
class Simulation:
    """requests: one row each, with arrival_s, prompt_tokens, output_tokens, queue_ms (until first scheduled), ttft_ms,
    itl_ms (mean over the request; NaN for one token), e2e_s, end_s, preemptions. steps: one row per engine step; the
    columns that end in _ms add up to its time, prompt_tokens counts what was prefilled in it, used_blocks after it was
    scheduled. gaps: itl_ms between two tokens of a request, with how many tokens waited so long.
    """

    requests: pd.DataFrame
    steps: pd.DataFrame
    gaps: pd.DataFrame
    num_blocks: int

    @property
    def total_s(self) -> float:
        """From the start to the last token."""
        return float(self.requests.end_s.max())

    @property
    def output_tokens_per_s(self) -> float:
        return float(self.requests.output_tokens.sum() / self.total_s)

    def causes(self) -> pd.DataFrame:
        """Where the seconds went: columns cause, seconds, share. They add up to `total_s`; "idle" is waiting for work.

        Each step's time belongs to the reads and the arithmetic that it had to wait for; arithmetic that hides behind
        a read costs nothing.
        """
        seconds = {name: self.steps[column].sum() / 1e3 for column, name in _CAUSES.items()}
        seconds["idle"] = max(0.0, self.total_s - sum(seconds.values()))
        table = pd.DataFrame({"cause": list(seconds), "seconds": list(seconds.values())})
        return table.assign(share=table.seconds / self.total_s)

    def itl_percentile_ms(self, percent: float) -> float:
        """The time between tokens that `percent` % of all tokens after the first did not exceed."""
        if self.gaps.empty:
            raise NanoengineError("No request has a second token, so there is no time between tokens.")
        ordered = self.gaps.sort_values("itl_ms")
        reached = ordered.tokens.cumsum().to_numpy()
        return float(ordered.itl_ms.iloc[np.searchsorted(reached, percent / 100 * reached[-1])])

    def summary(self) -> dict[str, float]:
        """The usual figures of a serving benchmark; times in ms but for total_s and e2e_s."""
        requests, steps = self.requests, self.steps
        figures = {
            "requests": len(requests),
            "prompt_tokens": int(requests.prompt_tokens.sum()),
            "output_tokens": int(requests.output_tokens.sum()),
            "total_s": self.total_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "steps": len(steps),
            "mean_batch": float(steps.decodes[steps.decodes > 0].mean()) if (steps.decodes > 0).any() else 0.0,
            "preemptions": int(requests.preemptions.sum()),
            "recomputed_tokens": int(steps.recomputed_tokens.sum()),
            "peak_kv_share": float(steps.used_blocks.max() / self.num_blocks),
        }
        for percent in (50, 95, 99):
            figures[f"ttft_p{percent}_ms"] = float(np.percentile(requests.ttft_ms, percent))
        if not self.gaps.empty:
            for percent in (50, 95, 99):
                figures[f"itl_p{percent}_ms"] = self.itl_percentile_ms(percent)
        figures["e2e_p50_s"] = float(requests.e2e_s.median())
        return figures
