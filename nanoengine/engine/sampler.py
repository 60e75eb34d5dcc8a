"""The next token of each sequence, from its row of logits."""

import torch

from nanoengine.engine.sequence import SamplingParams, Sequence


class Sampler:
    """Greedy or filtered random choice, one sequence at a time.

    Each draw is seeded by the request and the position alone, so a request's tokens do not depend on what shares its
    batch, nor on whether it was preempted.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def __call__(self, logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
        """Token ids, one for each of `sequences`, from logits [len(sequences), vocab]."""
        token_ids = logits.max(dim=-1).indices.tolist()  # several times as fast as argmax on a CPU
        for row, seq in enumerate(sequences):
            if seq.params.temperature > 0:
                probabilities = filtered_probabilities(logits[row], seq.params)
                token_ids[row] = int(torch.multinomial(probabilities, 1, generator=self._generator(seq, logits.device)))
        return token_ids

    def _generator(self, seq: Sequence, device: torch.device) -> torch.Generator:
        request_seed = seq.params.seed if seq.params.seed is not None else hash((self.seed, seq.seq_id))
        return torch.Generator(device).manual_seed(hash((request_seed, len(seq))) % 2**63)


def filtered_probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities [vocab] in float32 after temperature, then top-k, then top-p.

    Top-p keeps the fewest most likely tokens whose probabilities reach `top_p`; the most likely one always stays.
    """
    logits = logits.float() / params.temperature
    if 0 < params.top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(params.top_k).values[-1], -torch.inf)
    if params.top_p < 1:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        logits = logits.index_fill(0, order[before >= params.top_p], -torch.inf)
    return logits.softmax(-1)
