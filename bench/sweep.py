"""Sweep files: methods x tasks x pairs in one resumable run."""

import dataclasses
import itertools
import tomllib
from pathlib import Path
from typing import Any

from bench.config import MethodEntry, RunConfig
from bench.errors import BenchError
from bench.pairs import PairSpec, find_pair, place
from bench.run_params import with_params
from methods.settings import nearest

_OPTIONS = {
    f.name: type(f.default)
    for f in dataclasses.fields(RunConfig)
    if f.name not in ("pairs", "tasks", "methods", "placement", "limit", "data_dir", "params", "params_source")
}
_KEYS = {
    **_OPTIONS,
    "pairs": list,
    "tasks": list,
    "methods": list,
    "limit": (int, str),
    "device": str,
    "dtype": str,
    "device_map": str,
    "params": str,
}


def read_sweep(
    path: Path,
    data_dir: str | None = None,
    pair: PairSpec | None = None,
    params: str | None = None,
    tasks: list[str] | None = None,
    limit: str | None = None,
) -> RunConfig:
    """The run that a sweep file describes: the command line's options as keys, lists `pairs` and `tasks`, and one
    [[methods]] table per row of the result:

        tasks = ["gsm8k", "humaneval"]
        limit = 16

        [[methods]]
        method = "sd"
        label = "sd-3"          # optional; the method's name by default
        settings.gamma = 3

    `grid.threshold = [0.3, 0.4]` beside other lists makes a row of each combination. `pair`, `params`,
    `tasks` and `limit` replace what the file says; its own `params` is tuned, paper, defaults (the default) or a file.

    Raises:
        BenchError: a file that cannot be read, an unknown key, or a value of the wrong type.
    """
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; give a sweep file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is not valid TOML: {error}") from None
    for key, value in table.items():
        if key not in _KEYS:
            raise BenchError(f"{path}: unknown key '{key}'{nearest(key, _KEYS)}")
        kinds = (float, int) if _KEYS[key] is float else _KEYS[key]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise BenchError(f"{path}: {key} = {value!r} has the wrong type")
    for key in ("tasks", "methods"):
        if not table.get(key):
            raise BenchError(f"{path}: '{key}' is missing or empty")
    for key in ("tasks", "pairs"):
        if not all(isinstance(name, str) for name in table.get(key, ())):
            raise BenchError(f"{path}: {key} must list names in quotes")
    limit = limit or table.pop("limit", 8)
    table.pop("limit", None)
    params = params or table.pop("params", "defaults")
    table.pop("params", None)
    pairs, file_tasks = table.pop("pairs", ["smollm2-135m"]), table.pop("tasks")
    config = RunConfig(
        pairs=(pair,) if pair else tuple(find_pair(name) for name in pairs),
        tasks=tuple(tasks or file_tasks),
        methods=_methods(path, table.pop("methods")),
        placement=place(table.pop("device", "auto"), table.pop("dtype", "auto"), table.pop("device_map", "")),
        limit=parse_limit(str(limit)),
        data_dir=data_dir,
        **table,
    )
    return with_params(config, params)


def _methods(path: Path, rows: list[Any]) -> tuple[MethodEntry, ...]:
    entries = []
    for row in rows:
        entry = {"label": row.get("method"), "settings": {}, "grid": {}, **row} if isinstance(row, dict) else {}
        kinds = {name: type(value) for name, value in entry.items()}
        lists = entry.get("grid", {}).values() if kinds.get("grid") is dict else (0,)
        if kinds != {"method": str, "label": str, "settings": dict, "grid": dict} or not all(
            isinstance(values, list) and values for values in lists
        ):
            raise BenchError(
                f"{path}: a [[methods]] table takes method and label, in quotes, settings, and lists in grid; found {row!r}"
            )
        entries += _grid(**entry)
    return tuple(entries)


def _grid(method: str, label: str, settings: dict[str, Any], grid: dict[str, list]) -> list[MethodEntry]:
    """A row of the result for each combination of the grid's values; without a grid, one."""
    if not grid:
        return [MethodEntry(method, label, settings)]
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [
        MethodEntry(
            method, "-".join((label, *(f"{name}{value}" for name, value in c.items()))), {**settings, **c}, True
        )
        for c in combinations
    ]


def parse_limit(text: str) -> int | None:
    """ "all" -> None, "8" -> 8.

    Raises:
        BenchError: neither.
    """
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BenchError(f"--limit {text}: use a whole number from 1, or all")
    return int(text)
