"""What the numbers were made from and on: models, data, decoding, machine, versions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.closing import describe_device
from bench.results import Results, Run


@dataclass(frozen=True)
class Line:
    """One statement, and which runs it is true of; no `runs` if of all."""

    text: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fact:
    """What the runs say of one thing."""

    name: str
    lines: tuple[Line, ...]


def headline(results: Results) -> str:
    pairs = dict.fromkeys((*results.pairs, *(pair for log in results.replay_logs for pair in log.info["pairs"])))
    tasks = dict.fromkeys((*results.tasks, *(task for log in results.replay_logs for task in log.info["tasks"])))
    return f"{', '.join(pairs)} on {', '.join(tasks)}"


def facts(results: Results) -> list[Fact]:
    """All that run.json says of what may change a number; equal statements of several runs once."""
    said: dict[str, dict[str, list[str]]] = {}
    for run in results.runs:
        for name, text in _statements(run, results):
            said.setdefault(name, {}).setdefault(text, []).append(run.id)
    everyone = len(results.runs)
    return [
        Fact(name, tuple(Line(text, tuple(ids) if len(ids) < everyone else ()) for text, ids in lines.items()))
        for name, lines in said.items()
    ]


def _statements(run: Run, results: Results) -> Iterator[tuple[str, str]]:
    info, machine = run.info, run.info["environment"]
    if "imported" in info:
        yield from _imported(info)
        return
    for name, pair in info["pairs"].items():
        yield "Models", _models(name, pair)
    for name, task in info["tasks"].items():
        if name in results.tasks:
            held = run.samples[run.samples.task == name].sample_id.nunique()
            yield "Data", f"{name} version {task['version']}: {held} of {task['samples']} samples from {task['source']}"
    yield "Decoding", _decoding(info["config"])
    for pair, source in info["config"].get("params_source", {}).items():
        yield "Parameters", f"{pair}: {source}"
    yield "Machine", describe_device(info["config"]["placement"]["device"], machine)
    libraries = ", ".join(f"{name} {version}" for name, version in machine.get("libraries", {}).items() if version)
    yield "Versions", f"Python {machine.get('python')}, {libraries}"
    yield "Code", f"commit {machine.get('git_commit') or 'unknown'}"
    for name, task in info["tasks"].items():
        for note in task.get("notes", ()) if name in results.tasks else ():
            yield "Notes", f"{name}: {note}"
    if info["resumed_with"]:
        yield "Notes", "resumed on another machine or version (resumed_with in run.json): times do not compare"


def _imported(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Of a run that was made from another harness's files, which name no models, settings or machine."""
    yield "Models", f"{', '.join(info['pairs'])}: models, settings and machine are not in the files"
    for file in info["imported"]["files"]:
        yield "Data", f"{file['label']}: {file['path']} ({file['model_id']}, sha256 {file['sha256'][:16]})"
    for text in info["imported"]["definitions"]:
        yield "Definitions of another harness", text
    for task in info["tasks"].values():
        for note in task["notes"]:
            yield "Notes", note


def _models(name: str, pair: dict[str, Any]) -> str:
    parts = [f"{name}: target {pair['target']} ({pair['target_dtype']}, weights {pair.get('target_weights')})"]
    if pair["draft"]:
        parts.append(f"draft {pair['draft']} ({pair['draft_dtype']}, weights {pair.get('draft_weights')})")
    return ", ".join(parts)


def _decoding(config: dict[str, Any]) -> str:
    temperature = config["temperature"]
    sampled = f"temperature {temperature:g}, top-p {config['top_p']:g}, top-k {config['top_k']}"
    return (
        f"{sampled if temperature else 'greedy'}; seed {config['seed']}; at most {config['max_new_tokens']} new "
        f"tokens; repeats: {config['repeat']}; {config['split']} split; {config['few_shot']} worked examples; "
        f"{config['prompt']} prompt"
    )


def run_lines(results: Results) -> list[dict[str, str]]:
    """A row per run: its name, status, methods shown from it, and the command that made it."""
    rows = []
    for run in results.runs:
        labels = dict.fromkeys(cell.label for cell in results.cells if cell.run is run)
        command = " ".join(map(str, run.info.get("command", ())))
        rows.append(
            {"id": run.id, "status": run.info["status"], "methods": ", ".join(labels), "command": command or "–"}
        )
    return rows


def replay_lines(results: Results) -> list[dict[str, str]]:
    """A row per replay: its name, tasks, and the costs that its times follow from."""
    rows = []
    for log in results.replay_logs:
        costs = "; ".join(
            f"{cost['name']} (draft pass {cost['ratio']:.3g} target passes)" for cost in log.info["costs"]
        )
        tasks = f"{', '.join(log.info['tasks'])} ({log.info['split']} split)"
        rows.append({"id": log.id, "tasks": tasks, "costs": costs, "params": str(log.info.get("params_source") or "–")})
    return rows
