"""Runs a config: every prompt through every method, interleaved, one finished sample after another into the run's
folder."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.config import MethodEntry, RunConfig, sample_seed
from bench.environment import environment, fingerprint
from bench.errors import BenchError
from bench.loading import Pair, load_pair, weights_folder
from bench.plan import LoadedTask, Prompt, load_tasks, prompts
from bench.rows import sample_row, step_rows
from bench.store import RunFolder
from methods import Decoded, Decoder, Method, StopRule, get_method

_WARM_UP_TOKENS = 8


class Interrupted(Exception):
    """Ctrl-C was pressed; everything finished so far is stored."""


def run(config: RunConfig, results: Path, resume: str | None = None) -> RunFolder:
    """Runs a config, or the rest of a run that was interrupted (then its own config counts, not `config`).

    Raises:
        BenchError, TaskError, MethodError: a user's mistake; found before decoding starts wherever possible.
        Interrupted: after Ctrl-C, when the sample in flight is stored.
    """
    folder = RunFolder.open(results / resume) if resume else None
    if folder:
        if folder.complete:
            folder.finish()
            return folder
        config = RunConfig.from_json(folder.info()["config"])
    methods = [(entry, get_method(entry.method, entry.settings)) for entry in config.methods]
    tasks = load_tasks(config)
    if folder:
        _check_same_samples(folder, tasks)
    else:
        folder = RunFolder.create(
            results, "-".join((*config.tasks[:2], *(entry.label for entry in config.methods[:3]))).replace(":", "-")
        )
        folder.write_info(_first_info(folder, config, tasks))
    try:
        with _finish_sample_on_interrupt() as interrupted:
            _run_pairs(config, methods, tasks, folder, interrupted)
    except BaseException:
        folder.remove_if_nothing_finished()
        raise
    folder.finish()
    return folder


def _first_info(folder: RunFolder, config: RunConfig, tasks: list[LoadedTask]) -> dict[str, Any]:
    return {
        "run_id": folder.run_id,
        "status": "running",
        "command": sys.argv[1:],
        "config": config.to_json(),
        "environment": environment(config.placement.device),
        "tasks": {task.name: task.describe() for task in tasks},
        "pairs": {},
        "samples": len(config.pairs) * sum(len(task.loaded.samples) for task in tasks),
    }


def _check_same_samples(folder: RunFolder, tasks: list[LoadedTask]) -> None:
    before = folder.info()["tasks"]
    for task in tasks:
        if task.describe()["ids"] != before[task.name]["ids"]:
            raise BenchError(
                f"--resume {folder.run_id}: {task.name} now has other samples (from {task.loaded.source}; before: "
                f"{before[task.name]['source']}); give the same --data-dir, or start a new run"
            )


def _run_pairs(config: RunConfig, methods, tasks: list[LoadedTask], folder: RunFolder, interrupted) -> None:
    done = folder.finished_positions()
    per_pair = sum(len(task.loaded.samples) for task in tasks)
    with_draft = any(method.spec.drafter for _, method in methods)
    decodings = len(methods) * config.repeat
    with tqdm(
        total=per_pair * len(config.pairs) * decodings, initial=len(done) * decodings, unit="output", dynamic_ncols=True
    ) as bar:
        for number, spec in enumerate(config.pairs):
            positions = range(number * per_pair, (number + 1) * per_pair)
            if done.issuperset(positions):
                continue
            bar.set_description(f"loading {spec.name}")
            pair = load_pair(spec, config.placement, with_draft=with_draft)
            folder.write_info(_with_pair(folder.info(), pair, config))
            todo = [prompt for prompt in prompts(config, tasks, pair, positions.start) if prompt.position not in done]
            runner = PairRunner(config, pair, methods)
            runner.warm_up(todo[0])
            for prompt in todo:
                bar.set_description(f"{spec.name} {prompt.task.name}")
                samples, steps = runner.run_prompt(prompt, bar)
                folder.add_part(prompt.position, samples, steps)
                if interrupted():
                    raise Interrupted(folder.run_id)


def _with_pair(info: dict[str, Any], pair: Pair, config: RunConfig) -> dict[str, Any]:
    info["pairs"][pair.spec.name] = {
        "target": pair.spec.target,
        "draft": pair.spec.draft if pair.draft else None,
        "target_dtype": config.placement.dtype,
        "draft_dtype": pair.draft_dtype if pair.draft else None,
        "target_weights": fingerprint(weights_folder(pair.spec.target)),
        "draft_weights": fingerprint(weights_folder(pair.spec.draft)) if pair.draft else None,
        "context_limit": pair.context_limit,
        "ignored_generation_config": pair.ignored_generation_config,
    }
    return info


class PairRunner:
    """Decodes prompts with one loaded pair."""

    def __init__(self, config: RunConfig, pair: Pair, methods: list[tuple[MethodEntry, Method]]):
        self.config, self.pair, self.methods = config, pair, methods
        self.decoders = {
            entry.label: Decoder(pair.target, method.drafter(pair.draft, config.sampling), config.sampling)
            for entry, method in methods
        }

    def warm_up(self, prompt: Prompt) -> None:
        """A few tokens with every method, thrown away: the first passes allocate and choose kernels."""
        stop = StopRule(min(_WARM_UP_TOKENS, self.config.max_new_tokens))
        for entry, method in self.methods:
            self._decode(entry, method, prompt, stop, seed=0)

    def run_prompt(self, prompt: Prompt, bar: tqdm) -> tuple[list[dict], list[dict]]:
        """The rows of one sample: all methods, all repeats. Methods take turns at going first."""
        samples, steps = [], []
        for repeat in range(self.config.repeat):
            shift = (prompt.position + repeat) % len(self.methods)
            for order, (entry, method) in enumerate(self.methods[shift:] + self.methods[:shift]):
                seed = sample_seed(self.config.seed, prompt.task.name, prompt.sample.id, repeat)
                decoded = self._decode(entry, method, prompt, prompt.stop, seed)
                key = dict(
                    pair=self.pair.spec.name,
                    task=prompt.task.name,
                    sample_id=prompt.sample.id,
                    method=entry.label,
                    repeat=repeat,
                )
                samples.append(sample_row(key, prompt, decoded, order, seed, self.pair.tokenizer))
                steps += step_rows(key, decoded)
                bar.update()
        return self._scored(prompt, samples), steps

    def _decode(self, entry: MethodEntry, method: Method, prompt: Prompt, stop: StopRule, seed: int) -> Decoded:
        return self.decoders[entry.label].decode(list(prompt.encoded.ids), stop, method.policy(), seed)

    def _scored(self, prompt: Prompt, rows: list[dict]) -> list[dict]:
        """Scores the outputs, equal ones once: scoring may run the program that a model wrote."""
        task = prompt.task.task
        metrics = {text: task.score([prompt.sample], [text])[0] for text in {row["output"] for row in rows}}
        for row in rows:
            row["metrics"] = list(metrics[row["output"]].items())
            row["score"] = metrics[row["output"]].get(task.metric)
        return rows


@contextmanager
def _finish_sample_on_interrupt() -> Iterator:
    """Yields a function that says whether Ctrl-C was pressed. The first press lets the sample in flight finish, the
    second is an ordinary KeyboardInterrupt."""
    pressed = []

    def handle(number, frame):
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        print("\nFinishing this sample; press Ctrl-C again to drop it.", file=sys.stderr)

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not in the main thread: leave signals to whoever has it
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
