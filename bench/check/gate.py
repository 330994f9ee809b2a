"""The steps of a check: read, measure, compare, write."""

from pathlib import Path

from bench.check.baseline import Baseline, FixedSet, Tolerances, check_writable, read_baseline, write_text
from bench.check.compare import Comparison, compare, unlike_ar
from bench.check.markdown import render
from bench.check.measure import default_set, measure
from bench.check.measured import Measured
from bench.run import Interrupted

CHECKS = "checks"


def compare_with(path: Path, out: Path, comment: Path | None) -> tuple[int, str]:
    """Exit code and Markdown of a check."""
    known = read_baseline(path)
    if comment:
        check_writable(comment, "--comment")
    measured = _measure(known.fixed, out)
    found = _compared(known, measured)
    if found.only_time:  # noise does not strike twice in the same place, a regression does
        found = _compared(known, measured.with_repeats_of(_measure(known.fixed, out)))
    text = render(found, known, str(path))
    if comment:
        write_text(comment, text, "--comment")
    return int(bool(found.failures)), text


def _compared(known: Baseline, measured: Measured) -> Comparison:
    return compare(known.measured, measured, known.tolerances)


def make_baseline(path: Path, out: Path, comment: Path | None) -> tuple[int, str]:
    """Writes the baseline file. Exit code 1, and no file, when outputs say that verification is lossy."""
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
    shares = {method: share for method, share in unlike_ar(made.measured).items() if share}
    lines = [f"{method}: {share:.0%} of its outputs differ from ar's" for method, share in shares.items()]
    if any(share > made.tolerances.outputs_elsewhere for share in shares.values()):
        what = "\n".join(f"- {line}" for line in lines)
        return 1, f"### {path} not written: verification is lossy\n\n{what}\n\nMake it lossless, then --update.\n"
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
