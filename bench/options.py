"""The options of every verb of the command line. Imports nothing heavy, so that --help answers at once."""

import argparse
import os
from pathlib import Path

from bench.result_options import RESULT_VERBS

RUN_EXAMPLES = """examples:
  python run_bench.py --method pacer --task gsm8k
  python run_bench.py --method sd,entropy,pacer --task gsm8k,humaneval --limit 16
  python run_bench.py --method sd,pacer --params defaults --set sd.gamma=3 --set pacer.threshold=0.4
  python run_bench.py --method sd --task cnn_dm --temperature 0.7 --top-p 0.9 --seed 1 --repeat 3
  python run_bench.py --pair qwen2.5-7b --method sd --task mbpp --device cuda
  python run_bench.py --target DIR --draft DIR --method sd --task gsm8k
  python run_bench.py --pair standin:qwen2.5-32b/0.5b --dry-run --memory 80 --bandwidth 3350
  python run_bench.py --resume RUN_ID                 goes on with a run that was interrupted

other verbs (each has its own --help):
  python run_bench.py sweep FILE.toml                 methods x tasks x pairs in one resumable run
  python run_bench.py ls methods|tasks|pairs|columns  what there is
  python run_bench.py collect --pair NAME             what the draft proposes along the target's outputs: traces
  python run_bench.py train-preverifier --pair NAME   trains PACER's layer on traces
  python run_bench.py costs --pair NAME               measures what draft and target passes cost on this machine
  python run_bench.py replay SWEEP.toml               replays methods over traces, under measured or assumed costs
  python run_bench.py tune --pair NAME                tunes every method alike, by replay
  python run_bench.py train-draft --pair NAME         distils a draft model from a pair's target
  python run_bench.py table|plot|report results/      the paper's tables and figures, and a page to look at every step
  python run_bench.py audit results/RUN               exit code 1 if an output is not what the target says
  python run_bench.py check --baseline FILE           exit code 1 if a speedup has regressed
  python run_bench.py export|import                   Spec-Bench's answer files
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
COLLECT_EXAMPLES = """examples:
  python run_bench.py collect --pair smollm2-135m --task gsm8k,mbpp --split train
  python run_bench.py collect --pair smollm2-135m --task gsm8k --split test --limit 100    to replay, not to train on
  python run_bench.py collect --pair qwen2.5-7b --task gsm8k --split train --device cuda
"""
PREVERIFIER_EXAMPLES = """examples:
  python run_bench.py train-preverifier --pair smollm2-135m --tasks gsm8k,humaneval,mbpp,cnn_dm
  python run_bench.py train-preverifier --pair smollm2-135m --tasks gsm8k --variant hidden,no-position
"""
COSTS_EXAMPLES = """example:
  python run_bench.py costs --pair smollm2-135m --out results/costs.toml
"""
REPLAY_EXAMPLES = """examples:
  python run_bench.py replay bench/sweeps/methods.toml --costs results/costs.toml
  python run_bench.py replay bench/sweeps/ablations.toml --costs flat:0.05
  python run_bench.py replay bench/sweeps/methods.toml --costs paper:deepseek --params results/params.toml
"""
TUNE_EXAMPLES = """examples:
  python run_bench.py tune --pair smollm2-135m --tasks gsm8k,humaneval,mbpp,cnn_dm --costs results/costs.toml
  python run_bench.py --pair smollm2-135m --method pacer --task gsm8k --params results/params.toml
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


VERBS = ("run", "sweep", "ls", "collect", "train-preverifier", "costs", "replay", "tune", "train-draft", *RESULT_VERBS)
ALL_TASKS = "gsm8k,humaneval,mbpp,cnn_dm"


def build_parser(verb: str = "") -> argparse.ArgumentParser:
    """The parser; `verb` is the one that will be parsed."""
    parser = Parser(prog="run_bench.py", description="Benchmarks speculative decoding methods.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    add_run(verbs)
    add_sweep(verbs)
    add_ls(verbs)
    add_collect(verbs)
    add_train_preverifier(verbs)
    add_costs(verbs)
    add_replay(verbs)
    add_tune(verbs)
    add_train_draft(verbs, complete=verb == "train-draft")
    for name, (add, help, examples) in RESULT_VERBS.items():
        add(_verb(verbs, name, help, examples))
    return parser


def _verb(verbs, name: str, help: str, epilog: str) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", epilog=epilog)


def add_run(verbs) -> None:
    run = _verb(verbs, "run", "decode prompts with one or more methods, the ar baseline beside them", RUN_EXAMPLES)
    what = run.add_argument_group("what to run")
    what.add_argument(
        "--method", metavar="NAMES", default="pacer", help="methods, separated by commas (default: pacer)"
    )
    what.add_argument("--task", metavar="NAMES", default="gsm8k", help="tasks, separated by commas (default: gsm8k)")
    _add_pair(what)
    what.add_argument(
        "--set", metavar="M.X=V", action="append", default=[], help="hyperparameter X of method M (see: ls methods)"
    )
    _add_params(what)
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
    _add_data_dir(data)
    decoding = run.add_argument_group("decoding")
    decoding.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="longest output (default: 128)")
    decoding.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    decoding.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="nucleus sampling, 1 is off (default: 1)"
    )
    decoding.add_argument("--top-k", type=int, default=0, metavar="K", help="top-k sampling, 0 is off (default: 0)")
    decoding.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    decoding.add_argument("--repeat", type=int, default=1, metavar="N", help="decodings of each prompt (default: 1)")
    decoding.add_argument(
        "--audit",
        type=int,
        default=2,
        metavar="N",
        help="samples per task that the target reads again at the end, to see that no output is wrong (default: 2)",
    )
    _add_placement(run.add_argument_group("machine"))
    _add_dry_run(run)
    _add_results(run)


def _add_data_dir(group) -> None:
    group.add_argument(
        "--data-dir",
        metavar="DIR",
        default=os.environ.get("BENCH_DATA"),
        help="folder with data files, or builtin: only what ships ($BENCH_DATA)",
    )


def _add_params(group, help: str = "--set goes first (default: tuned for pairs that ship with them)") -> None:
    group.add_argument("--params", metavar="WHICH", help=f"tuned, paper, defaults or a FILE; {help}")


def _add_pair(group, help: str = "a pair of the registry (default: smollm2-135m)") -> None:
    group.add_argument("--pair", metavar="NAME", help=help)
    group.add_argument("--target", metavar="MODEL", help="instead of --pair: a folder or hub id, together with --draft")
    group.add_argument("--draft", metavar="MODEL", help="a folder or hub id; with --pair: replaces the pair's draft")


def _add_traces(group) -> None:
    group.add_argument(
        "--traces", type=Path, default=Path("results/traces"), metavar="DIR", help="traces (default: results/traces/)"
    )


def _add_placement(group) -> None:
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    group.add_argument(
        "--dtype", default="auto", help="auto, float32, bfloat16 or float16 (auto: float32 on CPU, bfloat16 on CUDA)"
    )
    group.add_argument(
        "--device-map", default="", metavar="MAP", help="as in transformers, e.g. auto, for models larger than one card"
    )


def _add_dry_run(parser) -> None:
    group = parser.add_argument_group("planning")
    group.add_argument(
        "--dry-run", action="store_true", help="say what memory and time per pass it would take, and stop"
    )
    group.add_argument(
        "--bandwidth", type=float, metavar="GB/S", help="with --dry-run: of memory (default: measured on --device)"
    )
    group.add_argument(
        "--memory", type=float, metavar="GB", help="with --dry-run: of another machine (default: what is left here)"
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
    sweep.add_argument("--limit", metavar="N", help="samples per task, or all (default: what the file says, else 8)")
    _add_data_dir(sweep)
    _add_dry_run(sweep)
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


def add_collect(verbs) -> None:
    collect = _verb(
        verbs, "collect", "record what the draft proposes at every position of the target's outputs", COLLECT_EXAMPLES
    )
    _add_pair(collect)
    collect.add_argument("--task", metavar="NAMES", default=ALL_TASKS, help=f"tasks (default: {ALL_TASKS})")
    collect.add_argument("--split", default="train", help="train, validation or test (default: train)")
    collect.add_argument("--limit", metavar="N", default="256", help="samples per task, or all (default: 256)")
    collect.add_argument(
        "--rollout", type=int, default=16, metavar="N", help="draft tokens from each position (default: 16)"
    )
    collect.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="longest output (default: 128)")
    collect.add_argument(
        "--max-prompt-tokens", type=int, default=2048, metavar="N", help="longer texts are cut (default: 2048)"
    )
    collect.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    collect.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="nucleus sampling, 1 is off (default: 1)"
    )
    collect.add_argument("--top-k", type=int, default=0, metavar="K", help="top-k sampling, 0 is off (default: 0)")
    collect.add_argument(
        "--stride", type=int, default=8, metavar="N", help="when sampling: tokens between rollouts (default: 8)"
    )
    collect.add_argument("--seed", type=int, default=0, help="of sampled outputs (default: 0)")
    collect.add_argument(
        "--out", type=Path, default=Path("results/traces"), metavar="DIR", help="(default: results/traces/)"
    )
    _add_data_dir(collect)
    _add_placement(collect)


def add_train_preverifier(verbs) -> None:
    train = _verb(
        verbs, "train-preverifier", "train PACER's pre-verification layer on collected traces", PREVERIFIER_EXAMPLES
    )
    _add_pair(train)
    train.add_argument(
        "--tasks", metavar="NAMES", default=ALL_TASKS, help=f"tasks to learn from (default: {ALL_TASKS})"
    )
    train.add_argument(
        "--variant", metavar="NAMES", default="default", help="which layers, by name, or all (default: default)"
    )
    train.add_argument("--minutes", type=float, default=20.0, help="longest training time per layer (default: 20)")
    train.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    train.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="of the traces; above 0 the labels are acceptance probabilities (default: 0)",
    )
    train.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    train.add_argument("--out", type=Path, metavar="DIR", help="folder for the layers (default: results/layers/PAIR/)")
    _add_traces(train)


def add_costs(verbs) -> None:
    costs = _verb(
        verbs, "costs", "measure what passes of a pair's models and its trained layer cost here", COSTS_EXAMPLES
    )
    _add_pair(costs)
    costs.add_argument("--repeats", type=int, default=20, metavar="N", help="passes of each kind (default: 20)")
    costs.add_argument(
        "--out", type=Path, default=Path("results/costs.toml"), metavar="FILE", help="(default: results/costs.toml)"
    )
    _add_placement(costs)


def add_replay(verbs) -> None:
    replay = _verb(verbs, "replay", "replay the methods of a sweep file over traces", REPLAY_EXAMPLES)
    replay.add_argument("file", type=Path, help="sweep file; its pairs, tasks and methods count")
    _add_pair(replay, "instead of the file's pairs")
    replay.add_argument("--tasks", metavar="NAMES", help="instead of the file's tasks")
    replay.add_argument(
        "--costs",
        default="results/costs.toml",
        metavar="WHICH",
        help="FILE made by costs, paper:NAME, flat:RATIO or FILE@RATIO; several, separated by commas, give a table each "
        "(default: results/costs.toml)",
    )
    replay.add_argument("--split", default="test", help="split of the traces (default: test)")
    replay.add_argument("--limit", metavar="N", default="all", help="samples per task, or all (default: all)")
    replay.add_argument("--csv", type=Path, metavar="FILE", help="also writes the table there")
    replay.add_argument(
        "--out",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder for the replay's log (default: results/)",
    )
    _add_params(replay, "the rows' own settings go first (default: what the file says, else defaults)")
    _add_traces(replay)


def add_tune(verbs) -> None:
    tune = _verb(
        verbs, "tune", "try the same number of settings for every method, by replay of training traces", TUNE_EXAMPLES
    )
    _add_pair(tune)
    tune.add_argument("--tasks", metavar="NAMES", default=ALL_TASKS, help=f"(default: {ALL_TASKS})")
    tune.add_argument("--methods", metavar="NAMES", help="methods to tune (default: all that can be)")
    tune.add_argument(
        "--costs",
        default="results/costs.toml",
        metavar="WHICH",
        help="FILE made by costs, paper:NAME or flat:RATIO (default: results/costs.toml)",
    )
    tune.add_argument("--budget", type=int, default=64, metavar="N", help="settings tried per method (default: 64)")
    tune.add_argument("--seed", type=int, default=0, help="of the choice of settings (default: 0)")
    tune.add_argument(
        "--out", type=Path, default=Path("results/params.toml"), metavar="FILE", help="(default: results/params.toml)"
    )
    _add_traces(tune)
