"""Equal tuning: every method gets the same number of settings to try, by replay of training-split traces."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from bench.costs import Costs
from bench.errors import BenchError
from bench.estimates import EstimateCache, TraceLayer
from bench.oracle import tokens_per_s
from bench.params import ALL, Params
from bench.replay import TraceSet, replay_set
from methods import Method, get_method

Settings = dict[str, Any]


@dataclass(frozen=True)
class Candidates:
    """Settings that a method tries: the first is its default. `grid`: settings in its whole grid. `left_out`: of those,
    how many draft more than the rollouts hold."""

    settings: list[Settings]
    grid: int
    left_out: int


@dataclass(frozen=True)
class Best:
    """The best settings for a task, or for all, with the speedup over `ar` by replay, and the default's."""

    settings: Settings
    speedup: float
    default: float


@dataclass(frozen=True)
class TunedMethod:
    """What tuning found for a method: `best` by task, and for all of them together under "all"."""

    candidates: Candidates
    best: dict[str, Best]


@dataclass(frozen=True)
class Tuned:
    """Tuning of several methods by label, and what it was done with."""

    methods: dict[str, TunedMethod]
    meta: dict[str, Any]

    def params(self, **meta: Any) -> Params:
        """As tuned parameters, with more to record in `meta`."""
        tasks: dict[str, dict[str, Settings]] = {}
        for label, method in self.methods.items():
            for task, best in method.best.items():
                tasks.setdefault(task, {})[label] = best.settings
        tuning = {
            label: {
                "tried": len(method.candidates.settings),
                "grid": method.candidates.grid,
                "left_out": method.candidates.left_out,
                "speedup": {task: round(best.speedup, 4) for task, best in method.best.items()},
                "default_speedup": {task: round(best.default, 4) for task, best in method.best.items()},
            }
            for label, method in self.methods.items()
        }
        return Params("tuned", {**self.meta, **meta}, tasks, tuning)


def tune(
    methods: Mapping[str, Method],
    sets: Mapping[str, TraceSet],
    costs: Costs,
    budget: int = 64,
    seed: int = 0,
    estimates: EstimateCache | None = None,
) -> Tuned:
    """Tries up to `budget` settings of each method (label -> method with its default settings, and layer if trained):
    its default and its whole grid (`MethodSpec.search`) where that fits, else its default and a random sample of it.

    Best per task: most decoded tokens per second by replay of all traces. Best for all tasks: highest geometric mean of
    the speedups over `ar`. The first of equals.

    Raises:
        BenchError: no traces, traces of the test split, or a budget below 1.
    """
    if budget < 1:
        raise BenchError(f"--budget {budget}: use 1 or more")
    _check_traces(sets)
    estimates = estimates or EstimateCache()
    rollout = min(traces.rollout for traces in sets.values())
    plans = {label: candidates(method, sets, rollout, budget, seed) for label, method in methods.items()}
    baselines = {task: tokens_per_s(replay_set(get_method("ar"), traces), costs) for task, traces in sets.items()}
    tuned = {}
    with tqdm(total=sum(len(plan.settings) for plan in plans.values()), desc="tuning", unit="setting") as bar:
        for label, plan in plans.items():
            speedups = []
            for settings in plan.settings:
                method = _with_settings(methods[label], settings)
                speedups.append(
                    {
                        task: tokens_per_s(replay_set(method, traces, estimates), costs) / baselines[task]
                        for task, traces in sets.items()
                    }
                )
                bar.update()
            tuned[label] = TunedMethod(plan, _best(plan.settings, speedups))
    return Tuned(tuned, _meta(sets, costs, budget, seed))


def _check_traces(sets: Mapping[str, TraceSet]) -> None:
    if not sets:
        raise BenchError("nothing to tune on: name at least one of --tasks")
    for task, traces in sets.items():
        if traces.split == "test" or any(trace.split == "test" for trace in traces.traces):
            raise BenchError(f"the traces of {task} are of the test split; tune on others: collect with --split train")
        if not traces.traces:
            raise BenchError(f"there are no traces of {task}; make them with: python run_bench.py collect")


def candidates(method: Method, sets: Mapping[str, TraceSet], rollout: int, budget: int, seed: int) -> Candidates:
    """What a method tries; settings are the values that differ from the method as it was given.

    Drafts cannot be replayed beyond the rollouts' length. A default `gamma_max` beyond it is lowered to it, as one of
    the settings that are tried and recorded; settings of the grid that draft more are left out.
    """
    trace = next(iter(sets.values())).traces[0]
    base = {}
    if _longest(method, trace) > rollout and hasattr(method.settings, "gamma_max"):
        base = {"gamma_max": rollout}
    grid = [base | settings for settings in method.spec.candidates()]
    fitting = [settings for settings in grid if _longest(_with_settings(method, settings), trace) <= rollout]
    if _longest(_with_settings(method, base), trace) > rollout and fitting:
        base = fitting[0]  # a default that no rollout is long enough for, such as a fixed draft length
    default = _with_settings(method, base).settings
    others = [settings for settings in fitting if _with_settings(method, settings).settings != default]
    if len(others) >= budget:
        others = random.Random(f"{seed} {method.name}").sample(others, budget - 1)
    return Candidates([base, *others], len(grid), len(grid) - len(fitting))


def _with_settings(method: Method, settings: Settings) -> Method:
    return replace(method, settings=replace(method.settings, **settings))


def _longest(method: Method, trace) -> int:
    """The longest draft of a method."""
    if method.spec.trained and method.layer is not None:
        method = method.with_layer(TraceLayer(method.layer, lambda block: None))
    policy = method.policy()
    return policy.gamma_max if policy else 0


def _best(settings: list[Settings], speedups: list[dict[str, float]]) -> dict[str, Best]:
    """The best by task and for all, of parallel lists."""
    columns = {task: [values[task] for values in speedups] for task in speedups[0]}
    columns[ALL] = [math.exp(sum(map(math.log, values.values())) / len(values)) for values in speedups]
    best = {}
    for task, values in columns.items():
        first = max(range(len(values)), key=values.__getitem__)
        best[task] = Best(settings[first], values[first], values[0])
    return best


def _meta(sets: Mapping[str, TraceSet], costs: Costs, budget: int, seed: int) -> dict[str, Any]:
    return {
        "pair": next(iter(sets.values())).pair,
        "costs": costs.name,
        "draft_to_target": round(costs.ratio, 6),
        "budget": budget,
        "seed": seed,
        "data": {
            task: {"split": s.split, "samples": len(s.traces), "rollout": s.rollout, "max_new_tokens": s.max_new_tokens}
            for task, s in sets.items()
        },
    }


def render(tuned: Tuned) -> str:
    """What was found, as a Markdown table: speedups over `ar` by replay, decoding only."""
    rows = [
        {
            "task": task,
            "method": label,
            "tried": f"{len(method.candidates.settings)} of {method.candidates.grid}",
            "default": f"{best.default:.3f}",
            "best": f"{best.speedup:.3f}",
            "settings": " ".join(f"{name}={value}" for name, value in best.settings.items()) or "the default",
        }
        for label, method in tuned.methods.items()
        for task, best in method.best.items()
    ]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)
