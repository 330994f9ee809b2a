"""Logged data, read back for tables, figures and the report: which rows of which runs are shown together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import BenchError
from bench.replay_log import REPLAY_FILE, ReplayLog
from bench.store import RunFolder
from methods import METHODS

# What must be equal for two runs' rows to stand in one table; prompts, weights and machine are compared as well.
_CONDITIONS = ("split", "few_shot", "prompt", "max_new_tokens", "temperature", "top_p", "top_k", "seed", "placement")
_MACHINE = ("machine", "cpu", "threads", "gpu", "gpus")
_WEIGHTS = ("target", "target_dtype", "target_weights", "draft", "draft_dtype", "draft_weights")


@dataclass(frozen=True)
class Run:
    """One run's folder as data frames; `info` is its run.json."""

    folder: RunFolder
    info: dict[str, Any]

    @property
    def id(self) -> str:
        return self.folder.run_id

    @cached_property
    def samples(self) -> pd.DataFrame:
        return self.folder.read("samples")

    @cached_property
    def steps(self) -> pd.DataFrame:
        return self.folder.read("steps")

    @property
    def labels(self) -> list[str]:
        """The methods, by the names that rows carry, in the order of the config."""
        return [entry["label"] for entry in self.info["config"]["methods"]]

    def row(self, pair: str, task: str, label: str) -> dict[str, Any]:
        """What run.json says of a method on a task: its registry name `method`, all `settings`, and a hash `layer`."""
        return self.info["pairs"][pair]["methods"][task][label]

    def conditions(self, pair: str, task: str) -> dict[str, Any]:
        """Equal for two runs whose numbers may be compared with each other."""
        config, known, task_info = self.info["config"], self.info["pairs"][pair], self.info["tasks"][task]
        return {
            **{name: config[name] for name in _CONDITIONS},
            **{name: self.info["environment"].get(name) for name in _MACHINE},
            **{name: known.get(name) for name in _WEIGHTS},
            "prompts": (task_info["content"], task_info["version"]),
        }


@dataclass(frozen=True)
class Cell:
    """The rows of one method on one task with one pair, and those of `ar` from the same run (empty without one)."""

    pair: str
    task: str
    label: str
    run: Run

    def _rows(self, frame: pd.DataFrame, label: str) -> pd.DataFrame:
        return frame[(frame.pair == self.pair) & (frame.task == self.task) & (frame.method == label)]

    @cached_property
    def samples(self) -> pd.DataFrame:
        return self._rows(self.run.samples, self.label)

    @cached_property
    def baseline(self) -> pd.DataFrame:
        return self._rows(self.run.samples, "ar")

    @cached_property
    def steps(self) -> pd.DataFrame:
        return self._rows(self.run.steps, self.label)

    @property
    def method(self) -> str:
        """The registry's name of the method; the label may be another."""
        return self.run.row(self.pair, self.task, self.label)["method"]

    @property
    def settings(self) -> dict[str, Any]:
        return self.run.row(self.pair, self.task, self.label)["settings"]


@dataclass(frozen=True)
class Results:
    """What was found under some paths: the cells to show, in order, and the rows of replays.

    `replays` holds rows of replay.parquet, with the id of their `replay`. `notes` say what was left out or is unfinished.
    """

    cells: tuple[Cell, ...]
    replay_logs: tuple[ReplayLog, ...] = ()
    replays: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """Those that the cells come from, newest first."""
        return list({cell.run.id: cell.run for cell in self.cells}.values())

    @property
    def pairs(self) -> list[str]:
        return list(dict.fromkeys(cell.pair for cell in self.cells))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(cell.task for cell in self.cells))

    def labels(self, pair: str | None = None) -> list[str]:
        """The methods' names, `ar` first."""
        found = dict.fromkeys(cell.label for cell in self.cells if pair in (None, cell.pair))
        return sorted(found, key=lambda label: label != "ar")

    def replayed(self, pair: str, task: str, label: str, replay: str | None = None) -> dict[str, Any]:
        """What replay.json says of a method on a task, that of `replay` or the newest that knows it; empty for bounds such as
        the oracle."""
        for log in self.replay_logs:
            found = log.info["methods"].get(pair, {}).get(task, {}).get(label)
            if found and replay in (None, log.id):
                return found
        return {}

    def of(self, pair: str, task: str | None = None, label: str | None = None) -> Iterator[Cell]:
        """The cells of a pair, a task (or all) and a method (or all)."""
        for cell in self.cells:
            if cell.pair == pair and task in (None, cell.task) and label in (None, cell.label):
                yield cell


def read_results(paths: Sequence[Path]) -> Results:
    """The results under some paths: run folders, replay folders, or folders of such.

    Each pair and task shows its newest finished run; others add the methods that it lacks, where they were made under the same
    conditions: prompts, decoding, weights and machine. A speedup is always over the `ar` of its own run. What is left out
    is noted.

    Raises:
        BenchError: nothing there, or files that are broken or not this project's.
    """
    runs, logs, foreign = [], [], []
    for folder in _folders(paths):
        try:
            found = _open(folder)
        except BenchError as error:
            if folder in paths:
                raise
            foreign.append(f"{folder.name} is left out: {error}")
            continue
        (logs if isinstance(found, ReplayLog) else runs).append(found)
    runs.sort(key=lambda run: (run.info["status"] == "finished", run.id), reverse=True)
    logs.sort(key=lambda log: log.id, reverse=True)
    cells, notes = _select(runs)
    if not cells and not logs:
        where = ", ".join(map(str, paths))
        raise BenchError(f"{where}: no finished sample of any run there; make some with: python run_bench.py")
    replays, left_out = _newest(logs)
    return Results(tuple(cells), tuple(logs), replays, (*foreign, *notes, *left_out))


def _open(folder: Path) -> "Run | ReplayLog":
    """Raises BenchError for files that are broken, not this project's, or of another version of it."""
    if (folder / REPLAY_FILE).exists():
        return ReplayLog.read(folder)
    opened = RunFolder.open(folder)
    run = Run(opened, opened.info())
    try:
        if len(run.samples) and "imported" not in run.info:
            for (pair, task), _ in run.samples.groupby(["pair", "task"]):
                run.conditions(pair, task)
                for label in run.labels:
                    METHODS[run.row(pair, task, label)["method"]], run.row(pair, task, label)["settings"]
    except (KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"{folder / 'run.json'} was not written by this version of the project ({error!r}); run it anew"
        ) from None
    return run


def _folders(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_file():
            raise BenchError(f"{path} is a file; give the folder of a run, or one that holds runs, such as results/")
        if not path.is_dir():
            raise BenchError(f"{path}: no such folder; give a run's folder, or one that holds runs, such as results/")
        inside = [path, *sorted(p for p in path.iterdir() if p.is_dir())]
        here = [p for p in inside if (p / "run.json").exists() or (p / REPLAY_FILE).exists()]
        if not here:
            raise BenchError(f"{path}: no run in it; make one with: python run_bench.py --out {path}")
        found |= dict.fromkeys(here)
    return list(found)


def _select(runs: Sequence[Run]) -> tuple[list[Cell], list[str]]:
    """The cells to show of runs, the newest finished first, and what was left out."""
    chosen: dict[tuple[str, str], dict[str, Cell]] = {}
    anchors: dict[tuple[str, str], Run] = {}
    notes: dict[str, None] = {}
    for run in runs:
        if run.info["status"] != "finished":
            notes[f"{run.id} is not finished; go on with: python run_bench.py --resume {run.id}{_out(run)}"] = None
        for (pair, task), rows in run.samples.groupby(["pair", "task"], sort=False):
            anchor = anchors.setdefault((pair, task), run)
            ours, theirs = run.conditions(pair, task), anchor.conditions(pair, task)
            other = ", ".join(name for name in ours if ours[name] != theirs[name])
            if other:
                notes[
                    f"{run.id} is left out for {task} with {pair}: made under other conditions than {anchor.id} ({other})"
                ] = None
                continue
            present, cells = set(rows.method), chosen.setdefault((pair, task), {})
            for label in run.labels:
                if label in present:
                    cells.setdefault(label, Cell(pair, task, label, run))
    return [cell for cells in chosen.values() for cell in cells.values()], list(notes)


def _out(run: Run) -> str:
    folder = run.folder.path.parent
    return "" if folder == Path("results") else f" --out {folder}"


def _newest(logs: Sequence[ReplayLog]) -> tuple[pd.DataFrame, list[str]]:
    """The rows of replays, newest first, and what was left out: each pair, task, split and costs has those of its newest
    replay; older ones add the methods that it lacks, where they replayed the same samples."""
    parts: list[pd.DataFrame] = []
    known: dict[tuple, tuple[frozenset, set[str], str]] = {}
    notes: dict[str, None] = {}
    for log in logs:
        for key, group in log.rows.groupby(["pair", "task", "split", "costs", "ratio"], sort=False):
            samples = frozenset(zip(group.sample_id, group.new_tokens, strict=True))
            first, labels, anchor = known.setdefault(key, (samples, set(), log.id))
            if samples != first:
                notes[f"{log.id} is left out for {key[1]} with {key[0]}: it replayed other samples than {anchor}"] = (
                    None
                )
                continue
            new = set(group.method) - labels
            labels |= new
            parts.append(group[group.method.isin(new)].assign(replay=log.id))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(), list(notes)
