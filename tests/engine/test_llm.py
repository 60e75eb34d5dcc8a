"""The engine as its users call it."""

import pytest
import torch

from nanoengine import LLM, NanoengineError, SamplingParams
from nanoengine.cli import main
from nanoengine.engine.sampler import filtered_probabilities


@pytest.fixture
def tiny(tiny_config):
    return LLM(tiny_config, num_kv_blocks=64, block_size=4)


def test_smollm2_answers_a_question(smollm2):
    answer = smollm2.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in answer.text and answer.finish_reason == "stop"


def test_the_stream_adds_up_to_the_completion(smollm2):
    prompt = smollm2.chat_prompt([{"role": "user", "content": "Say hello in Japanese script."}])
    params = SamplingParams(max_tokens=24)
    pieces = list(smollm2.stream(prompt, params))
    assert "".join(pieces) == smollm2.generate(prompt, params, progress=False)[0].text
    assert len(pieces) > 1


def test_a_sampled_request_repeats_whatever_shares_its_batch(smollm2):
    params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=12, seed=7)
    alone = smollm2.generate("Once upon a time", params, progress=False)[0]
    others = [SamplingParams(temperature=1.0, max_tokens=n, seed=n) for n in (3, 9)]
    together = smollm2.generate(["A", "Once upon a time", "B"], [others[0], params, others[1]], progress=False)[1]
    assert together.token_ids == alone.token_ids
    other_seed = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=12, seed=8)
    assert smollm2.generate("Once upon a time", other_seed, progress=False)[0].token_ids != alone.token_ids


def test_bfloat16_answers_too(smollm2_path):
    """On prompts whose first token leads by more than bfloat16 can blur: its logits come in steps of an eighth."""
    llm = LLM(smollm2_path, dtype="bfloat16", num_kv_blocks=64)
    prompts = ["The capital of France is", "Monday, Tuesday, Wednesday, Thursday,"]
    answers = llm.generate(prompts, SamplingParams(max_tokens=1), progress=False)
    assert [answer.text for answer in answers] == [" Paris", " Friday"]


def test_filters_keep_what_they_say():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    keep = {
        SamplingParams(temperature=1.0): 4,
        SamplingParams(temperature=1.0, top_k=2): 2,
        SamplingParams(temperature=1.0, top_p=0.5): 1,
        SamplingParams(temperature=1.0, top_p=0.81): 3,
        SamplingParams(temperature=1.0, top_p=0.01): 1,
        SamplingParams(temperature=1.0, top_k=3, top_p=0.6): 2,
    }
    for params, count in keep.items():
        probabilities = filtered_probabilities(logits, params)
        assert int((probabilities > 0).sum()) == count, params
        assert probabilities.sum().item() == pytest.approx(1)
    sharp = filtered_probabilities(logits, SamplingParams(temperature=0.5))
    assert sharp.tolist() == pytest.approx([x**2 / 0.365 for x in (0.5, 0.3, 0.15, 0.05)], rel=1e-4)


def test_stop_ids_end_a_request_and_ignore_eos_does_not(tiny):
    free = tiny.generate([5, 6, 7], SamplingParams(max_tokens=8, ignore_eos=True), progress=False)[0]
    stop = free.token_ids[2]
    first = free.token_ids.index(stop)
    params = SamplingParams(max_tokens=8, ignore_eos=True, stop_token_ids=(stop,))
    stopped = tiny.generate([5, 6, 7], params, progress=False)[0]
    assert stopped.token_ids == free.token_ids[: first + 1] and stopped.finish_reason == "stop"
    assert free.finish_reason == "length" and len(free.token_ids) == 8


def test_a_refused_prompt_leaves_nothing_behind(tiny):
    with pytest.raises(NanoengineError, match="the context holds 256"):
        tiny.generate([[1, 2, 3], [1] * 256], progress=False)
    assert not tiny.scheduler.has_work and tiny.blocks.num_available_blocks == 64


@pytest.mark.parametrize(
    ("prompts", "params", "says"),
    [
        ([[]], None, "empty"),
        ([[1, 200]], None, "outside the vocabulary"),
        ("text", None, "no tokenizer"),
        ([[1], [2]], [SamplingParams()], "2 prompts but 1 SamplingParams"),
        ([1] * 200, SamplingParams(max_tokens=56), None),
        ([1] * 255, SamplingParams(max_tokens=56), None),
    ],
)
def test_bad_and_borderline_requests(tiny, prompts, params, says):
    if says is None:
        output = tiny.generate(prompts, params, progress=False)[0]
        assert len(output.prompt_token_ids) + len(output.token_ids) <= 256 and output.finish_reason
    else:
        with pytest.raises(NanoengineError, match=says):
            tiny.generate(prompts, params, progress=False)
    assert tiny.blocks.num_available_blocks == 64


def test_weight_and_kv_bytes_equal_the_arithmetic(smollm2):
    assert smollm2.weight_bytes == 134_515_008 * 4
    assert smollm2.kv_bytes_per_token == 30 * 2 * 3 * 64 * 4


@pytest.mark.parametrize(("batch", "history"), [(1, 1), (3, 17), (5, 32)])
def test_start_decode_attends_to_exactly_the_history(tiny, batch, history):
    sequences = tiny.start_decode(batch, history)
    step = tiny.step()
    assert len(step.decodes) == batch and not step.prefills
    assert all(len(seq) == history + 1 for seq in sequences)
    tiny.abort_all()
    assert tiny.blocks.num_available_blocks == 64


def test_start_decode_that_does_not_fit_says_so_and_frees_everything(tiny):
    with pytest.raises(NanoengineError, match="needs 50 KV blocks, but only 14 are free"):
        tiny.start_decode(2, 200)
    with pytest.raises(NanoengineError, match="at least 1"):
        tiny.start_decode(0, 10)
    assert tiny.blocks.num_available_blocks == 64 and not tiny.scheduler.has_work


def test_the_command_streams_text(capsys):
    assert main(["generate", "What is the capital of France?", "--max-tokens", "16"]) == 0
    assert "Paris" in capsys.readouterr().out
