"""The command line of pacer-bench: parses and dispatches, nothing else."""

import argparse
import sys
from pathlib import Path

from bench.options import VERBS, build_parser
from bench.result_options import RESULT_VERBS


def run_config(args: argparse.Namespace):
    """The RunConfig that the options of `run` describe."""
    from bench.config import MethodEntry, RunConfig
    from bench.errors import BenchError
    from bench.pairs import find_pair, place
    from bench.run_params import with_params
    from bench.sweep import parse_limit
    from methods import parse_assignments

    names = _names("--method", args.method)
    if not args.no_baseline and "ar" not in names:
        names.insert(0, "ar")
    settings = parse_assignments(args.set)
    for name in settings:
        if name not in names:
            raise BenchError(f"--set {name}...: '{name}' is not among --method {args.method}")
    config = RunConfig(
        pairs=(find_pair(args.pair, args.target, args.draft),),
        tasks=tuple(_names("--task", args.task)),
        methods=tuple(MethodEntry(name, name, settings.get(name, {})) for name in names),
        placement=place(args.device, args.dtype, args.device_map),
        limit=parse_limit(args.limit),
        **{name: getattr(args, name) for name in ("split", "few_shot", "prompt", "max_new_tokens", "temperature")},
        **{name: getattr(args, name) for name in ("top_p", "top_k", "seed", "repeat", "data_dir", "audit")},
    )
    return with_params(config, args.params)


def _names(flag: str, text: str) -> list[str]:
    """The distinct names of a list separated by commas."""
    from bench.errors import BenchError

    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise BenchError(f"{flag} '{text}': expected names separated by commas")
    return list(dict.fromkeys(names))


def do_run(config, args: argparse.Namespace) -> int:
    from bench.audit import lossless
    from bench.closing import report
    from bench.run import Interrupted, resume, run

    if args.dry_run:
        print(plan(config, args))
        return 0
    try:
        folder = resume(args.out, args.resume) if args.resume is not None else run(config, args.out)
        print(report(folder))
    except Interrupted as interrupted:
        where = "" if args.out == Path("results") else f" --out {args.out}"
        print(f"Interrupted; go on with: python run_bench.py --resume {interrupted}{where}", file=sys.stderr)
        return 130
    return 0 if lossless(folder.info()) else 1


def plan(config, args: argparse.Namespace) -> str:
    from bench.dry_run import dry_run
    from bench.errors import BenchError

    if config is None:
        raise BenchError("--dry-run plans a new run; leave out --resume")
    return dry_run(config, args.bandwidth, args.memory)


def dispatch(args: argparse.Namespace) -> int:
    if args.verb == "run":
        return do_run(None if args.resume is not None else run_config(args), args)
    if args.verb == "sweep":
        from bench.errors import BenchError
        from bench.sweep import read_sweep

        if args.resume is None and not args.file:
            raise BenchError("sweep needs a FILE.toml, or --resume RUN_ID")
        config = None if args.resume is not None else read_sweep(args.file, args.data_dir, limit=args.limit)
        return do_run(config, args)
    if args.verb == "ls":
        from bench.listing import listing

        print(listing(args.what))
        return 0
    if args.verb == "train-draft":
        from bench.train_options import main as train_draft

        return train_draft(args)
    if args.verb in RESULT_VERBS:
        from bench.result_verbs import DO

        code, text = DO[args.verb](args)
        print(text)
        return code
    print(
        {"collect": do_collect, "train-preverifier": do_train, "costs": do_costs, "replay": do_replay, "tune": do_tune}[
            args.verb
        ](args)
    )
    return 0


def _pair(args: argparse.Namespace):
    from bench.pairs import find_pair

    return find_pair(args.pair, args.target, args.draft)


def do_collect(args: argparse.Namespace) -> str:
    from bench.collect import collect
    from bench.collect_config import CollectConfig
    from bench.pairs import place
    from bench.sweep import parse_limit

    pair, placement = _pair(args), place(args.device, args.dtype, args.device_map)
    names = ("split", "rollout", "max_new_tokens", "max_prompt_tokens", "temperature", "top_p", "top_k", "stride")
    options = {name: getattr(args, name) for name in (*names, "seed", "data_dir", "out")}
    options |= {"limit": parse_limit(args.limit), "placement": placement}
    configs = [CollectConfig(pair=pair, task=task, **options) for task in _names("--task", args.task)]
    return "\n".join(f"{config.task}: {collect(config).path}" for config in configs)


def do_train(args: argparse.Namespace) -> str:
    from bench.layer_variants import find_variants
    from bench.layers import LAYERS
    from bench.train_preverifier import train

    pair, variants = _pair(args), find_variants(_names("--variant", args.variant))
    out = args.out or LAYERS / pair.tokens_of
    tasks = _names("--tasks", args.tasks)
    reports = train(pair, tasks, variants, args.traces, out, args.minutes, args.seed, args.device, args.temperature)
    lines = [f"{name}: {variants[name].summary}\n\n{report.markdown()}" for name, report in reports.items()]
    return "\n".join([*lines, f"Files: {out}/" + ", ".join(f"{name}.safetensors" for name in reports)])


def do_costs(args: argparse.Namespace) -> str:
    from bench.pairs import place
    from bench.replay_run import measure

    return measure(_pair(args), place(args.device, args.dtype, args.device_map), args.repeats, args.out)


def do_replay(args: argparse.Namespace) -> str:
    from bench.replay_run import replay_config
    from bench.sweep import parse_limit, read_sweep

    pair = _pair(args) if args.pair or args.target or args.draft else None
    tasks = _names("--tasks", args.tasks) if args.tasks else None
    config = read_sweep(args.file, pair=pair, params=args.params, tasks=tasks)
    costs = _names("--costs", args.costs)
    table, text = replay_config(config, costs, args.traces, args.split, parse_limit(args.limit), args.out)
    if args.csv:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(args.csv, index=False)
    return text


def do_tune(args: argparse.Namespace) -> str:
    from bench.replay_run import tune_pair

    methods = _names("--methods", args.methods) if args.methods else None
    tasks = _names("--tasks", args.tasks)
    return tune_pair(_pair(args), tasks, methods, args.costs, args.traces, args.budget, args.seed, args.out)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 1 for a regression that `check` found or an output that an audit found wrong, 2 for a user's mistake (one line on stderr says what to
    do), 130 after Ctrl-C."""
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
