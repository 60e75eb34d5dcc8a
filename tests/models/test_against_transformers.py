"""The engine against Hugging Face transformers on the same weights: the reference that users know."""

import pytest
import torch
import transformers

from nanoengine import LLM, SamplingParams
from nanoengine.engine.scheduler import Chunk, Step
from nanoengine.engine.sequence import Sequence

PROMPTS = [
    "The",
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "In 1969 the first humans walked on the Moon. They stayed for",
    "Memory bandwidth is the number of bytes that a processor can read from its memory in a second. A GPU",
    "Q: What is 17 + 25?\nA: 42\nQ: What is 30 + 12?\nA:",
    "Water boils at a lower temperature on a mountain, because the pressure of the air is lower there. " * 6,
]


@pytest.fixture(scope="module")
def reference(smollm2_path):
    """SmolLM2 in float32 by transformers, from the same file but through its own GGUF reader."""
    from transformers.utils.quantization_config import GgufConfig

    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent,
        gguf_file=smollm2_path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()


@torch.inference_mode()
def greedy_reference(model, prompt_token_ids, num_tokens):
    ids = torch.tensor([prompt_token_ids])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt_token_ids) :].tolist()


def test_greedy_tokens_equal_on_smollm2(smollm2, reference):
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    outputs = smollm2.generate(PROMPTS, params, progress=False)
    assert len({len(o.prompt_token_ids) for o in outputs}) == len(PROMPTS), "prompts must differ in length"
    for output in outputs:
        assert output.token_ids == greedy_reference(reference, output.prompt_token_ids, 64)


def test_tokens_do_not_depend_on_chunks_blocks_or_preemption(smollm2_path):
    def tokens(**settings):
        llm = LLM(smollm2_path, **settings)
        return [o.token_ids for o in llm.generate(PROMPTS[2:], SamplingParams(max_tokens=16), progress=False)], llm

    expected, _ = tokens()
    assert tokens(max_num_seqs=3, max_num_batched_tokens=7)[0] == expected
    assert tokens(block_size=1, num_kv_blocks=600)[0] == expected
    scarce, llm = tokens(block_size=16, num_kv_blocks=11)
    assert scarce == expected and llm.blocks.num_available_blocks == 11


SMALL = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
FAMILIES = {
    "llama": (transformers.LlamaConfig, {"tie_word_embeddings": True}),
    "llama3-scaling": (
        transformers.LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_equal_on_small_models_of_each_family(family, dtype, tmp_path):
    make_config, extra = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(make_config(**SMALL | extra)).eval()
    for name, weight in model.named_parameters():  # transformers starts biases at 0 and norms at 1: hide nothing
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.3)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="200kB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1, "the checkpoint must come in shards"

    (tmp_path / "tokenizer.json").write_text(EMPTY_TOKENIZER)
    llm = LLM(tmp_path, dtype=dtype, num_kv_blocks=64)
    prompt = torch.randint(SMALL["vocab_size"], (150,)).tolist()
    logits = last_logits(llm, prompt)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1]
        exact = model.float()(torch.tensor([prompt])).logits[0, -1]
    if dtype == "bfloat16":  # two ways of rounding differ by as much as either differs from the weights in float32
        assert (logits - exact).abs().max() < 3 * (expected - exact).abs().max()
    else:
        assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()
        tokens = llm.generate(prompt, SamplingParams(max_tokens=64, ignore_eos=True), progress=False)[0].token_ids
        assert tokens == greedy_reference(model, prompt, 64)


def last_logits(llm, prompt):
    seq = Sequence(0, prompt, SamplingParams())
    llm.blocks.reserve(seq, len(seq))
    logits = llm.runner.run(Step(prefills=[Chunk(seq, len(seq))]))[0]
    llm.blocks.release(seq)
    return logits


EMPTY_TOKENIZER = '{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}'


def test_tokenizer_equals_transformers_on_smollm2(smollm2, smollm2_path):
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    messages = [{"role": "user", "content": "Was kostet ein Token? 12345 tokens, 3.14 €, naïve 日本語 \n\n  x = y"}]
    ours = smollm2.chat_prompt(messages)
    assert ours == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    for text in [*PROMPTS, ours]:
        assert smollm2.tokenizer.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text)) == theirs.decode(
            theirs(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True
        )
