"""What a finished run prints: the table and where everything came from."""

import dataclasses
from typing import Any

from bench.audit import audit_lines
from bench.store import RunFolder
from bench.summary import NOTES, render, summarise
from methods import METHODS
from methods.settings import shown


def report(folder: RunFolder) -> str:
    """Table and provenance of a run, as Markdown."""
    info, samples = folder.info(), folder.read("samples")
    if samples.empty:
        return f"{folder.path}: no finished sample yet"
    lines = [
        render(summarise(samples, [entry["label"] for entry in info["config"]["methods"]])),
        "",
        *provenance(info),
        NOTES,
        *audit_lines(info),
    ]
    notes = [f"{name}: {note}" for name, task in info["tasks"].items() for note in task["notes"]]
    if info["resumed_with"]:
        notes.append(
            "the run was resumed on another machine or version (resumed_with in run.json): times do not compare"
        )
    lines += [f"Note: {note}" for note in dict.fromkeys(notes)]
    lines.append(f"Files: {folder.path}/run.json, samples.parquet, steps.parquet")
    return "\n".join(lines)


def provenance(info: dict[str, Any], settings: bool = True) -> list[str]:
    """Pair, data, settings and machine of a run: lines of text from its run.json."""
    if "imported" in info:
        return _imported(info)
    config, machine = info["config"], info["environment"]
    lines = []
    for name, pair in info["pairs"].items():
        draft = f", draft {pair['draft']} ({pair['draft_dtype']})" if pair["draft"] else ""
        lines.append(f"Pair: {name} = {pair['target']} ({pair['target_dtype']}){draft}")
        if "stand_in" in pair:
            widened = "; ".join(f"{which} {text}" for which, text in pair["stand_in"].items() if text)
            lines.append(
                f"Stand-in: the tokens are those of these small models, the cost is of other shapes: {widened}"
            )
    data = "; ".join(f"{name}: {task['samples']} samples from {task['source']}" for name, task in info["tasks"].items())
    decoding = (
        "greedy" if config["temperature"] == 0 else f"temperature {config['temperature']:g}, seed {config['seed']}"
    )
    return [
        *lines,
        f"Data: {data}",
        *(_settings(info) if settings else ()),
        *[f"Settings of {name} from {source}" for name, source in config.get("params_source", {}).items()],
        f"Device: {describe_device(config['placement']['device'], machine)}; {decoding}; "
        f"at most {config['max_new_tokens']} new tokens; repeats: {config['repeat']}",
    ]


def _imported(info: dict[str, Any]) -> list[str]:
    """Of a run that was made from another harness's files, which name no models, settings or machine."""
    data = "; ".join(f"{name}: {task['samples']} samples from {task['source']}" for name, task in info["tasks"].items())
    return [
        f"Pair: {', '.join(info['pairs'])}; models, settings and machine are not in the files",
        f"Data: {data}",
        f"By that harness's definitions: {'; '.join(info['imported']['definitions'])}",
    ]


def _settings(info: dict[str, Any]) -> list[str]:
    """What differs from the defaults: a line for all tasks, or one per task where they differ."""
    lines = {}
    for name, pair in info["pairs"].items():
        of = f" of {name}" if len(info["pairs"]) > 1 else ""
        for task, rows in pair["methods"].items():
            lines.setdefault((of, "; ".join(filter(None, map(_changed, rows, rows.values())))), []).append(task)
    several = len(lines) > 1
    return [
        f"Settings{of}{' on ' + ', '.join(tasks) if several else ''}: {text}"
        for (of, text), tasks in lines.items()
        if text
    ]


def _changed(label: str, row: dict[str, Any]) -> str:
    """ "sd gamma=3"; empty for a row with the defaults only."""
    defaults = {f.name: f.default for f in dataclasses.fields(METHODS[row["method"]].settings)}
    changed = [f"{name}={shown(value)}" for name, value in row["settings"].items() if value != defaults.get(name)]
    return f"{label} {' '.join(changed)}" if changed else ""


def describe_device(device: str, environment: dict[str, Any]) -> str:
    """ "cpu (AMD EPYC, 2 threads)", "cuda (NVIDIA H200)"."""
    return (
        f"{device} ({environment['gpu'] or str(environment['cpu']) + ', ' + str(environment['threads']) + ' threads'})"
    )
