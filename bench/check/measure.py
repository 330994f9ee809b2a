"""Runs the fixed set of a baseline."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from bench.check.baseline import FixedSet
from bench.check.engine_speed import ROUNDS, engine_speed
from bench.check.measured import COUNTS, KEY, TIMES, Measured, output_hash
from bench.config import MethodEntry, RunConfig
from bench.errors import BenchError
from bench.loading import load_pair
from bench.models import load_model
from bench.pairs import DTYPES, PairSpec, find_pair, place, registry
from bench.plan import load_tasks, prompts
from bench.run import run
from bench.run_params import with_params
from bench.store import RunFolder
from tasks.sources import BUILTIN

_TASKS = ("gsm8k", "humaneval")
_METHODS = ("ar", "sd", "pacer", "ouroboros", "pacer-ouroboros")


def default_set(name: str) -> FixedSet:
    """Some samples of two tasks, and a method of every kind with the settings that ship for the pair `name` (of the
    registry, else the default pair) and the first task."""
    spec = find_pair(name if name in registry() else None)
    placement = place("cpu", "float32")
    methods = tuple(MethodEntry(method, method) for method in _METHODS)
    config = with_params(RunConfig((spec,), _TASKS, methods, placement), None)
    return FixedSet(
        pair={key: value for key, value in asdict(spec).items() if key != "summary"},
        tasks=list(_TASKS),
        methods=[_written_out(config, entry) for entry in methods],
        limit=3,
        max_new_tokens=24,
        repeat=2,
        seed=0,
        device=placement.device,
        dtype=placement.dtype,
        threads=1,
    )


def _written_out(config: RunConfig, entry: MethodEntry) -> dict[str, Any]:
    method = config.method(entry, config.pairs[0].name, config.tasks[0])
    return {"method": entry.method, "label": entry.label, "settings": asdict(method.settings)}


def measure(fixed: FixedSet, results: Path, rounds: int = ROUNDS) -> Measured:
    """Decodes the set into a run folder under `results`, all methods interleaved, then times the engine.

    Raises: as `bench.run.run`.
    """
    config = _config(fixed)
    with _threads(fixed.threads):
        wall, cpu = time.perf_counter(), time.process_time()
        folder = run(config, results)
        engine = _engine(config, rounds)
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    return _measured(folder, engine, round(share, 2))


def _config(fixed: FixedSet) -> RunConfig:
    """Raises BenchError for a set that names no pair or methods of this version."""
    try:
        spec = PairSpec(**fixed.pair)
        methods = tuple(MethodEntry(**entry) for entry in fixed.methods)
    except TypeError as error:
        raise BenchError(f"the baseline's set is of another version of this project ({error}); make it anew") from None
    return RunConfig(
        pairs=(spec,),
        tasks=tuple(fixed.tasks),
        methods=methods,
        placement=place(fixed.device, fixed.dtype),
        limit=fixed.limit,
        max_new_tokens=fixed.max_new_tokens,
        repeat=fixed.repeat,
        seed=fixed.seed,
        data_dir=str(BUILTIN),
        audit=0,  # its outputs are compared with the baseline's
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _engine(config: RunConfig, rounds: int) -> pd.DataFrame:
    pair = load_pair(config.pairs[0], config.placement, with_draft=False)
    plain = load_model(config.pairs[0].target, config.placement, DTYPES[config.placement.dtype])
    tasks = load_tasks(config)
    first = {prompt.task.name: prompt for prompt in reversed(prompts(config, tasks, pair, 0))}
    return engine_speed(pair, plain, [prompt.encoded.ids for prompt in first.values()], rounds)


def _measured(folder: RunFolder, engine: pd.DataFrame, cpu_share: float) -> Measured:
    info, samples = folder.info(), folder.read("samples")
    (known,) = info["pairs"].values()
    layers = next(iter(known["methods"].values()))
    weights = {
        "target": known["target_weights"],
        "draft": known["draft_weights"],
        "draft_dtype": known["draft_dtype"],
        "layers": {label: row["layer"] for label, row in layers.items() if "layer" in row},
    }
    tasks = {
        name: {key: task[key] for key in ("version", "content", "samples", "source")}
        for name, task in info["tasks"].items()
    }
    rows = samples[[*KEY, "repeat", *COUNTS, *TIMES]].assign(output=samples.output_tokens.map(output_hash))
    # In the set's order, not in that in which methods took turns.
    rows = rows.iloc[_order(rows, [entry["label"] for entry in info["config"]["methods"]])].reset_index(drop=True)
    return Measured({**info["environment"], "cpu_share": cpu_share}, weights, tasks, rows, engine)


def _order(rows: pd.DataFrame, labels: list[str]) -> pd.Index:
    places = rows.assign(
        place=rows.groupby(["task", "sample_id"], sort=False).ngroup(), rank=rows.method.map(labels.index)
    )
    return places.reset_index(drop=True).sort_values(["place", "rank", "repeat"], kind="stable").index
