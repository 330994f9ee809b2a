"""From a config to the prompts that a run decodes, checked before any decoding starts."""

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.config import RunConfig
from bench.errors import BenchError
from bench.loading import Pair
from methods import StopRule
from tasks import Encoded, Loaded, Sample, Task, TaskOptions, encode, get_task


@dataclass(frozen=True)
class LoadedTask:
    """A task with the samples of this run."""

    name: str
    task: Task
    loaded: Loaded

    def describe(self) -> dict:
        """For run.json: where the samples came from, and a hash of them that a resumed run must find again."""
        content = json.dumps([(sample.id, dict(sample.fields)) for sample in self.loaded.samples], default=str)
        return {
            "version": self.task.version,
            "source": self.loaded.source,
            "notes": [*self.loaded.notes, *filter(None, [self.task.score_note()])],
            "samples": len(self.loaded.samples),
            "content": hashlib.sha256(content.encode()).hexdigest()[:16],
        }


@dataclass(frozen=True)
class Prompt:
    """One sample, ready to decode, and its place in the run."""

    position: int
    task: LoadedTask
    sample: Sample
    encoded: Encoded
    stop: StopRule


def load_tasks(config: RunConfig) -> list[LoadedTask]:
    """The samples of every task.

    Raises:
        TaskError: an unknown task, or data that cannot be found or read.
    """
    data_dir = Path(config.data_dir) if config.data_dir else None
    options = TaskOptions(few_shot=config.few_shot)
    tasks = [(name, get_task(name)) for name in config.tasks]
    return [
        LoadedTask(name, task, task.load(config.split, data_dir=data_dir, limit=config.limit, options=options))
        for name, task in tasks
    ]


def prompts(config: RunConfig, tasks: list[LoadedTask], pair: Pair, first: int) -> list[Prompt]:
    """All prompts of one pair, numbered from `first`.

    Raises:
        TaskError: a prompt that does not fit, or --prompt chat without a chat template.
    """
    chat = bool(pair.tokenizer.chat_template) if config.prompt == "auto" else config.prompt == "chat"
    room = pair.context_limit - config.max_new_tokens
    if room < 1:
        raise BenchError(
            f"--max-new-tokens {config.max_new_tokens}: {pair.spec.name} has a context of {pair.context_limit} "
            "tokens; use fewer"
        )
    made = []
    for task in tasks:
        rule = StopRule(
            config.max_new_tokens,
            pair.eos_ids,
            task.task.stop(chat),
            partial(pair.tokenizer.decode, skip_special_tokens=True),
        )
        for sample in task.loaded.samples:
            encoded = encode(task.task, sample, pair.tokenizer, chat=chat, max_prompt_tokens=room)
            made.append(Prompt(first + len(made), task, sample, encoded, rule))
    return made
