"""Replays methods under costs, and the two bounds that hindsight gives: rows of replay.parquet."""

import re
from collections.abc import Container, Mapping
from dataclasses import fields

import pandas as pd

from bench.costs import Costs
from bench.errors import BenchError
from bench.estimates import EstimateCache
from bench.oracle import fixed_sets, oracle_set
from bench.replay import Replayed, TraceSet, replay_set
from methods import Method, get_method
from methods.settings import shown

ORACLE, FIXED = "oracle", "fixed-"


class Replays:
    """Replays by task and method, each made once: only prices differ between costs. Keeps what trained layers say."""

    def __init__(self, estimates: EstimateCache | None = None):
        self._estimates = estimates or EstimateCache()
        self._kept: dict[tuple, list[Replayed]] = {}
        self._fixed: dict[tuple, dict[int, list[Replayed]]] = {}

    def of(self, method: Method, traces: TraceSet) -> list[Replayed]:
        key = (id(traces), method.name, method.settings)
        if key not in self._kept:
            self._kept[key] = replay_set(method, traces, self._estimates)
        return self._kept[key]

    def fixed(self, traces: TraceSet) -> dict[int, list[Replayed]]:
        """`sd` with every draft length of 1 to the rollouts'."""
        if id(traces) not in self._fixed:
            self._fixed[id(traces)] = fixed_sets(traces)
        return self._fixed[id(traces)]


def replay_rows(
    methods: Mapping[str, Mapping[str, Method]], sets: Mapping[str, TraceSet], costs: Costs, replays: Replays
) -> pd.DataFrame:
    """Rows of replay.parquet, one per sample, for each task and label of `methods` (task -> label -> method; trained
    methods with their layer), `ar`, all fixed draft lengths, and the oracle.

    Raises:
        BenchError: a label that the table gives itself, or what `replay` and `Costs.seconds` raise.
    """
    rows = []
    for task, traces in sets.items():
        _check_labels(methods[task])
        named = {"ar": get_method("ar")} | dict(methods[task])
        rows += [_row(traces, costs, label, "method", r) for label, m in named.items() for r in replays.of(m, traces)]
        for gamma, replayed in replays.fixed(traces).items():
            rows += [_row(traces, costs, f"{FIXED}{gamma}", "fixed", r) for r in replayed]
        rows += [_row(traces, costs, ORACLE, "oracle", r) for r in oracle_set(traces, costs)]
    return pd.DataFrame(rows)


def describe(method: Method, hidden: Container[str] = ("layer",)) -> str:
    """The settings that differ from the defaults: "gamma=3"; `hidden` ones are left out."""
    changed = [
        f"{f.name}={shown(getattr(method.settings, f.name))}"
        for f in fields(method.settings)
        if f.name not in hidden and getattr(method.settings, f.name) != f.default
    ]
    return " ".join(changed)


def _check_labels(methods: Mapping[str, Method]) -> None:
    for label, method in methods.items():
        if label == ORACLE or re.fullmatch(FIXED + r"\d+", label) or (label == "ar") != (method.name == "ar"):
            raise BenchError(f"the label '{label}' is the table's own; choose another")


def _row(traces: TraceSet, costs: Costs, label: str, kind: str, replayed: Replayed) -> dict:
    seconds = costs.seconds(replayed)
    return {
        "pair": traces.pair,
        "task": traces.task,
        "split": traces.split,
        "costs": costs.name,
        "ratio": costs.ratio,
        "unit": costs.unit,
        "method": label,
        "kind": kind,
        "sample_id": replayed.sample_id,
        "new_tokens": replayed.new_tokens,
        "steps": len(replayed.start),
        "drafted": sum(replayed.drafted),
        "accepted": sum(replayed.accepted),
        "target_forwards": replayed.target_forwards,
        "draft_forwards": sum(replayed.draft_forwards),
        "asked": sum(replayed.asked),
        "preverify_s": seconds.preverify_s,
        "decode_s": seconds.decode_s,
        "draft_lengths": replayed.drafted,
    }
