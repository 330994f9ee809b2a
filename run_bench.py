"""The command line of pacer-bench: parses and dispatches, nothing else."""

import argparse
import os
import sys
from pathlib import Path

VERBS = ("run", "sweep", "ls", "train-draft")

RUN_EXAMPLES = """examples:
  python run_bench.py --method sd --task gsm8k
  python run_bench.py --method sd,entropy --task gsm8k,humaneval --limit 16 --set sd.gamma=3 --set entropy.rule=adaedl
  python run_bench.py --method sd --task cnn_dm --temperature 0.7 --top-p 0.9 --seed 1 --repeat 3
  python run_bench.py --pair qwen2.5-7b --method sd --task mbpp --device cuda
  python run_bench.py --target DIR --draft DIR --method sd --task gsm8k
  python run_bench.py --resume RUN_ID                 goes on with a run that was interrupted

other verbs (each has its own --help):
  python run_bench.py sweep FILE.toml                 methods x tasks x pairs in one resumable run
  python run_bench.py ls methods|tasks|pairs|columns  what there is
  python run_bench.py train-draft --pair NAME         distils a draft model from a pair's target
"""
SWEEP_EXAMPLES = """example:
  python run_bench.py sweep bench/sweeps/gamma.toml
"""
TRAIN_EXAMPLES = """examples:
  python run_bench.py train-draft --data-dir DIR --out drafts/mine            a draft like the shipped one
  python run_bench.py train-draft --data-dir DIR --out drafts/mine --minutes 300
                                                      resumes it where it was stopped, with more time
  python run_bench.py train-draft --pair smollm2-135m --device cuda --layers 0,1,2,3,4,5
  python run_bench.py --pair smollm2-135m --draft student:drafts/mine/student --method sd --task gsm8k
"""
LS_EXAMPLES = """examples:
  python run_bench.py ls methods      with all hyperparameters for --set
  python run_bench.py ls columns      the columns of samples.parquet and steps.parquet
"""


class Parser(argparse.ArgumentParser):
    """Answers a mistake in one line, as everything else here does."""

    def __init__(self, **options):
        super().__init__(**options, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str):
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def build_parser(verb: str = "") -> argparse.ArgumentParser:
    """The parser; `verb` is the one that will be parsed."""
    parser = Parser(prog="run_bench.py", description="Benchmarks speculative decoding methods.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    add_run(verbs)
    add_sweep(verbs)
    add_ls(verbs)
    add_train_draft(verbs, complete=verb == "train-draft")
    return parser


def _verb(verbs, name: str, help: str, epilog: str) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", epilog=epilog)


def add_run(verbs) -> None:
    run = _verb(verbs, "run", "decode prompts with one or more methods, the ar baseline beside them", RUN_EXAMPLES)
    what = run.add_argument_group("what to run")
    what.add_argument("--method", metavar="NAMES", default="sd", help="methods, separated by commas (default: sd)")
    what.add_argument("--task", metavar="NAMES", default="gsm8k", help="tasks, separated by commas (default: gsm8k)")
    what.add_argument("--pair", metavar="NAME", help="a pair of the registry (default: smollm2-135m)")
    what.add_argument("--target", metavar="MODEL", help="instead of --pair: a folder or hub id, together with --draft")
    what.add_argument("--draft", metavar="MODEL", help="a folder or hub id; with --pair: replaces the pair's draft")
    what.add_argument(
        "--set", metavar="M.X=V", action="append", default=[], help="hyperparameter X of method M (see: ls methods)"
    )
    what.add_argument("--no-baseline", action="store_true", help="leave out ar; then there are no speedups")
    data = run.add_argument_group("prompts")
    data.add_argument("--limit", metavar="N", default="8", help="samples per task, or all (default: 8)")
    data.add_argument("--split", default="test", help="split of the data (default: test)")
    data.add_argument(
        "--few-shot", type=int, default=0, metavar="N", help="worked examples before each question (default: 0)"
    )
    data.add_argument(
        "--prompt",
        choices=("auto", "chat", "base"),
        default="auto",
        help="template (default: auto, chat if there is one)",
    )
    data.add_argument(
        "--data-dir", metavar="DIR", default=os.environ.get("BENCH_DATA"), help="folder with data files ($BENCH_DATA)"
    )
    decoding = run.add_argument_group("decoding")
    decoding.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="longest output (default: 128)")
    decoding.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    decoding.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="nucleus sampling, 1 is off (default: 1)"
    )
    decoding.add_argument("--top-k", type=int, default=0, metavar="K", help="top-k sampling, 0 is off (default: 0)")
    decoding.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    decoding.add_argument("--repeat", type=int, default=1, metavar="N", help="decodings of each prompt (default: 1)")
    _add_placement(run.add_argument_group("machine"))
    _add_results(run)


def _add_placement(group) -> None:
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    group.add_argument(
        "--dtype", default="auto", help="auto, float32, bfloat16 or float16 (auto: float32 on CPU, bfloat16 on CUDA)"
    )
    group.add_argument(
        "--device-map", default="", metavar="MAP", help="as in transformers, e.g. auto, for models larger than one card"
    )


def _add_results(parser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="folder for run folders (default: results/)"
    )
    group.add_argument("--resume", metavar="RUN_ID", help="go on with this run of --out; its own options count")


def add_sweep(verbs) -> None:
    sweep = _verb(verbs, "sweep", "run methods x tasks x pairs from a TOML file as one resumable run", SWEEP_EXAMPLES)
    sweep.add_argument(
        "file", type=Path, nargs="?", help="sweep file; its keys are the options of run (not needed with --resume)"
    )
    sweep.add_argument(
        "--data-dir", metavar="DIR", default=os.environ.get("BENCH_DATA"), help="folder with data files ($BENCH_DATA)"
    )
    _add_results(sweep)


def add_ls(verbs) -> None:
    ls = _verb(verbs, "ls", "list what there is", LS_EXAMPLES)
    ls.add_argument("what", choices=("methods", "tasks", "pairs", "columns"))


def add_train_draft(verbs, complete: bool) -> None:
    """`complete` adds the options, which takes importing the training code."""
    train = _verb(verbs, "train-draft", "distil a draft model from a pair's target", TRAIN_EXAMPLES)
    train.add_argument("--pair", metavar="NAME", default="smollm2-135m", help="pair whose target teaches")
    train.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    if complete:
        from bench.train_options import add_options

        add_options(train)
        train.set_defaults(data_dir=Path(os.environ["BENCH_DATA"]) if os.environ.get("BENCH_DATA") else None)


def run_config(args: argparse.Namespace):
    """The RunConfig that the options of `run` describe."""
    from bench.config import MethodEntry, RunConfig
    from bench.errors import BenchError
    from bench.pairs import find_pair, place
    from bench.sweep import parse_limit
    from methods import parse_assignments

    names = _names("--method", args.method)
    if not args.no_baseline and "ar" not in names:
        names.insert(0, "ar")
    settings = parse_assignments(args.set)
    for name in settings:
        if name not in names:
            raise BenchError(f"--set {name}...: '{name}' is not among --method {args.method}")
    return RunConfig(
        pairs=(find_pair(args.pair, args.target, args.draft),),
        tasks=tuple(_names("--task", args.task)),
        methods=tuple(MethodEntry(name, name, settings.get(name, {})) for name in names),
        placement=place(args.device, args.dtype, args.device_map),
        limit=parse_limit(args.limit),
        **{name: getattr(args, name) for name in ("split", "few_shot", "prompt", "max_new_tokens", "temperature")},
        **{name: getattr(args, name) for name in ("top_p", "top_k", "seed", "repeat", "data_dir")},
    )


def _names(flag: str, text: str) -> list[str]:
    """The distinct names of a list separated by commas."""
    from bench.errors import BenchError

    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise BenchError(f"{flag} '{text}': expected names separated by commas")
    return list(dict.fromkeys(names))


def do_run(config, args: argparse.Namespace) -> int:
    from bench.closing import report
    from bench.run import Interrupted, resume, run

    try:
        print(report(resume(args.out, args.resume) if args.resume is not None else run(config, args.out)))
    except Interrupted as interrupted:
        where = "" if args.out == Path("results") else f" --out {args.out}"
        print(f"Interrupted; go on with: python run_bench.py --resume {interrupted}{where}", file=sys.stderr)
        return 130
    return 0


def dispatch(args: argparse.Namespace) -> int:
    if args.verb == "run":
        return do_run(None if args.resume is not None else run_config(args), args)
    if args.verb == "sweep":
        from bench.errors import BenchError
        from bench.sweep import read_sweep

        if args.resume is None and not args.file:
            raise BenchError("sweep needs a FILE.toml, or --resume RUN_ID")
        return do_run(None if args.resume is not None else read_sweep(args.file, args.data_dir), args)
    if args.verb == "ls":
        from bench.listing import listing

        print(listing(args.what))
        return 0
    from bench.train_options import main as train_draft

    return train_draft(args)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 2 for a user's mistake (one line on stderr says what to do), 130 after Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in VERBS:
        argv = ["run", *argv]
    args = build_parser(argv[0]).parse_args(argv)
    try:
        from bench.errors import answer_mistakes
    except KeyboardInterrupt:
        return 130
    return answer_mistakes(lambda: dispatch(args))


if __name__ == "__main__":
    sys.exit(main())
