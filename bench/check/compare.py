"""Compares a measurement with the baseline's: what got worse, and what is merely no longer the same."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from bench.check.baseline import Tolerances
from bench.check.causes import LOSSY, cause_of_counts, cause_of_time
from bench.check.change import Change, engine_change, speedup_change
from bench.check.measured import COUNTS, Measured
from bench.stats import RESAMPLES

STALE = "run again with --update if that is meant"
# Where rounding differs, so many near-ties say nothing, however small the set is.
_NEAR_OUTPUTS, _NEAR_PASSES = 1, 2


@dataclass(frozen=True)
class Failure:
    """`kind`: stale (another thing was measured), counts, outputs, time or engine. `worse` is False for what changed
    for the better, which fails as well: a baseline that is out of date would hide the next loss."""

    kind: str
    task: str
    method: str
    what: str
    cause: str
    worse: bool = True


@dataclass(frozen=True)
class Line:
    """One method on one task, before and after; totals over samples."""

    task: str
    method: str
    speedup: Change
    before: pd.Series
    after: pd.Series


@dataclass(frozen=True)
class Comparison:
    """`times_judged`: whether this measurement and the baseline's were made on a quiet machine."""

    lines: tuple[Line, ...]
    engine: Change
    failures: tuple[Failure, ...]
    times_judged: bool
    notes: tuple[str, ...]

    def of(self, line: Line) -> list[Failure]:
        return [failure for failure in self.failures if (failure.task, failure.method) == (line.task, line.method)]

    @property
    def only_time(self) -> bool:
        """Whether noise could be all that is wrong."""
        return bool(self.failures) and all(failure.kind in ("time", "engine") for failure in self.failures)


def compare(before: Measured, after: Measured, allowed: Tolerances, resamples: int = RESAMPLES) -> Comparison:
    """Compares two measurements of the same fixed set.

    Counts and outputs are compared exactly on the same machine type with the same weights, and where `ar` gives the
    baseline's outputs; else within `allowed`, and by at least one output per method over all tasks, and two passes per
    task and method. Times fail only when the whole interval of a change is beyond what is allowed, and are reported
    only where one of the two was measured on a busy machine.
    """
    same_machine = before.machine == after.machine
    failures = list(_stale(before, after, same_machine))
    exact = same_machine and before.weights == after.weights
    engine = engine_change(before, after, resamples)
    quiet = not (before.unrest or after.unrest)
    if quiet and same_machine and engine.lost(allowed.engine_loss):
        what = f"speed of ar's pass over plain transformers {engine.before:.2f} → {engine.after:.2f} {interval(engine)}"
        failures.append(Failure("engine", "all", "ar", what, "the target's engine or the decode loop became slower"))
    same_tasks = [task for task in before.tasks if before.tasks[task] == after.tasks.get(task)]
    lines = []
    for task in same_tasks:
        same_ar = before.outputs(task, "ar").equals(after.outputs(task, "ar"))
        if exact and not same_ar:
            failures.append(_changed_ar(before, after, task))
        for method in before.methods:
            speedup = speedup_change(before, after, task, method, resamples)
            line = Line(task, method, speedup, *(m.per_sample(task, method)[[*COUNTS]].sum() for m in (before, after)))
            lines.append(line)
            failures += _exact_counts(before, after, line) if exact and same_ar else _near_counts(line, allowed)
            failures += _time(before, after, line, allowed, engine) if quiet else []
    failures += _outputs(before, after, same_tasks, exact, allowed)
    notes = tuple(_notes(before, after, lines))
    return Comparison(tuple(lines), engine, tuple(_explained(failures)), quiet, notes)


def interval(change: Change) -> str:
    """ "[0.97, 1.04]"; "" for a single sample."""
    return "" if change.low != change.low else f"[{change.low:.2f}, {change.high:.2f}]"


def _stale(before: Measured, after: Measured, same_machine: bool) -> Iterator[Failure]:
    """Another thing was measured than the baseline's."""
    for name, old in before.weights.items():
        new = after.weights.get(name)
        if old != new and (same_machine or name != "draft_dtype"):
            yield Failure("stale", "all", "all", f"weights of {name}: {old} → {new}", f"new weights; {STALE}", False)
    for task, old in before.tasks.items():
        if after.tasks.get(task) != old:
            what = f"prompts: {old} → {after.tasks.get(task)}"
            yield Failure("stale", task, "all", what, f"the task's samples or templates changed; {STALE}", False)


def _changed_ar(before: Measured, after: Measured, task: str) -> Failure:
    old, new = before.outputs(task, "ar"), after.outputs(task, "ar")
    what = f"outputs of {(old != new).sum()} of {len(old)} samples are not the baseline's"
    return Failure("outputs", task, "ar", what, f"the engine's numbers or the prompts changed; {STALE}")


def _exact_counts(before: Measured, after: Measured, line: Line) -> list[Failure]:
    """Every count of every sample and repeat has to be the baseline's."""
    old = before.per_sample(line.task, line.method)
    own = after.of(line.task, line.method)
    unequal = (own[[*COUNTS]].to_numpy() != old.loc[own.sample_id, [*COUNTS]].to_numpy()).any(axis=1)
    if not unequal.any():
        return []
    changed = [f"{name} {line.before[name]} → {line.after[name]}" for name in COUNTS if _differs(line, name)]
    samples = f"{own.sample_id[unequal].nunique()} of {len(old)} samples"
    cause = cause_of_counts(line.before, line.after)
    what = f"{', '.join(changed) or 'the same totals'} ({samples})"
    if cause:
        return [Failure("counts", line.task, line.method, what, cause)]
    return [Failure("counts", line.task, line.method, what, "changed, not worse: run again with --update", False)]


def _differs(line: Line, name: str) -> bool:
    return line.before[name] != line.after[name]


def _near_counts(line: Line, allowed: Tolerances) -> list[Failure]:
    """Passes may be a stated share more than the baseline's for as many tokens, and at least two target passes with the
    draft passes that two of them take: a near-tie costs a target pass, and that its drafts. More draft passes that save
    target passes are a method's choice; what they cost shows in its time."""
    drafts = max(1.0, line.before.draft_forwards / line.before.target_forwards)
    for name, least in (("target_forwards", _NEAR_PASSES), ("draft_forwards", _NEAR_PASSES * drafts)):
        old, new = line.before[name] / line.before.new_tokens * line.after.new_tokens, line.after[name]
        most = old + max(least, allowed.counts_elsewhere * old)
        if new > most:
            what = f"{name} {round(old, 1):g} → {new}, allowed {most:.1f}"
            cause = cause_of_counts(line.before, line.after)
            return [Failure("counts", line.task, line.method, what, cause)]
        if new < old:
            break
    return []


def _time(before: Measured, after: Measured, line: Line, allowed: Tolerances, engine: Change) -> list[Failure]:
    if line.method == "ar":
        return []
    same = before.machine == after.machine
    if not same and before.weights["draft_dtype"] != after.weights["draft_dtype"]:
        return []
    loss = allowed.speedup_loss if same else allowed.speedup_loss_elsewhere
    if not line.speedup.lost(loss):
        return []
    change = line.speedup
    allowed_text = f"allowed x{1 - loss:.2f}"
    what = f"speedup {change.before:.2f} → {change.after:.2f}, x{change.value:.2f} {interval(change)}, {allowed_text}"
    gain = engine.low - 1 if same else 0.0
    return [Failure("time", line.task, line.method, what, cause_of_time(before, after, line.task, line.method, gain))]


def _outputs(
    before: Measured, after: Measured, tasks: list[str], exact: bool, allowed: Tolerances
) -> Iterator[Failure]:
    """Lossless decoding gives `ar`'s tokens with every method; elsewhere, with all but `near_ties`."""
    for method in after.methods:
        unlike, total = {}, 0
        for task in tasks:
            own, ar = after.outputs(task, method), after.outputs(task, "ar")
            new = own != ar
            if exact:  # a near-tie that the baseline has too is no news
                new &= own != before.outputs(task, method)
            unlike[task], total = int(new.sum()), total + len(own)
        if sum(unlike.values()) <= (0 if exact else near_ties(total, allowed)):
            continue
        for task, count in unlike.items():
            if count:
                what = f"outputs of {count} of {len(after.outputs(task, method))} samples differ from ar's"
                yield Failure("outputs", task, method, what, LOSSY)


def near_ties(total: int, allowed: Tolerances) -> float:
    """How many of a method's `total` outputs over all tasks may be unlike `ar`'s before that is a fault: one, or the
    stated share of them if that is more."""
    return max(_NEAR_OUTPUTS, allowed.outputs_elsewhere * total)


def unlike_ar(measured: Measured) -> dict[str, tuple[int, int]]:
    """How many of each method's outputs over all tasks are not `ar`'s, and of how many."""
    counts = {}
    for method in measured.methods:
        differ = pd.concat([measured.outputs(task, method) != measured.outputs(task, "ar") for task in measured.tasks])
        counts[method] = int(differ.sum()), len(differ)
    return counts


def _explained(failures: list[Failure]) -> Iterator[Failure]:
    """Counts and times of a method whose outputs are wrong follow from that."""
    lossy = {(failure.task, failure.method) for failure in failures if failure.cause == LOSSY}
    for failure in failures:
        if (failure.task, failure.method) in lossy and failure.cause != LOSSY:
            failure = Failure(failure.kind, failure.task, failure.method, failure.what, LOSSY)
        yield failure


def _notes(before: Measured, after: Measured, lines: list[Line]) -> Iterator[str]:
    changed = [name for name, value in before.machine.items() if after.machine[name] != value]
    if changed:
        what = ", ".join(f"{name} {before.machine[name]} → {after.machine[name]}" for name in changed)
        yield (
            f"another machine type than the baseline's ({what}): counts and outputs within the file's tolerances, "
            "times only against its larger loss, the engine not judged"
        )
        if "draft_dtype" in changed:
            yield "the draft runs in another precision here, so its times are reported only"
    for measured, which in ((before, "the baseline"), (after, "this check")):
        if measured.unrest:
            remedy = "run again with --update" if measured is before else "check again"
            yield f"times are NOT judged: {which} {measured.unrest}, on a busy machine; {remedy} on a quiet one"
    if any(line.speedup.low != line.speedup.low for line in lines):
        yield "a single sample has no interval: times are reported only; use a limit of 2 or more"
    quiet = not (before.unrest or after.unrest)
    gained = [f"{line.method} on {line.task}" for line in lines if quiet and line.speedup.gained(0.1)]
    if gained:
        yield f"faster than the baseline: {', '.join(gained)}; --update keeps the gain"
