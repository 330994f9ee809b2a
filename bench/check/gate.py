"""The steps of a check: read, measure, compare, write."""

from dataclasses import replace
from pathlib import Path

from bench.check.baseline import Baseline, FixedSet, Tolerances, check_writable, read_baseline, write_text
from bench.check.compare import Comparison, compare, near_ties, unlike_ar
from bench.check.markdown import render
from bench.check.measure import default_set, measure
from bench.check.measured import Measured
from bench.run import Interrupted

CHECKS = "checks"


def compare_with(path: Path, out: Path, comment: Path | None) -> tuple[int, str]:
    """Exit code and Markdown of a check. A failure by times alone stands unless a second measurement, on a machine that
    is quiet then too, takes it back."""
    known = read_baseline(path)
    if comment:
        check_writable(comment, "--comment")
    measured = _measure(known.fixed, out)
    found = _compared(known, measured)
    if found.only_time:  # noise does not strike twice in the same place, a regression does
        found = _once_more(known, measured, found, _measure(known.fixed, out))
    text = render(found, known, str(path))
    if comment:
        write_text(comment, text, "--comment")
    return int(bool(found.failures)), text


def _compared(known: Baseline, measured: Measured) -> Comparison:
    return compare(known.measured, measured, known.tolerances)


def _once_more(known: Baseline, first: Measured, found: Comparison, second: Measured) -> Comparison:
    if second.unrest:
        note = f"the second measurement {second.unrest}, on a busy machine: the first one's verdict stands"
        return replace(found, notes=(*found.notes, note))
    return _compared(known, first.with_repeats_of(second))


def make_baseline(path: Path, out: Path, comment: Path | None) -> tuple[int, str]:
    """Writes the baseline file. Exit code 1, and nothing written, when outputs say that verification is lossy (more
    unlike `ar`'s than near-ties explain: one per method, or the tolerances' share), or when the machine was busy: times
    of such a baseline could never be judged."""
    known = read_baseline(path, measured=False) if path.exists() else None
    check_writable(path, "--baseline")
    if comment:
        check_writable(comment, "--comment")
    made = Baseline(
        known.fixed if known else default_set(path.stem),
        known.tolerances if known else Tolerances(),
        None,
    )
    measured = _measure(made.fixed, out)
    made = Baseline(made.fixed, made.tolerances, measured)
    code, text = _update(path, made, known)
    if comment:
        write_text(comment, text, "--comment")
    return code, text


def _update(path: Path, made: Baseline, known: Baseline | None) -> tuple[int, str]:
    unlike = {method: counts for method, counts in unlike_ar(made.measured).items() if counts[0]}
    lines = [f"{method}: {count} of its {total} outputs differ from ar's" for method, (count, total) in unlike.items()]
    if any(count > near_ties(total, made.tolerances) for count, total in unlike.values()):
        what = "\n".join(f"- {line}" for line in lines)
        return 1, f"### {path} not written: verification is lossy\n\n{what}\n\nMake it lossless, then --update.\n"
    if made.measured.unrest:
        busy = f"this check {made.measured.unrest}, on a busy machine"
        return 1, f"### {path} not written: {busy}; run again with --update on a quiet one\n"
    made.write(path)
    # Compared with what it replaces or, for a first baseline, with itself: the same table either way.
    before = known if known and known.up_to_date else made
    text = render(_compared(before, made.measured), before, f"{path} as it was, now updated")
    return 0, text + "".join(f"Note: {line}; a near-tie, or a fault of verification\n" for line in lines)


def _measure(fixed: FixedSet, out: Path) -> Measured:
    try:
        return measure(fixed, out / CHECKS)
    except Interrupted:
        raise KeyboardInterrupt from None
