"""Complete a prompt with the engine, printing tokens as they come.

examples:
  nanoengine generate "What is the capital of France?"
  nanoengine generate --raw "Once upon a time" --temperature 0.8 --seed 7
  nanoengine generate "Hello" --model path/to/Qwen3-0.6B --dtype bfloat16
"""

HELP = "complete a prompt with the engine"


def add_arguments(parser):
    parser.add_argument("prompt")
    parser.add_argument("--model", default="smollm2", help="packaged name, .gguf file or Hugging Face folder")
    parser.add_argument("--raw", action="store_true", help="continue the text itself instead of answering it as a chat")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16 (default: %(default)s)")
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--max-tokens", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int)


def run(args):
    # Checked before the model loads, which takes seconds.
    from nanoengine.engine.sequence import SamplingParams

    params = SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        max_tokens=args.max_tokens,
        seed=args.seed,
    )
    from nanoengine.extras import need

    need("torch", "engine")
    from nanoengine import LLM

    llm = LLM(args.model, dtype=args.dtype, device=args.device, threads=args.threads, max_num_seqs=1)
    prompt = args.prompt if args.raw else llm.chat_prompt([{"role": "user", "content": args.prompt}])
    for piece in llm.stream(prompt, params):
        print(piece, end="", flush=True)
    print()
