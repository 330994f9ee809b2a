"""The data of the sample browser: every draft-verify step of every output, small enough to travel inside the page."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bench.results import Cell, Results
from methods.settings import shown

KEY = ["sample_id", "repeat"]
COUNTS = (
    "new_tokens",
    "prompt_tokens",
    "target_forwards",
    "draft_forwards",
    "steps",
    "drafted",
    "accepted",
    "phrase_tokens",
    "phrase_accepted",
    "wall_s",
    "score",
)
NUMBERS = (*COUNTS, "tokens_per_s", "tokens_per_target_forward", "speedup")
PER_STEP = ("drafted", "accepted", "phrase_accepted", "emitted")
PER_TOKEN = ("confidence", "entropy", "estimate")
SCALE = 1000  # per-token numbers are whole thousandths: shorter than floats, and as exact as they are shown
BUDGET = 8_000_000  # characters of JSON


def browser(results: Results, budget: int = BUDGET) -> dict[str, Any]:
    """What the page's scripts show, as JSON: `groups`, one per pair and task, with `methods` and `samples`.

    A sample's `decodings` are in the order of the methods, null where one lacks it: `numbers` in the order of
    `NUMBERS`, and the steps' columns, those of tokens end to end. Texts are places in `texts`. Samples beyond `budget`
    characters are left out, alike for every task; `notes` say so.
    """
    texts = _Texts()
    groups = [_Group.of(pair, task, results) for pair in results.pairs for task in results.tasks]
    groups = [group for group in groups if group.cells]
    samples: list[list[dict]] = [[] for _ in groups]
    size, longest = 0, max((len(group.keys) for group in groups), default=0)
    for rank in range(longest):
        added = [[group.sample(group.keys[rank], texts)] if rank < len(group.keys) else [] for group in groups]
        size += len(_dumped(added))
        if rank and size > budget:
            break
        samples = [[*old, *new] for old, new in zip(samples, added, strict=True)]
    return {
        "scale": SCALE,
        "numbers": NUMBERS,
        "groups": [{**group.about(), "samples": own} for group, own in zip(groups, samples, strict=True)],
        "texts": list(texts.places),
        "notes": [*_cut(groups, samples), *_textless(groups)],
    }


@dataclass(frozen=True)
class _Texts:
    """Token texts, each kept once."""

    places: dict[str, int] = field(default_factory=dict)

    def put(self, texts: Iterable[str | None]) -> list[int]:
        return [self.places.setdefault(_text(text), len(self.places)) for text in texts]


@dataclass(frozen=True)
class _Rows:
    """A cell's rows by sample and repeat: those of samples.parquet, their `NUMBERS`, and their steps in order."""

    cell: Cell
    samples: dict[tuple, Any]
    numbers: dict[tuple, tuple]
    steps: dict[tuple, list]

    @classmethod
    def of(cls, cell: Cell) -> "_Rows":
        # Tuples, as thousands of look-ups in data frames take a minute.
        samples = cell.samples.sort_values("position", kind="stable")
        counted = {row[0]: row[1:] for row in numbers(cell).itertuples(name=None)}
        steps: dict[tuple, list] = {}
        for step in cell.steps.sort_values("step", kind="stable").itertuples(index=False):
            steps.setdefault((step.sample_id, step.repeat), []).append(step)
        return cls(cell, {(row.sample_id, row.repeat): row for row in samples.itertuples()}, counted, steps)

    def decoding(self, key: tuple, texts: _Texts) -> dict[str, Any] | None:
        """As in `browser`; None without that sample."""
        if key not in self.samples or key not in self.steps:
            return None
        row = self.samples[key]
        packed = pack(self.steps[key], texts)
        whole = {"output": _text(row.output)} if packed["emitted_text"] is None else {}
        return {
            "numbers": [_short(n) for n in self.numbers[key]],
            "finish": _text(row.finish_reason),
            **packed,
            **whole,
        }


@dataclass(frozen=True)
class _Group:
    """The cells of one pair and task, and their samples in the order of the runs."""

    pair: str
    task: str
    cells: list[_Rows]
    keys: list[tuple]

    @classmethod
    def of(cls, pair: str, task: str, results: Results) -> "_Group":
        labels = results.labels(pair)
        cells = sorted(results.of(pair, task), key=lambda cell: labels.index(cell.label))
        rows = [_Rows.of(cell) for cell in cells]
        keys = dict.fromkeys(key for own in rows for key in own.samples)
        return cls(pair, task, rows, list(keys))

    def about(self) -> dict[str, Any]:
        metric = _text(self.cells[0].cell.samples.metric.iloc[0])
        return {"pair": self.pair, "task": self.task, "metric": metric or "score", "methods": self.methods()}

    def methods(self) -> list[dict[str, Any]]:
        cells = [own.cell for own in self.cells]
        return [{"label": cell.label, "method": cell.method, "settings": _settings(cell)} for cell in cells]

    def sample(self, key: tuple, texts: _Texts) -> dict[str, Any]:
        holder = next(own.samples[key] for own in self.cells if key in own.samples)
        about = {"id": key[0], "repeat": int(key[1]), "category": _text(holder.category)}
        return {**about, "decodings": [own.decoding(key, texts) for own in self.cells]}


def numbers(cell: Cell) -> pd.DataFrame:
    """The columns `NUMBERS` by sample and repeat (DESIGN §4); `speedup` is over `ar` on that sample and repeat, NaN
    without it."""
    own, baseline = cell.samples.set_index(KEY), cell.baseline.set_index(KEY)
    speed = own.new_tokens / own.wall_s
    frame = own[list(COUNTS)].astype(float)
    frame["tokens_per_s"] = speed
    frame["tokens_per_target_forward"] = own.new_tokens / own.target_forwards
    frame["speedup"] = speed / (baseline.new_tokens / baseline.wall_s).reindex(own.index)
    return frame[list(NUMBERS)]


def pack(steps: Sequence[Any], texts: _Texts) -> dict[str, Any]:
    """The steps of one output, rows of steps.parquet, column by column.

    `emitted_text` holds the output; `rest_text` what a draft proposed beyond it, as accepted draft tokens are in both.
    Both are null where the log has no texts.
    """
    counts = {name: [_count(getattr(step, name)) for step in steps] for name in PER_STEP}
    written = all(_is_list(step.emitted_text) and _is_list(step.drafted_text) for step in steps)
    said = [text for step in steps for text in step.emitted_text] if written else []
    rest = [text for step in steps for text in step.drafted_text[min(step.accepted, step.emitted) :]] if written else []
    return {
        **counts,
        "stop_reason": texts.put(step.stop_reason for step in steps),
        "emitted_text": texts.put(said) if written else None,
        "rest_text": texts.put(rest) if written else None,
        **{name: _thousandths(steps, name) for name in PER_TOKEN},
    }


def _thousandths(steps: Sequence[Any], name: str) -> list[int | None] | None:
    """A number per draft token, all steps end to end; None where no step has any."""
    lists = [(step.drafted, getattr(step, name)) for step in steps]
    if not any(_is_list(own) for _, own in lists):
        return None
    values = [n for drafted, own in lists for n in (own if _is_list(own) else [np.nan] * drafted)]
    return [round(float(n) * SCALE) if np.isfinite(n) else None for n in values]


def _is_list(value: Any) -> bool:
    """Whether a list column has one in this row: nulls are None or NaN."""
    return isinstance(value, np.ndarray)


def _count(value: Any) -> int:
    """Of phrase tokens, files may be older than the column."""
    return 0 if pd.isna(value) else int(value)


def _short(number: float) -> float | int | None:
    """Six significant digits, whole numbers as such; null for what is not a number."""
    if not np.isfinite(number):
        return None
    return int(number) if number == int(number) else float(f"{number:.6g}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _settings(cell: Cell) -> list[str]:
    return [f"{name}={shown(value)}" for name, value in cell.settings.items()]


def _dumped(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _cut(groups: list[_Group], samples: list[list[dict]]) -> list[str]:
    """What was left out for the budget's sake."""
    pairs = list(zip(groups, samples, strict=True))
    cut = {f"{group.task} {len(own)} of {len(group.keys)}": None for group, own in pairs if len(own) < len(group.keys)}
    if not cut:
        return []
    return [f"the sample browser holds the first samples only, to keep the page small: {', '.join(cut)}"]


def _textless(groups: list[_Group]) -> list[str]:
    """Which runs are older than the columns with texts."""
    cells = [own.cell for group in groups for own in group.cells]
    runs = dict.fromkeys(cell.run.id for cell in cells if cell.steps.emitted_text.isna().any())
    return [
        f"{run} was logged without the texts of its tokens, so its outputs are shown without their steps; "
        "run it anew to see them"
        for run in runs
    ]
