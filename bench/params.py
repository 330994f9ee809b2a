"""Tuned parameters of methods: files that tuning writes and runs read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.toml_text import read_toml, toml_text
from methods import METHODS, MethodError, get_method
from methods.settings import nearest

ALL = "all"
SOURCES = ("tuned", "paper", "defaults")
_TABLES = ("meta", "tasks", "tuning")
_HEADER = """Parameters of methods, tuned by replay: [tasks.TASK.METHOD], and [tasks.all.METHOD] for every other task.
METHOD is "pacer:NAME" for a trained layer that was tuned by itself. Written by: python run_bench.py tune. [tuning]: settings tried, and the speedups over ar that they reached by replay."""

# Published settings where the defaults here differ from them. There are none so far: methods default to what their
# papers or public code state, and which b, t0 and rho PACER's tables used is not known to us.
PUBLISHED: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class Params:
    """Settings by task and method: `tasks["gsm8k"]["sd"] == {"gamma": 3}`. `source` says where they come from; `meta`
    what they were tuned with; `tuning` what tuning tried, by method."""

    source: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, task: str, method: str) -> dict[str, Any]:
        """A method's settings for a task: the task's own, else those for all tasks, else none."""
        for name in (task, ALL):
            if method in self.tasks.get(name, {}):
                return dict(self.tasks[name][method])
        return {}


def find_params(source: str, *pairs: str) -> Params:
    """Parameters by what `--params` says: "tuned" (the file that ships for a pair, the first of them that has one), "paper"
    (published settings), "defaults", or a FILE.

    Raises:
        BenchError: nothing of that kind, or a file with mistakes.
    """
    if source == "defaults":
        return Params(source)
    if source == "paper":
        return Params(source, tasks={ALL: PUBLISHED})
    path = shipped_params(*pairs) if source == "tuned" else Path(source)
    if path is None:
        raise BenchError(
            f"--params tuned: no parameters ship for {pairs[0]}; make them with run_bench.py tune and the options that name "
            "this pair, then use --params FILE, or use --params defaults"
        )
    params = read_params(path)
    return replace(params, source=f"bench/params/{path.name}") if source == "tuned" else params


def shipped_params(*pairs: str) -> Path | None:
    """Where parameters ship for a pair, the first of these that has some: "standin:1b/small" in standin-1b-small.toml."""
    for pair in pairs:
        path = Path(str(files("bench").joinpath("params", f"{re.sub('[:/@]', '-', pair)}.toml")))
        if path.is_file():
            return path
    return None


def write_params(path: Path, params: Params) -> None:
    """Raises BenchError for labels that are no methods: a run could not find their settings."""
    _check(path, params)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"meta": params.meta, "tasks": params.tasks, "tuning": params.tuning}
    path.write_text(toml_text(table, _HEADER), encoding="utf-8")


def read_params(path: Path) -> Params:
    """The inverse of `write_params`.

    Raises:
        BenchError: a file that cannot be read, or an unknown key, method or setting in it.
    """
    table = read_toml(path, f"one of {', '.join(SOURCES)}, or a file made by 'run_bench.py tune'")
    for key in table:
        if key not in _TABLES:
            raise BenchError(f"{path}: unknown key '{key}'{nearest(key, _TABLES)}")
    params = Params(str(path), *(table.get(key, {}) for key in _TABLES))
    _check(path, params)
    return params


def _check(path: Path, params: Params) -> None:
    for name, value in (("meta", params.meta), ("tasks", params.tasks), ("tuning", params.tuning)):
        _check_table(path, name, value)
    for task, methods in params.tasks.items():
        _check_table(path, f"tasks.{task}", methods)
        for method, settings in methods.items():
            place = f"tasks.{task}.{method}"
            name = method.partition(":")[0]
            if name not in METHODS:
                raise BenchError(f"{path}: [{place}]: unknown method '{name}'{nearest(name, METHODS)}")
            _check_table(path, place, settings)
            try:
                get_method(name, dict(settings))
            except MethodError as error:
                raise BenchError(f"{path}: [{place}]: {str(error).removeprefix('--set ')}") from None


def _check_table(path: Path, name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise BenchError(f"{path}: {name} = {value!r}: expected a table [{name}]")
