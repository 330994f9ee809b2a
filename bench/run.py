"""Runs a config: every prompt through every method, one finished sample after another into the run's folder."""

import gc
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tqdm import tqdm

from bench.audit import with_audit
from bench.config import RunConfig
from bench.errors import BenchError
from bench.layers import find_layers
from bench.loading import Pair, find_models, load_pair
from bench.plan import LoadedTask, Prompt, load_tasks, prompts
from bench.provenance import add_pair, check_resumable, first_info
from bench.runner import PairRunner
from bench.store import RunFolder
from methods import METHODS, Method


class Interrupted(Exception):
    """Ctrl-C was pressed; everything finished so far is stored."""


def run(config: RunConfig, results: Path) -> RunFolder:
    """Runs a config in a new folder.

    Raises:
        BenchError, TaskError, MethodError: a user's mistake; found before decoding starts wherever possible.
        Interrupted: after Ctrl-C, when the sample in flight is stored.
    """
    tasks = load_tasks(config)
    methods = check_methods(config)
    for spec in config.pairs:
        find_models(spec, _with_draft(config))
        find_layers(spec, methods)
    info = first_info(config, tasks)
    name = "-".join((*config.tasks[:2], *(entry.label for entry in config.methods[:3]))).replace(":", "-")
    folder = RunFolder.create(results, name[:100])
    try:
        with folder.locked():
            folder.write_info({"run_id": folder.run_id, **info})
            return _run_rest(config, tasks, folder)
    except BaseException:
        folder.remove_if_nothing_finished()
        raise


def resume(results: Path, run_id: str) -> RunFolder:
    """Runs what is left of an interrupted run, by its own config; a finished run is returned as it is.

    Raises: as `run`, and BenchError when the run's models or samples have changed.
    """
    folder = RunFolder.open(results / run_id)
    if folder.finished:  # so that it can be looked at where nothing can be written
        return folder
    with folder.locked():
        if folder.complete:
            folder.finish()
            return folder
        config = RunConfig.from_json(folder.info()["config"])
        tasks = load_tasks(config)
        folder.write_info(check_resumable(folder, config, tasks))
        return _run_rest(config, tasks, folder)


def check_methods(config: RunConfig) -> list[Method]:
    """All methods with all settings of a run. Raises MethodError for a setting that a method does not take."""
    places = itertools.product(config.methods, config.pairs, config.tasks)
    return [config.method(entry, spec.name, task) for entry, spec, task in places]


def _with_draft(config: RunConfig) -> bool:
    return any(METHODS[entry.method].drafter for entry in config.methods)


def _run_rest(config: RunConfig, tasks: list[LoadedTask], folder: RunFolder) -> RunFolder:
    per_pair = sum(len(task.loaded.samples) for task in tasks)
    decodings = len(config.methods) * config.repeat
    done = len(folder.finished_positions())
    with (
        _finish_sample_on_interrupt() as interrupted,
        tqdm(
            total=per_pair * len(config.pairs) * decodings, initial=done * decodings, unit="output", dynamic_ncols=True
        ) as bar,
    ):
        for number in range(len(config.pairs)):
            _run_pair(config, number, per_pair, tasks, folder, bar, interrupted)
            # Engines are in reference cycles (a model's head knows its engine): free them before the next pair loads.
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    try:
        folder.finish()
    except OSError as error:
        raise _cannot_store(folder, error) from error
    return folder


def _cannot_store(folder: RunFolder, error: OSError) -> BenchError:
    return BenchError(
        f"{folder.path} cannot be written ({error.strerror or error}); nothing finished is lost: make room, then go on "
        f"with --resume {folder.run_id}"
    )


def _run_pair(config: RunConfig, number: int, per_pair: int, tasks: list[LoadedTask], folder, bar, interrupted) -> None:
    """All samples of one pair that are not finished."""
    positions = range(number * per_pair, (number + 1) * per_pair)
    done, spec = folder.finished_positions(), config.pairs[number]
    decoded, audited = done.issuperset(positions), not config.audit or spec.name in folder.info().get("audit", {})
    if decoded and audited:
        return
    bar.set_description(f"loading {spec.name}")
    pair = load_pair(spec, config.placement, with_draft=_with_draft(config))
    folder.write_info(add_pair(folder.info(), pair, config))
    everything = prompts(config, tasks, pair, positions.start)
    if not decoded:
        _decode(config, pair, everything, done, folder, bar, interrupted)
    if config.audit:
        bar.set_description(f"{spec.name} audit")
        folder.write_info(with_audit(folder, config, pair, everything))


def _decode(config: RunConfig, pair: Pair, everything: list[Prompt], done: set[int], folder, bar, interrupted) -> None:
    """All prompts of a pair that are not done."""
    spec = pair.spec
    runner = PairRunner(config, pair)
    bar.set_description(f"{spec.name} warm-up")
    runner.warm_up([prompt for prompt in everything if prompt.position not in done])
    for prompt in everything:
        if prompt.position in done:
            runner.remember(folder.pools_at(prompt.position))
            continue
        bar.set_description(f"{spec.name} {prompt.task.name}")
        samples, steps = runner.run_prompt(prompt, bar)
        try:
            folder.add_part(prompt.position, samples, steps)
        except OSError as error:
            raise _cannot_store(folder, error) from error
        if interrupted():
            raise Interrupted(folder.run_id)


@contextmanager
def _finish_sample_on_interrupt() -> Iterator[Callable[[], bool]]:
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
