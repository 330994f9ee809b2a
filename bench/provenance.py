"""What a run was made of and on, and whether it may go on."""

import hashlib
import sys
from dataclasses import asdict
from typing import Any

from bench.config import RunConfig
from bench.environment import environment, fingerprint
from bench.errors import BenchError
from bench.layers import find_layer
from bench.loading import Pair, weights_folder
from bench.plan import LoadedTask
from bench.store import RunFolder


def first_info(config: RunConfig, tasks: list[LoadedTask]) -> dict[str, Any]:
    """run.json of a run that is about to start."""
    return {
        "status": "running",
        "command": sys.argv[1:],
        "config": config.to_json(),
        "environment": environment(config.placement.device),
        "resumed_with": [],
        "tasks": {task.name: task.describe() for task in tasks},
        "pairs": {},
        "samples": len(config.pairs) * sum(len(task.loaded.samples) for task in tasks),
    }


def check_resumable(folder: RunFolder, config: RunConfig, tasks: list[LoadedTask]) -> dict[str, Any]:
    """run.json of a run that is about to go on: another machine or version is recorded, as its times do not compare.

    Raises:
        BenchError: a task has other samples or another version than before.
    """
    info = folder.info()
    check_same_samples(info, tasks, f"--resume {folder.run_id}", "give it the same data, or start a new run")
    now = environment(config.placement.device)
    if now not in (info["environment"], *info["resumed_with"]):
        info["resumed_with"].append(now)
    return info


def check_same_samples(info: dict[str, Any], tasks: list[LoadedTask], who: str, remedy: str) -> None:
    """Raises BenchError, in the name of `who`, when a task has other samples or another version than in run.json."""
    for task in tasks:
        now, before = task.describe(), info["tasks"].get(task.name, {})
        if (now["content"], now["version"]) != (before.get("content"), before.get("version")):
            raise BenchError(
                f"{who}: {task.name} has changed: it is now version {now['version']} from {now['source']}, not "
                f"{before.get('version')} from {before.get('source')}; {remedy}"
            )


def add_pair(info: dict[str, Any], pair: Pair, config: RunConfig) -> dict[str, Any]:
    """run.json with a pair's models.

    Raises:
        BenchError: the run has begun with other weights.
    """
    name = pair.spec.name
    now = {
        "target": pair.spec.target,
        "draft": pair.spec.draft if pair.draft else None,
        "target_dtype": config.placement.dtype,
        "draft_dtype": pair.draft_dtype if pair.draft else None,
        "target_weights": fingerprint(weights_folder(pair.spec.target)),
        "draft_weights": fingerprint(weights_folder(pair.spec.draft)) if pair.draft else None,
        "context_limit": pair.context_limit,
        **({"stand_in": pair.stand_in} if pair.stand_in else {}),
        "ignored_generation_config": pair.ignored_generation_config,
        "methods": {task: _described(config, pair, task) for task in config.tasks},
    }
    before = info["pairs"].get(name, now)
    checked = ("target_weights", "draft_weights", "draft_dtype", "methods")
    changed = [key for key in checked if before.get(key) != now[key]]
    if changed:
        raise BenchError(f"--resume: {changed[0]} of {name} changed since the run began; start a new run")
    info["pairs"][name] = now
    return info


def _described(config: RunConfig, pair: Pair, task: str) -> dict[str, Any]:
    """Every row's settings on a task, the defaults included, and a hash of its trained layer."""
    rows = {}
    for entry in config.methods:
        method = config.method(entry, pair.spec.name, task)
        rows[entry.label] = {"method": method.name, "settings": asdict(method.settings)}
        if method.spec.trained:
            path = find_layer(pair.spec, method.settings.layer)
            rows[entry.label]["layer"] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return rows
