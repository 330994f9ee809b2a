"""What the verbs `replay`, `tune` and `costs` do, from their options to what they print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import torch

from bench.config import MethodEntry, RunConfig
from bench.costs import Costs, find_costs, write_costs
from bench.environment import environment, git_commit
from bench.errors import BenchError
from bench.layer_variants import VARIANTS
from bench.layers import find_layer, find_layers, load_own, with_layer
from bench.loading import load_pair
from bench.measure_costs import measure_costs
from bench.pairs import PairSpec, Placement, place
from bench.params import write_params
from bench.replay import TraceSet
from bench.replay_log import ReplayLog
from bench.replay_rows import Replays, describe, replay_rows
from bench.replay_table import notes, render, replay_summary
from bench.run import check_methods
from bench.trace_sets import checked_set, split_traces
from bench.tune import render as render_tuned
from bench.tune import tune
from methods import METHODS, Method, get_method
from methods.phrases.drafter import PhraseDrafter
from methods.preverifier import PreVerifier, read_about


def measure(pair: PairSpec, placement: Placement, repeats: int, out: Path) -> str:
    """Measures the costs of a pair and writes them to `out`; returns what to print."""
    _check_out(out)
    loaded = load_pair(pair, placement)
    try:
        layer = with_layer(get_method("pacer"), loaded).layer
    except BenchError:  # a pair without a trained layer has costs, too
        layer = None
    costs = measure_costs(loaded, layer, repeats=repeats)
    write_costs(out, costs)
    (near, *_), context = costs.target_s, costs.contexts[0]
    passes = ", ".join(f"{k}: {1000 * seconds:.1f}" for k, seconds in zip(costs.verified, near, strict=True))
    phrases = ", ".join(f"{n}: {1000 * seconds:.1f}" for n, seconds in zip(costs.phrases, costs.phrase_s, strict=True))
    preverify = "no trained layer" if layer is None else f"{1e6 * costs.preverify_s:.0f} us per block"
    return (
        f"{costs.name}, after {context} tokens\ntarget pass in ms, by tokens: {passes}\n"
        f"draft pass: {1000 * costs.draft_s[0]:.2f} ms, {costs.ratio:.3f} of a target pass\n"
        f"pre-verification: {preverify}; another policy's question: {1e6 * costs.question_s:.0f} us; "
        f"the rest of a step: {1e6 * costs.overhead_s:.0f} us\n"
        f"phrases add to a draft pass, in ms, by their tokens: {phrases}\nFile: {out}"
    )


def _check_out(out: Path) -> None:
    """Raises BenchError for a file that cannot be written, before minutes of work are lost with it."""
    if out.is_dir():
        raise BenchError(f"--out {out} is a folder; name a file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"--out {out}: {error.strerror}") from None


def replay_config(
    config: RunConfig, costs: Sequence[str], traces: Path, split: str, limit: int | None, results: Path
) -> tuple[pd.DataFrame, str]:
    """Replays a sweep's methods over the traces of its pairs and tasks under each of the costs, and logs it in a new folder
    of `results`; the table, and it in Markdown with notes.

    Raises:
        BenchError: no traces, no costs, or a draft that is longer than the rollouts.
    """
    check_methods(config)
    for pair in config.pairs:
        find_layers(pair, [config.method(entry, pair.name, task) for entry in config.methods for task in config.tasks])
    prices = list({(price.name, price.ratio): price for price in map(find_costs, costs)}.values())
    frames, methods, lengths = [], {}, {}
    entries = {entry.label: entry for entry in config.methods}
    for pair in config.pairs:
        sets = {task: checked_set(traces, pair, task, split, limit) for task in config.tasks}
        lengths[pair.name] = {task: each.max_new_tokens for task, each in sets.items()}
        load, replays = layer_loader(pair, next(iter(sets.values())).traces[0].hidden.shape[1]), Replays()
        for price in prices:
            rows = {task: _row_methods(config, pair, task, each, price, load) for task, each in sets.items()}
            methods.setdefault(pair.name, {task: _described(row, entries) for task, row in rows.items()})
            frames.append(replay_rows(rows, sets, price, replays))
    names = dict.fromkeys(entry.method if entry.grid else entry.label for entry in config.methods)
    log = ReplayLog.write(
        results,
        "-".join((*config.tasks[:2], *list(names)[:3])).replace(":", "-")[:100],
        {
            "command": sys.argv[1:],
            "pairs": [pair.name for pair in config.pairs],
            "tasks": list(config.tasks),
            "split": split,
            "max_new_tokens": lengths,
            "costs": [costs_info(price) for price in prices],
            "methods": methods,
            "params_source": config.params_source,
            "environment": environment("cpu"),
        },
        pd.concat(frames, ignore_index=True),
    )
    table = replay_summary(log.rows, methods)
    texts = []
    for info in log.info["costs"]:
        part = table[(table.costs == info["name"]) & (table.ratio == info["ratio"])]
        texts.append(f"{render(part, info['unit'])}\n\n{notes(part, info)}")
    return table, "\n\n".join([*texts, f"Files: {log.path}/replay.json, replay.parquet"])


def _row_methods(config: RunConfig, pair: PairSpec, task: str, traces: TraceSet, prices: Costs, load) -> dict:
    return {
        entry.label: load(_within(_priced(config, entry, pair, task, prices), traces.rollout))
        for entry in config.methods
    }


def _described(methods: Mapping[str, Method], entries: Mapping[str, MethodEntry]) -> dict[str, dict]:
    """For replay.json: name, settings, what differs from the defaults, whether drafts hold phrases, and whether the row is
    one of a grid's. A `cost` that follows from the replay's costs is left out, as it differs between them."""
    described = {}
    for label, method in methods.items():
        derived = {"cost"} - set(entries[label].settings)
        described[label] = {
            "method": method.name,
            "settings": {name: value for name, value in asdict(method.settings).items() if name not in derived},
            "about": describe(method, hidden={"layer", *derived}),
            "phrases": method.spec.drafter is PhraseDrafter,
            "grid": entries[label].grid,
        }
    return described


def costs_info(costs: Costs) -> dict:
    """For replay.json."""
    return {"name": costs.name, "unit": costs.unit, "ratio": costs.ratio, "about": costs.about}


def _priced(config: RunConfig, entry: MethodEntry, pair: PairSpec, task: str, prices: Costs) -> Method:
    """The row's method; a threshold that follows from costs follows from the replay's, unless the row says its own."""
    method = config.method(entry, pair.name, task)
    if hasattr(method.settings, "cost") and "cost" not in entry.settings:
        return replace(method, settings=replace(method.settings, cost=prices.marginal))
    return method


def _within(method: Method, rollout: int) -> Method:
    """The method with a default `gamma_max` beyond the rollouts lowered to them; it would be refused."""
    default = type(method.settings)()
    limit = getattr(method.settings, "gamma_max", 0)
    if limit > rollout and limit == getattr(default, "gamma_max", None):
        return replace(method, settings=replace(method.settings, gamma_max=rollout))
    return method


def layer_loader(pair: PairSpec, width: int) -> Callable[[Method], Method]:
    """Gives methods the pair's trained layers, each loaded once, without the pair's models where no layer reads them."""
    layers: dict[str, PreVerifier] = {}
    embedding: list[torch.Tensor] = []

    def load(method: Method) -> Method:
        if not method.spec.trained:
            return method
        name = method.settings.layer
        if name not in layers:
            path = find_layer(pair, name)
            layers[name] = load_own(path, pair, width, _embedding(path, pair, embedding))
        return method.with_layer(layers[name])

    return load


def _embedding(path: Path, pair: PairSpec, kept: list[torch.Tensor]) -> torch.Tensor | None:
    if "token" not in read_about(path).get("config", {}).get("inputs", ()):
        return None
    if not kept:
        kept.append(load_pair(pair, place("cpu", "auto")).draft.model.get_input_embeddings().weight.detach())
    return kept[0]


def _other_layers(pair: PairSpec) -> list[str]:
    """ "pacer:NAME" for each further layer that the pair has."""
    found = []
    for name, variant in VARIANTS.items():
        try:
            find_layer(pair, name)
        except BenchError:
            continue
        if name != "default" and variant.changes.get("label") != "conditional":
            found.append(f"pacer:{name}")
    return found


def tune_pair(
    pair: PairSpec,
    tasks: list[str],
    names: list[str] | None,
    costs: str,
    traces: Path,
    budget: int,
    seed: int,
    out: Path,
) -> str:
    """Tunes methods on the held-out training traces of a pair, writes the parameters to `out`; what to print."""
    _check_out(out)
    prices = find_costs(costs)
    sets = {task: split_traces(traces, pair, task).held_out for task in tasks}
    load = layer_loader(pair, next(iter(sets.values())).traces[0].hidden.shape[1])
    methods, left_out = {}, []
    for name in names or [*(name for name in METHODS if name != "ar"), *_other_layers(pair)]:
        base, _, layer = name.partition(":")
        method = get_method(base, {"layer": layer} if layer else {})
        try:
            methods[name] = load(method)
        except BenchError as error:
            if names:
                raise
            left_out.append(f"{name} is left out: {error}")
    tuned = tune(methods, sets, prices, budget, seed)
    params = tuned.params(commit=git_commit() or "unknown")
    for rows in params.tasks.values():  # where the threshold is `auto`, it follows from this
        for name in rows:
            if name.partition(":")[0] == "pacer":
                rows[name] = {**rows[name], "cost": round(prices.marginal, 3)}
    write_params(out, params)
    lines = [render_tuned(tuned), "", f"Speedups over ar by replay of held-out training traces, costs '{prices.name}'."]
    return "\n".join([*lines, *left_out, f"File: {out}; use it with --params {out}"])
