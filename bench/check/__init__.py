"""The regression gate: has a method's speedup over `ar`, measured on a small fixed set, become lower?"""

from pathlib import Path


def check(baseline: Path, *, update: bool, out: Path, comment: Path | None = None) -> tuple[int, str]:
    """Measures the fixed set of a baseline file anew and compares; with `update` writes what was measured into the
    file, whose set and tolerances stay (without a file: a default set, of the pair that the file is named after, else
    of the default pair).

    Runs are kept in `out`/checks/, where tables over `out` do not take them for results. Returns the exit code, 1 for a
    regression or a baseline that no longer fits, and Markdown, which `comment` names a file for.

    A check that fails by its times alone is measured once more, and both measurements count together if the machine was
    quiet in the second as well; else the first stands. Times of a machine that was busy with something else are
    reported, not judged, and not written: `update` then returns 1 and leaves the file as it was.

    Raises:
        BenchError, TaskError, MethodError: a user's mistake.
        KeyboardInterrupt: after Ctrl-C.
    """
    from bench.check.gate import compare_with, make_baseline  # torch-heavy: --help must answer at once

    return (make_baseline if update else compare_with)(baseline, out, comment)
