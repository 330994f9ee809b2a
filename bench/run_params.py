"""Tuned parameters of a run: looked up once, and from then on part of its config."""

from dataclasses import replace

from bench.config import RunConfig
from bench.params import find_params, shipped_params


def with_params(config: RunConfig, source: str | None) -> RunConfig:
    """The config with the parameters that `--params` names; by default those that ship for a pair, where some do.

    Raises:
        BenchError: no parameters of that kind, or a file with mistakes.
    """
    return replace(config, params={pair.name: _of_pair(config, source, pair.name) for pair in config.pairs})


def _of_pair(config: RunConfig, source: str | None, pair: str) -> dict[str, dict[str, dict]]:
    """Settings by task and method; methods that keep their defaults are left out."""
    params = find_params(source or ("tuned" if shipped_params(pair).is_file() else "defaults"), pair)
    names = dict.fromkeys(entry.params_key for entry in config.methods)
    found = {task: {name: params.settings(task, name) for name in names} for task in config.tasks}
    return {task: {name: values for name, values in row.items() if values} for task, row in found.items()}
