"""Which logged data a figure shows: pairs, tasks, methods with their looks, and one set of costs of the replays."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.errors import BenchError
from bench.figures.canvas import Missing
from bench.figures.style import Look, looks
from bench.pairs import PairSpec, pair_flags
from bench.params import shipped_params
from bench.replay_table import ORACLE
from bench.results import Cell, Results
from methods import METHODS

_LEGIBLE = 16  # methods in one panel
SWEEP = "bench/sweeps/methods.toml"


@dataclass(frozen=True)
class Prices:
    """The costs under which rows were replayed, and the split of the prompts.

    `base` is the name without "@ratio", the same for all flat ones; `about` tells apart what was measured twice.
    `measured`: on a machine, for this very pair, and not scaled since.
    """

    costs: str
    ratio: float
    split: str
    base: str
    about: str
    measured: bool

    @property
    def text(self) -> str:
        return (
            f"Replay of the {self.split} split, costs {self.costs} (a draft pass costs {self.ratio:.3g} target passes)."
        )


def pairs(results: Results) -> list[str]:
    """Those with runs first, then those with replays only."""
    replayed = [] if results.replays.empty else results.replays.pair
    return list(dict.fromkeys([*results.pairs, *replayed]))


def pair_looks(results: Results, pair: str) -> dict[str, Look]:
    """The look of every method of a pair by label, the same in all of its figures: `ar` first, then as in the runs,
    then those that were only replayed; rows of a grid of settings have none."""
    methods = {cell.label: cell.method for cell in results.of(pair)}
    rows = replay_rows(results, pair)
    for task, label in rows[["task", "method"]].drop_duplicates().itertuples(index=False) if len(rows) else ():
        about = described(results, pair, task, label)
        if about and not about.get("grid"):
            methods.setdefault(label, about["method"])
    return looks(dict(sorted(methods.items(), key=lambda item: item[0] != "ar")))


def legible_looks(results: Results, pair: str) -> tuple[dict[str, Look], int]:
    """`pair_looks` of as many methods as one panel can hold, and how many variants are left out: the methods under
    their own names first, then the variants that were run, then those that were only replayed."""
    look = pair_looks(results, pair)
    run = {cell.label for cell in results.of(pair)}
    ranks = [0 if label in METHODS else 1 if label in run else 2 for label in look]
    rank = max((rank for rank in (0, 1, 2) if sum(r <= rank for r in ranks) <= _LEGIBLE), default=0)
    shown = {label: own for (label, own), r in zip(look.items(), ranks, strict=True) if r <= rank}
    return shown, len(look) - len(shown)


def described(results: Results, pair: str, task: str, label: str) -> dict[str, Any]:
    """What the newest replay.json that knows it says of a replayed method; empty for the bounds that every replay
    has."""
    return {"method": "ar"} if label == "ar" else results.replayed(pair, task, label)


def replay_rows(results: Results, pair: str) -> pd.DataFrame:
    return results.replays if results.replays.empty else results.replays[results.replays.pair == pair]


def all_prices(results: Results, pair: str) -> list[Prices]:
    """What the pair was replayed under, the costs measured for it first, then newest first; the test split before
    others."""
    entries = {}
    for log in results.replay_logs:
        for costs in log.info["costs"]:
            entries.setdefault((log.id, costs["name"], costs["ratio"]), costs["about"])
    rows, found = replay_rows(results, pair), {}
    if not rows.empty:
        for replay, costs, ratio, split in (
            rows[["replay", "costs", "ratio", "split"]].drop_duplicates().itertuples(index=False)
        ):
            about = entries.get((replay, costs, ratio), {})
            base = "flat" if costs.startswith("flat:") else costs.partition(" @")[0]
            own = base == costs and "environment" in about and about.get("pair") == pair
            prices = Prices(costs, ratio, split, base, json.dumps(about, sort_keys=True, default=str), own)
            found.setdefault((costs, ratio, split), prices)
    return sorted(found.values(), key=lambda prices: (not prices.measured, prices.split != "test"))


def rows_under(rows: pd.DataFrame, prices: Prices) -> pd.DataFrame:
    return rows[(rows.costs == prices.costs) & (rows.ratio == prices.ratio) & (rows.split == prices.split)]


def main_replay(results: Results, pair: str) -> tuple[pd.DataFrame, Prices]:
    """The rows of a pair's replays under the first of `all_prices`.

    Raises:
        Missing: there are none.
    """
    known = all_prices(results, pair)
    if not known:
        raise Missing(f"no replay of {pair}; {how_to_replay(results, pair)}")
    return rows_under(replay_rows(results, pair), known[0]), known[0]


def shown_rows(results: Results, pair: str, rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(task, its rows) of replays, without the rows of grids of settings."""
    names = {"ar", ORACLE, *pair_looks(results, pair)}
    for task, group in rows.groupby("task", sort=False):
        yield str(task), group[group.method.isin(names) | (group.kind != "method")]


def decode_speed(rows: pd.DataFrame) -> float:
    """Decoded tokens per second (or per target pass) of a method's replayed rows."""
    return rows.new_tokens.sum() / rows.decode_s.sum()


def has_speedup(cell: Cell) -> bool:
    """Whether a run's method can be compared with `ar`: it is another, and both said something."""
    return cell.label != "ar" and bool(cell.samples.new_tokens.any() and cell.baseline.new_tokens.any())


def counted(results: Results, pair: str) -> str:
    """ "Samples: gsm8k 16, mbpp 16; greedy.": how many prompts the runs of a pair decoded, and how."""
    samples = {cell.task: cell.samples.sample_id.nunique() for cell in results.of(pair)}
    configs = [cell.run.info["config"] for cell in results.of(pair)]
    decoding = ", ".join(dict.fromkeys(_decoding(config["temperature"]) for config in configs))
    return f"Samples: {', '.join(f'{task} {count}' for task, count in samples.items())}; {decoding}."


def _decoding(temperature: float | None) -> str:
    """Null in a run that was imported: the files do not say."""
    if temperature is None:
        return "decoding not recorded"
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


_NOT_IMPORTED = "another harness's files do not hold it"


def _imported(results: Results, pair: str) -> bool:
    return any("imported" in cell.run.info for cell in results.of(pair))


def how_to_run(results: Results, pair: str, methods: str) -> str:
    """What to type to run some methods on a pair."""
    if _imported(results, pair):
        return _NOT_IMPORTED
    tasks = ",".join(dict.fromkeys(cell.task for cell in results.of(pair))) or "gsm8k"
    return f"make one with: python run_bench.py {_flags(results, pair)} --method {methods} --task {tasks}"


def how_to_replay(results: Results, pair: str, sweep: str = SWEEP, costs: str = "results/costs.toml") -> str:
    """What to type to replay a pair, and before that, what to collect; `costs` may be several."""
    if _imported(results, pair):
        return _NOT_IMPORTED
    flags = _flags(results, pair)
    tasks = ",".join(dict.fromkeys(cell.task for cell in results.of(pair)))
    tasks = f" --tasks {tasks}" if tasks else ""
    first = [f"collect {flags}{tasks.replace('--tasks', '--task')} --split test --limit 100"]
    if "costs.toml" in costs:
        first.append(f"costs {flags}")
    if not shipped_params(pair):  # the sweeps ask for tuned ones
        sweep += " --params defaults"
    verbs = [*(first if replay_rows(results, pair).empty else ()), f"replay {sweep} {flags}{tasks} --costs {costs}"]
    return "make one with: " + ", then: ".join(f"python run_bench.py {verb}" for verb in verbs)


def _flags(results: Results, pair: str) -> str:
    for cell in results.of(pair):
        for spec in cell.run.info["config"]["pairs"]:
            if spec["name"] == pair:
                try:
                    return pair_flags(PairSpec(**spec))
                except (TypeError, BenchError):  # a run.json of another version
                    break
    return f"--pair {pair}"
