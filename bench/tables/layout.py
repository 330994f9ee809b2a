"""What tables share: order and names of tasks, text of numbers, what is bold, and the notes below."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from bench.closing import provenance
from bench.results import Results, Run
from bench.tables.table import Text

# In the order of the paper's tables; other tasks follow under their own names.
TITLES = {"humaneval": "HumanEval", "mbpp": "MBPP", "gsm8k": "GSM8K", "cnn_dm": "CNN/DM"}
DASH = "–"


def in_order(tasks: Iterable[str]) -> list[str]:
    """Tasks in the paper's order, others after them."""
    found = list(dict.fromkeys(tasks))
    return [task for task in TITLES if task in found] + [task for task in found if task not in TITLES]


def title(task: str) -> str:
    return TITLES.get(task, task)


def interval(value: float, low: float, high: float, digits: int = 2) -> str:
    """ "1.53 [1.35, 1.75]"; a dash where there is no value, no bounds where there was one sample."""
    if value != value:
        return DASH
    bounds = f" [{low:.{digits}f}, {high:.{digits}f}]" if low == low else ""
    return f"{value:.{digits}f}{bounds}"


def best(frame: pd.DataFrame, value: str, low: str, high: str) -> set[str]:
    """The methods of a column to print bold: the best, and those whose interval overlaps its."""
    known = frame.dropna(subset=[value])
    if len(known) < 2:
        return set()
    top = known.loc[known[value].idxmax()]
    floor = top[low] if top[low] == top[low] else top[value]
    return set(known.method[known[high].fillna(known[value]) >= floor])


def bold_if(text: str, bold: bool) -> Text:
    return Text(text, bold and text != DASH)


def run_notes(results: Results, settings: bool = False) -> list[str]:
    """Pairs, samples, machine, precision, versions and seeds of the runs that are shown, and on request the settings that
    differ from the defaults."""
    lines: dict[str, None] = {}
    for run in results.runs:
        lines |= dict.fromkeys([*provenance(run.info, settings), _versions(run)])
    return [*lines, *(["Runs: " + ", ".join(run.id for run in results.runs)] if results.runs else []), *results.notes]


def _versions(run: Run) -> str:
    seed = run.info["config"]["seed"]
    return versions(run.info["environment"]) + (f"; seed {seed}" if seed is not None else "")


def versions(environment: Mapping[str, Any]) -> str:
    """ "Versions: torch 2.13.0, ..., Python 3.11.7; commit 4e583502fc" of the `environment` of a run.json or replay.json."""
    libraries = environment.get("libraries") or {}
    if not libraries:
        return "Versions: not recorded"
    names = [f"{name} {libraries[name]}" for name in ("torch", "transformers") if libraries.get(name)]
    commit = str(environment.get("git_commit") or "unknown")
    short = commit[:10] + ("+changes" if commit.endswith("+changes") else "")
    return f"Versions: {', '.join([*names, 'Python ' + str(environment.get('python'))])}; commit {short}"


INTERVALS = (
    "[ ]: 95 % interval, paired bootstrap over samples (10 000 resamples, percentiles expanded for the number of samples). "
    "Bold: the best speedup of a pair and task, and everything whose interval overlaps it; tok/s likewise; τ by an interval of its own."
)
