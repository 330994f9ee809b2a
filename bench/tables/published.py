"""What the paper publishes, beside what was measured here."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from bench.replay_table import BEST_FIXED, ORACLE
from bench.results import Results
from bench.summary import number
from bench.tables.layout import DASH, run_notes, title
from bench.tables.table import Table, Text


@cache
def published() -> dict[str, Any]:
    """bench/published.toml."""
    return tomllib.loads(files("bench").joinpath("published.toml").read_text(encoding="utf-8"))


def claims() -> dict[str, dict[str, Any]]:
    """The claims of bench/published.toml by name."""
    return {claim["name"]: claim for claim in published()["claims"]}


def published_table(results: Results, numbers: pd.DataFrame, lines: pd.DataFrame) -> Table:
    """Claims of the paper with its setting, and the same quantities here, measured (`numbers`: one row per pair, task and
    method) and by replay (`lines`: one per pair, costs, task and method), with theirs."""
    found = [row for claim in published()["claims"] for row in _rows(claim, numbers, lines)]
    columns = ["claim", "paper", "its setting", "here", "setting here"]
    rows = [[Text(str(row[column])) for column in columns] for row in found]
    notes = [
        f"Paper: {published()['source']}. Its models, hardware and software are not these: the numbers say whether an effect "
        "shows here, not whether theirs is right.",
        "By replay: decode speedups that follow from counted steps and the costs named; prefill is left out.",
        *run_notes(results),
    ]
    return Table(
        "published", "What the paper publishes, and what is found here", columns, rows, pd.DataFrame(found), notes
    )


def _rows(claim: dict[str, Any], numbers: pd.DataFrame, lines: pd.DataFrame) -> list[dict]:
    found = _measured(claim["name"], numbers) + _replayed(claim["name"], lines)
    return [
        {
            "claim": claim["text"],
            "paper": f"{claim['value']:g} {claim['unit']}",
            "its setting": claim["setting"],
            "here": f"{number(value, 1 if claim['unit'] == '%' else 2)} {claim['unit']}",
            "setting here": setting,
            "value": value,
        }
        for value, setting in found
    ] or [
        {
            "claim": claim["text"],
            "paper": f"{claim['value']:g} {claim['unit']}",
            "its setting": claim["setting"],
            "here": DASH,
            "setting here": "no such rows",
            "value": float("nan"),
        }
    ]


def _measured(name: str, numbers: pd.DataFrame) -> list[tuple[float, str]]:
    """(value, setting) per pair, from wall-clock runs."""
    if numbers.empty or name == "oracle":
        return []
    method = "pacer" if name == "preverify" else name
    own = numbers[(numbers.method == method) & ((numbers.task == "gsm8k") | (name != "pacer-ouroboros"))]
    found = []
    for pair, rows in own.groupby("pair", sort=False):
        if name == "preverify":
            shares = rows.preverify_s / rows.wall_s
            text = f"{pair}, wall-clock; {_range(shares)}"
            found.append((100 * rows.preverify_s.sum() / rows.wall_s.sum(), text))
        elif rows.speedup.notna().any():
            best = rows.loc[rows.speedup.idxmax()]
            found.append((best.speedup, f"{pair}, {title(best.task)}, wall-clock, {best.samples} samples"))
    return found


def _range(shares: pd.Series) -> str:
    low, high = f"{100 * shares.min():.1f}", f"{100 * shares.max():.1f}"
    return "of wall time, prefill included" + (f", {low} to {high} % by task" if low != high else "")


def _replayed(name: str, lines: pd.DataFrame) -> list[tuple[float, str]]:
    """(value, setting) per pair and costs, from replays."""
    if lines.empty or name == "preverify":
        return []
    found = []
    for (pair, costs, _, split), rows in lines.groupby(["pair", "costs", "ratio", "split"], sort=False):
        by = rows.pivot(index="task", columns="method", values="speedup")
        if name == "pacer-ouroboros":
            by = by[by.index == "gsm8k"]
        values = by[ORACLE] / by[BEST_FIXED] if name == "oracle" else by.get(name, pd.Series(dtype=float))
        if len(values.dropna()):
            over = ", over the best fixed length" if name == "oracle" else ""
            found.append(
                (values.max(), f"{pair}, {title(values.idxmax())}, by replay of the {split} split, {costs}{over}")
            )
    return found
