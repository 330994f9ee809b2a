"""What one check measured, as plain data: counts, outputs and times per sample, method and repeat."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

KEY = ["task", "sample_id", "method"]
COUNTS = ("new_tokens", "target_forwards", "draft_forwards", "drafted", "accepted")
TIMES = ("wall_s", "decode_s", "draft_s", "preverify_s", "verify_s", "other_s")
ENGINE = ("engine_s", "reference_s")

# A quiet machine gives a process most of a core, and takes as long for a decoding as it did seconds ago.
_CPU_SHARE, _SPREAD = 0.8, 0.15

# Equal for two measurements whose counts must be equal and whose times may be compared.
_MACHINE = ("machine", "cpu", "cpu_model", "threads", "gpu", "torch", "transformers", "draft_dtype")


@dataclass(frozen=True)
class Measured:
    """A measurement of the fixed set.

    Attributes:
        environment: as in run.json, and `cpu_share`: CPU seconds per second that the process got.
        weights: hashes of the models' files, `target` and `draft`, the `draft_dtype`, and of `layers` by method.
        tasks: each with `version`, the `content` hash of its samples, and how many `samples` there are.
        rows: task, sample_id, method, repeat, COUNTS, TIMES in seconds, and `output`, a hash of the output's tokens.
        engine: a row per round and prompt: seconds per pass of `ar`, and of the same model in plain `transformers`.
        parts: the measurements that were put together into this one; none in one that was made at once.
    """

    environment: dict[str, Any]
    weights: dict[str, Any]
    tasks: dict[str, dict[str, Any]]
    rows: pd.DataFrame
    engine: pd.DataFrame
    parts: tuple["Measured", ...] = ()

    @property
    def machine(self) -> dict[str, Any]:
        """The machine type. One that does not say `cpu_model` is another than all that do."""
        known = {**self.environment, **self.environment["libraries"], "draft_dtype": self.weights["draft_dtype"]}
        return {name: known.get(name) for name in _MACHINE}

    @property
    def unrest(self) -> str:
        """What says that the machine was busy with something else, so that times say more about that; "" if nothing.

        Of several measurements put together, what one of them says by itself: a machine may have another speed minutes
        later, which says nothing against the ratios of either.
        """
        if self.parts:
            return next((part.unrest for part in self.parts if part.unrest), "")
        share = self.environment.get("cpu_share", 1.0)
        if share < _CPU_SHARE:
            return f"got {share:.2f} of a core"
        walls = self.rows.groupby(KEY).wall_s
        spread = (walls.max() / walls.min()).median() - 1
        return f"had repeats that took {100 * spread:.0f} % longer than others (median)" if spread > _SPREAD else ""

    @property
    def methods(self) -> list[str]:
        return list(self.rows.method.unique())

    def of(self, task: str, method: str) -> pd.DataFrame:
        return self.rows[(self.rows.task == task) & (self.rows.method == method)]

    @cached_property
    def _outputs(self) -> pd.Series:
        return self.rows.groupby(KEY).output.agg(lambda found: _unlike_first(list(found)))

    def outputs(self, task: str, method: str) -> pd.Series:
        """The hash of each sample's output; where repeats differ, that of one that is unlike the first."""
        return self._outputs.loc[task, :, method]

    @cached_property
    def _least(self) -> pd.DataFrame:
        return self.rows.groupby(KEY)[[*COUNTS, *TIMES]].min()

    def per_sample(self, task: str, method: str) -> pd.DataFrame:
        """A row per sample: counts, and of each time the least over the repeats. What else a machine does can only add
        to a time, so the least is the steadiest."""
        return self._least.loc[task, :, method]

    def with_repeats_of(self, other: "Measured") -> "Measured":
        """Both measurements' repeats and rounds, as one whose `parts` they are."""
        shifted = other.rows.assign(repeat=other.rows.repeat + self.rows.repeat.max() + 1)
        share = min(m.environment.get("cpu_share", 1.0) for m in (self, other))
        return replace(
            self,
            environment={**self.environment, "cpu_share": share},
            rows=pd.concat([self.rows, shifted], ignore_index=True),
            engine=pd.concat([self.engine, other.engine], ignore_index=True),
            parts=(self, other),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, a row per sample and method; times rounded to microseconds."""
        rows = []
        for (task, sample, method), own in self.rows.groupby(KEY, sort=False):
            own = own.sort_values("repeat")
            counts = {name: int(own[name].iloc[0]) for name in COUNTS}
            times = {name: [round(value, 6) for value in own[name]] for name in TIMES}
            key = {"task": task, "sample_id": sample, "method": method}
            rows.append({**key, **counts, "output": own.output.iloc[0], **times})
        engine = {name: [round(value, 7) for value in self.engine[name]] for name in ENGINE}
        return {
            "environment": self.environment,
            "weights": self.weights,
            "tasks": self.tasks,
            "engine": engine,
            "rows": rows,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Measured":
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError, IndexError: not such data, or a decoding is missing.
        """
        rows = [
            {**{name: row[name] for name in (*KEY, *COUNTS, "output")}, "repeat": repeat, **_times(row, repeat)}
            for row in data["rows"]
            for repeat in range(len(row["wall_s"]))
        ]
        frame = pd.DataFrame(rows)
        frame = frame.astype({name: int for name in COUNTS} | {name: float for name in TIMES})
        engine = pd.DataFrame({name: data["engine"][name] for name in ENGINE}, dtype=float)
        environment, weights, tasks = dict(data["environment"]), dict(data["weights"]), dict(data["tasks"])
        made = cls(environment, weights, tasks, frame, engine)
        if not all({"version", "content", "samples"} <= set(task) for task in tasks.values()) or len(made.machine) == 0:
            raise ValueError("tasks without version, content and samples")
        if set(frame.task) != set(tasks) or "ar" not in set(frame.method):
            raise ValueError("its rows lack a task, or the baseline ar")
        _check_complete(made)
        return made


def _check_complete(made: Measured) -> None:
    """Raises ValueError unless every method decoded every sample of every task in every repeat, once."""
    samples = made.rows[["task", "sample_id"]].drop_duplicates()
    for task, known in made.tasks.items():
        count = int((samples.task == task).sum())
        if count != known["samples"]:
            raise ValueError(f"rows of {count} samples of {task}, of which it has {known['samples']}")
    rows = made.rows[[*KEY, "repeat"]].value_counts()
    repeats = range(made.rows.repeat.max() + 1)
    expected = [
        (*sample, method, repeat)
        for sample in samples.itertuples(index=False, name=None)
        for method in made.methods
        for repeat in repeats
    ]
    missing = next((key for key in expected if key not in rows.index), None)
    if missing:
        task, sample, method, repeat = missing
        raise ValueError(f"no row of sample {sample} of {task} with {method}, repeat {repeat}")
    if rows.max() > 1:
        raise ValueError("a sample has two rows of the same method")


def _times(row: dict[str, Any], repeat: int) -> dict[str, float]:
    if any(len(row[name]) != len(row["wall_s"]) for name in TIMES):
        raise ValueError(f"times of {row['sample_id']} with {row['method']} that are not of the same repeats")
    times = {name: row[name][repeat] for name in TIMES}
    if not all(value >= 0 for value in times.values()):
        raise ValueError("a negative time")
    return times


def _unlike_first(found: list[str]) -> str:
    return next((output for output in found if output != found[0]), found[0])


def output_hash(tokens) -> str:
    """A hash of an output's tokens."""
    return hashlib.sha256(json.dumps([int(token) for token in tokens]).encode()).hexdigest()[:16]
