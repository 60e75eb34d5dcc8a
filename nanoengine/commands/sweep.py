"""Time decode steps over batch and history on this machine, and fit what bytes cost.

Samples are appended to a CSV file as they come. Stop it when you like: the same command goes on where it stopped.

examples:
  nanoengine sweep
  nanoengine sweep --dtype bfloat16 --threads 2 --grid laptop --out results/sweep.csv
  nanoengine sweep --grid 1x256,1x4096,16x1024 --visits 5
  nanoengine sweep --backend transformers --grid quick
"""

HELP = "time decode steps over batch and history, and fit them"


def add_arguments(parser):
    parser.add_argument("--model", default="smollm2", help="packaged name, .gguf file or Hugging Face folder")
    parser.add_argument("--backend", default="nanoengine", help="nanoengine or transformers (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16 (default: %(default)s)")
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: what torch chooses)")
    parser.add_argument(
        "--grid", default="laptop", help="laptop, context, quick, or cells such as 1x256,4x1024 (default: %(default)s)"
    )
    parser.add_argument("--out", help="results file (default: results/BACKEND-MODEL-DTYPE.csv)")
    parser.add_argument("--visits", type=int, default=3, help="times each cell is measured (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=5, help="timed steps in a visit (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of cells (default: %(default)s)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="stop after about this long")


def run(args):
    from pathlib import Path

    from nanoengine.sweep.backends import load_backend
    from nanoengine.sweep.bandwidth import measure_bandwidth
    from nanoengine.sweep.grid import as_cells
    from nanoengine.sweep.runner import run_sweep

    as_cells(args.grid)  # a bad grid should not cost the seconds that loading a model takes
    backend = load_backend(args.backend, model=args.model, dtype=args.dtype, threads=args.threads, device=args.device)
    description = backend.describe()
    out = args.out or f"results/{args.backend}-{Path(args.model).name}-{args.dtype}.csv"
    before = measure_bandwidth(description.device, description.threads or None)
    try:
        samples = run_sweep(
            backend,
            args.grid,
            out,
            samples_per_visit=args.samples,
            visits=args.visits,
            warmup=args.warmup,
            seed=args.seed,
            budget_s=args.budget,
            bandwidth=before,
        )
    finally:
        backend.close()
    after = measure_bandwidth(description.device, description.threads or None)
    _print_report(samples, before, after)
    print(f"\n{len(samples)} samples are in {out}.")


def _print_report(samples, before, after) -> None:
    from rich.console import Console

    from nanoengine.sweep.report import bandwidth_line, cell_table, fit_lines, remarks
    from nanoengine.sweep.summary import summary

    cells = summary(samples)
    console = Console()
    console.print()
    console.print(cell_table(cells))
    for line in [bandwidth_line(before, after), *remarks(samples), "", *fit_lines(cells, before, after)]:
        console.print(line, markup=False, highlight=False)
