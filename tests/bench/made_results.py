"""Run folders and replay logs from random numbers, without a model: what tables, figures and the report read."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from bench.config import MethodEntry, RunConfig
from bench.pairs import PairSpec, place
from bench.replay_log import ReplayLog
from bench.schema import SAMPLES
from bench.store import RunFolder
from methods import get_method

PAIR = "tiny"
MACHINE = {"git_commit": "0" * 40, "python": "3.11.0", "libraries": {"torch": "2.13.0", "transformers": "5.24.0"}}
MACHINE |= {"machine": "x86_64", "cpu": "made-up CPU", "threads": 2, "gpu": None, "gpus": 0}


def made_run(
    results: Path,
    methods: Sequence[MethodEntry] = (MethodEntry("ar", "ar"), MethodEntry("sd", "sd"), MethodEntry("pacer", "pacer")),
    tasks: Sequence[str] = ("gsm8k", "mbpp"),
    samples: int = 5,
    draws: int = 0,
    name: str = "made",
    status: str = "finished",
    **config,
) -> RunFolder:
    """A run folder whose methods accept drafts at random; `ar` is the slowest."""
    rng = random.Random(draws)
    run = RunConfig(
        (PairSpec(PAIR, "made up", "target", "draft"),), tuple(tasks), tuple(methods), place("cpu", "float32"), **config
    )
    folder = RunFolder.create(results, name)
    folder.write_info(_info(run, samples, status))
    for position, (task, number) in enumerate((task, n) for task in tasks for n in range(samples)):
        rows, steps = [], []
        tokens = [rng.randrange(100) for _ in range(rng.randint(20, 40))]
        for order, entry in enumerate(methods):
            for repeat in range(run.repeat):
                key = dict(pair=PAIR, task=task, sample_id=f"{task}-{number}", method=entry.label, repeat=repeat)
                own = _steps(rng, key, entry, len(tokens))
                steps += own
                rows.append(_sample(rng, key, own, tokens, position, order))
        folder.add_part(position, rows, steps)
    if status == "finished":
        folder.finish()
    return folder


def _info(run: RunConfig, samples: int, status: str) -> dict:
    methods = {
        e.label: {"method": e.method, "settings": asdict(get_method(e.method, e.settings).settings)}
        for e in run.methods
    }
    task = {"version": 1, "source": "made up", "notes": [], "samples": samples, "content": "0"}
    pair = {"target": "target", "draft": "draft", "target_dtype": "float32", "draft_dtype": "float32"}
    pair |= {"target_weights": "1", "draft_weights": "2", "methods": dict.fromkeys(run.tasks, methods)}
    info = {"status": status, "config": run.to_json(), "environment": MACHINE, "resumed_with": []}
    return info | {"tasks": dict.fromkeys(run.tasks, task), "pairs": {PAIR: pair}}


def _steps(rng: random.Random, key: dict, entry: MethodEntry, new_tokens: int) -> list[dict]:
    steps, left, drafts = [], new_tokens, entry.method != "ar"
    while left:
        drafted = min(rng.randint(1, 6), left - 1) if drafts else 0
        accepted = rng.randint(0, drafted)
        emitted, words = min(accepted + 1, left), [f" w{rng.randrange(9)}" for _ in range(16)]
        confidence = [rng.random() for _ in range(drafted)]
        asked = entry.method.startswith("pacer") and drafted > 0
        values = {
            "step": len(steps),
            "drafted": drafted,
            "accepted": accepted,
            "phrase_tokens": 0,
            "phrase_accepted": 0,
            "emitted": emitted,
            "stop_reason": "policy" if drafts else "",
            "target_forwards": 1,
            "draft_forwards": drafted,
            "draft_s": 0.002 * drafted * rng.uniform(0.9, 1.1),
            "preverify_s": 0.0005 if asked else 0.0,
            "verify_s": 0.02 * rng.uniform(0.9, 1.1),
            "other_s": 0.0001,
            "confidence": confidence,
            "entropy": [1 - c for c in confidence],
            "estimate": [rng.random() for _ in range(drafted)] if asked else None,
            "accepted_flags": [i < accepted for i in range(drafted)],
            "drafted_tokens": [rng.randrange(100) for _ in range(drafted)],
            "drafted_text": words[:drafted],
            "emitted_text": words[:accepted] + [" own"],
        }
        steps.append({**key, **values})
        left -= emitted
    return steps


def _sample(rng: random.Random, key: dict, steps: list[dict], tokens: list[int], position: int, order: int) -> dict:
    parts = {name: sum(step[name] for step in steps) for name in ("draft_s", "preverify_s", "verify_s", "other_s")}
    counts = ("drafted", "accepted", "phrase_tokens", "phrase_accepted", "target_forwards", "draft_forwards")
    decode_s, prefill_s = sum(parts.values()), rng.uniform(0.01, 0.03)
    row = {name: sum(step[name] for step in steps) for name in counts} | parts
    row |= {"decode_s": decode_s, "prefill_s": prefill_s, "wall_s": decode_s + prefill_s, "steps": len(steps)}
    row |= {"new_tokens": len(tokens), "output_tokens": tokens, "position": position, "order": order, "seed": 0}
    row |= {"task_version": 1, "category": "", "prompt_tokens": 10, "truncated_tokens": 0, "finish_reason": "length"}
    row |= {"target_tokens": sum(s["drafted"] + 1 for s in steps), "draft_tokens": row["draft_forwards"]}
    row |= {
        "metric": "exact_match",
        "score": 0.0,
        "metrics": [("exact_match", 0.0)],
        "output": "".join(s["emitted_text"][0] for s in steps),
    }
    return {column.name: {**row, **key}.get(column.name) for column in SAMPLES}


def made_replay(
    results: Path,
    methods: Sequence[MethodEntry] = (MethodEntry("ar", "ar"), MethodEntry("sd", "sd"), MethodEntry("pacer", "pacer")),
    tasks: Sequence[str] = ("gsm8k", "mbpp"),
    samples: int = 5,
    costs: Sequence[tuple[str, float]] = (("tiny on cpu", 0.1),),
    draws: int = 0,
    name: str = "made",
    split: str = "test",
    lengths: Mapping[tuple[str, int], int] | None = None,
) -> ReplayLog:
    """A replay's log with all its kinds of rows: methods, four fixed lengths, the oracle. `lengths`: tokens of each output,
    by task and number (default: random)."""
    rng = random.Random(draws)
    kinds = [(e.label, "ar" if e.method == "ar" else "method") for e in methods]
    kinds += [(f"fixed-{gamma}", "fixed") for gamma in range(1, 5)] + [("oracle", "oracle")]
    lengths = lengths or {(task, n): rng.randint(20, 40) for task in tasks for n in range(samples)}
    rows = []
    for task, n in lengths:
        for label, kind in kinds:
            drafted, accepted = _draft_lengths(rng, kind, lengths[task, n], label)
            for cost, ratio in costs:
                key = dict(pair=PAIR, task=task, split=split, costs=cost, ratio=ratio, unit="s", method=label)
                rows.append(_replay_row(key, kind, f"{task}-{n}", lengths[task, n], drafted, accepted, ratio))
    about = {
        e.label: {
            "method": e.method,
            "settings": asdict(get_method(e.method, e.settings).settings),
            "about": " ".join(f"{k}={v}" for k, v in e.settings.items()),
            "phrases": "ouroboros" in e.method,
            "grid": e.grid,
        }
        for e in methods
    }
    info = {
        "pairs": [PAIR],
        "tasks": list(tasks),
        "split": split,
        "methods": {PAIR: dict.fromkeys(tasks, about)},
        "costs": [
            {"name": c, "unit": "s", "ratio": r, "about": {"pair": PAIR, "environment": MACHINE}} for c, r in costs
        ],
        "environment": MACHINE,
    }
    return ReplayLog.write(results, name, info, pd.DataFrame(rows))


def _draft_lengths(rng: random.Random, kind: str, new_tokens: int, label: str) -> tuple[list[int], int]:
    """Draft tokens of each step, and how many of them were accepted."""
    drafts, accepted, left = [], 0, new_tokens
    while left > 0:
        right = rng.randint(0, 4)
        drafted = {"ar": 0, "oracle": right}.get(kind, rng.randint(1, 5))
        drafted = int(label.removeprefix("fixed-")) if kind == "fixed" else drafted
        drafts.append(drafted)
        accepted += min(drafted, right)
        left -= min(drafted, right) + 1
    return drafts, accepted


def _replay_row(
    key: dict, kind: str, sample: str, new_tokens: int, drafted: list[int], accepted: int, ratio: float
) -> dict:
    return {
        **key,
        "kind": "method" if kind == "ar" else kind,
        "sample_id": sample,
        "new_tokens": new_tokens,
        "steps": len(drafted),
        "drafted": sum(drafted),
        "accepted": accepted,
        "target_forwards": len(drafted),
        "draft_forwards": sum(drafted),
        "asked": 0,
        "preverify_s": 0.0,
        "decode_s": 0.02 * (len(drafted) + ratio * sum(drafted)),
        "draft_lengths": drafted,
    }
