"""What every task is made of: samples, options, and the `Task` base class.

A task turns a data set into prompts, says when to stop, and scores outputs.
It knows nothing of models, decoding methods or result files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.sources import Origin, Rows, TaskError, find_rows

__all__ = ["Loaded", "Sample", "Task", "TaskError", "TaskOptions"]


@dataclass(frozen=True)
class TaskOptions:
    """What a user may change about a task's prompts.

    `few_shot` is the number of solved examples put before each question.
    """

    few_shot: int = 0


DEFAULT_OPTIONS = TaskOptions()


@dataclass(frozen=True)
class Sample:
    """One prompt's worth of data.

    `id` is unique within a task and data source, and seeds the sample's random
    generator. `fields` holds what the templates and the scoring need, worked
    examples (`shots`) included, so a sample needs nothing beside itself.
    """

    id: str
    fields: Mapping[str, Any]
    category: str = ""


@dataclass(frozen=True)
class Loaded:
    """A task's samples, where they came from, and what a reader should know about them."""

    samples: tuple[Sample, ...]
    source: str
    notes: tuple[str, ...] = field(default=())


class Task(ABC):
    """Base class: subclasses declare the data and the templates, and score.

    `version` goes up whenever a template, a stop string or the scoring changes,
    so that two numbers can be compared only when they should be.
    `metric` is the headline metric's name, "" for a task that has none.
    """

    name: str = ""
    version: int = 1
    metric: str = ""
    splits: tuple[str, ...] = ("test",)
    stop_chat: tuple[str, ...] = ()
    stop_base: tuple[str, ...] = ()
    max_few_shot: int = 0

    # --- declared by each task -------------------------------------------------

    @abstractmethod
    def origin(self, split: str) -> Origin:
        """Where the rows of `split` are found, and what each row must hold."""

    @abstractmethod
    def sample(self, row: Mapping[str, Any], index: int, prefix: str) -> Sample:
        """The sample made of one row.

        `index` counts the split's rows from 0; `prefix` is the split's name, or
        "builtin" for this project's own sample, so that ids of two sources differ.
        """

    @abstractmethod
    def question(self, fields: Mapping[str, Any]) -> str:
        """What the user says to a chat model."""

    def shot_answer(self, fields: Mapping[str, Any]) -> str:
        """How a worked example (a row of data) is answered in a chat prompt. Needed where `max_few_shot` is not 0."""
        raise self._takes_no_shots()

    @abstractmethod
    def base_prompt(self, sample: Sample) -> str:
        """The text that a base model continues."""

    def shots(self, count: int, data_dir: Path | None) -> Rows:
        """`count` worked examples that are never evaluated. Needed where `max_few_shot` is not 0."""
        raise self._takes_no_shots()

    @abstractmethod
    def score(self, samples: Sequence[Sample], outputs: Sequence[str]) -> list[dict[str, float]]:
        """One dict of metrics (fractions in [0, 1]) per sample, in order.

        An empty dict means "not scored"; `score_note()` then says why.
        """

    # --- the same for all tasks, overridden where a task differs ---------------

    def stop(self, chat: bool) -> tuple[str, ...]:
        """Strings at which an output ends, themselves excluded.

        A chat model ends its own turn, so there are usually none for `chat`.
        """
        return self.stop_chat if chat else self.stop_base

    def messages(self, sample: Sample) -> list[dict[str, str]]:
        """The chat prompt: worked examples as earlier turns, then the question."""
        turns = []
        for shot in sample.fields.get("shots", ()):
            turns.append({"role": "user", "content": self.question(shot)})
            turns.append({"role": "assistant", "content": self.shot_answer(shot)})
        return [*turns, {"role": "user", "content": self.question(sample.fields)}]

    def truncatable(self, sample: Sample) -> str:
        """The field that may be shortened when a prompt is too long; "" for none."""
        return ""

    def score_note(self) -> str:
        """Why samples are not scored, or what a reader of the scores must know; "" for nothing."""
        return ""

    def select(self, samples: tuple[Sample, ...], limit: int) -> tuple[Sample, ...]:
        """The `limit` samples that `--limit` keeps: the first ones, so every run sees the same."""
        return samples[:limit]

    def load(
        self,
        split: str = "test",
        *,
        data_dir: Path | None = None,
        limit: int | None = None,
        options: TaskOptions = DEFAULT_OPTIONS,
    ) -> Loaded:
        """Samples of `split`, from the first source that has them.

        Sources in order: `data_dir`, an installed package (HumanEval), the hub,
        the sample shipped with this project. Raises TaskError for a wrong split,
        limit or few-shot count, for malformed data, and when no source has the split.
        """
        self._check(split, limit, options)
        rows = find_rows(self.name, split, self.origin(split), data_dir)
        notes = list(rows.notes)
        shots: tuple[Mapping[str, Any], ...] = ()
        if options.few_shot:
            found = self.shots(options.few_shot, data_dir)
            shots = found.rows
            notes.append(f"{len(shots)} worked examples from {found.source}")
        prefix = "builtin" if rows.builtin else split
        samples = tuple(
            self.sample({**row, "shots": shots}, index, prefix)
            for index, row in enumerate(rows.rows)
            if row not in shots
        )
        samples = self._distinct(self.keep(samples), rows.source)
        if limit is not None:
            if limit > len(samples):
                notes.append(f"--limit {limit} is more than there are: all {len(samples)} samples used")
            samples = self.select(samples, limit)
        return Loaded(samples, rows.source, tuple(notes))

    def keep(self, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """The samples that belong to the task as it was asked for; all of them, by default."""
        return samples

    def _takes_no_shots(self) -> TaskError:
        return TaskError(f"--few-shot: --task {self.name} has no worked examples: leave --few-shot out")

    def _check(self, split: str, limit: int | None, options: TaskOptions) -> None:
        if split not in self.splits:
            raise TaskError(f"--task {self.name} has no split {split!r}: use --split {' or '.join(self.splits)}")
        if limit is not None and limit < 1:
            raise TaskError(f"--limit {limit}: use 1 or more, or leave --limit out for all samples")
        if options.few_shot < 0 or options.few_shot > self.max_few_shot:
            allowed = f"0 to {self.max_few_shot}" if self.max_few_shot else "only 0"
            raise TaskError(f"--few-shot {options.few_shot}: --task {self.name} takes {allowed} worked examples")

    def _distinct(self, samples: tuple[Sample, ...], source: str) -> tuple[Sample, ...]:
        """`samples`, or TaskError: ids seed the generators, so two samples must not share one."""
        seen: set[str] = set()
        for sample in samples:
            if sample.id in seen:
                raise TaskError(
                    f"{source}: two rows of --task {self.name} have the id {sample.id!r}: "
                    "remove one of them or change --data-dir"
                )
            seen.add(sample.id)
        return samples
