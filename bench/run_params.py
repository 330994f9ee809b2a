"""Tuned parameters of a run: looked up once, and from then on part of its config."""

from collections.abc import Iterable
from dataclasses import replace

from bench.config import RunConfig
from bench.pairs import PairSpec
from bench.params import Params, find_params, shipped_params


def with_params(config: RunConfig, source: str | None) -> RunConfig:
    """The config with the parameters that `--params` names; by default those that ship for a pair, where some do.

    Raises:
        BenchError: no parameters of that kind, or a file with mistakes.
    """
    found = {pair.name: _found(source, pair) for pair in config.pairs}
    names = dict.fromkeys(entry.params_key for entry in config.methods)
    return replace(
        config,
        params={pair: _of_tasks(params, config.tasks, names) for pair, params in found.items()},
        params_source={pair: describe(params) for pair, params in found.items()},
    )


def _found(source: str | None, pair: PairSpec) -> Params:
    """A stand-in's own parameters, tuned at its cost, go before those of the pair whose tokens it has."""
    names = (pair.name, pair.tokens_of)
    return find_params(source or ("tuned" if shipped_params(*names) else "defaults"), *names)


def _of_tasks(params: Params, tasks: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, dict]]:
    """Settings by task and method; methods that keep their defaults are left out."""
    found = {task: {name: params.settings(task, name) for name in names} for task in tasks}
    return {task: {name: values for name, values in row.items() if values} for task, row in found.items()}


def describe(params: Params) -> str:
    """ "tuned for smollm2-135m, costs '...'": where parameters come from, for the log and the reader."""
    if not params.meta:
        return params.source
    return f"{params.source}, tuned for {params.meta.get('pair')} under the costs '{params.meta.get('costs')}'"
