"""A comparison as Markdown, for a terminal and for a pull request."""

import pandas as pd
from tabulate import tabulate

from bench.check.baseline import Baseline
from bench.check.compare import Comparison, Line, interval

_NOTES = (
    "speedup: over ar, prefill included, each sample's time the least of its repeats. [change]: 95 % interval of new / "
    "old, paired bootstrap over samples. tok/pass: tokens per target pass. engine: speed of ar's pass over one of "
    "plain transformers with its DynamicCache."
)


def render(comparison: Comparison, baseline: Baseline, name: str) -> str:
    """The table, the failures and what the numbers mean."""
    failures = comparison.failures
    verdict = _headline(comparison) + ("" if comparison.times_judged else " (times not judged)")
    rows = [_row(comparison, line) for line in comparison.lines]
    table = tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)
    lines = [f"### Speedup check against {name}: {verdict}", "", table, ""]
    lines += [f"- **{f.kind}** {f.task} {f.method}: {f.what}. Likely cause: {f.cause}." for f in failures]
    lines += [""] if failures else []
    engine = comparison.engine
    lines += [
        f"engine: {engine.before:.2f} → {engine.after:.2f} {interval(engine)}",
        *(f"Note: {note}" for note in comparison.notes),
        _made_with(baseline),
        _NOTES,
        "",
    ]
    return "\n".join(lines)


def _headline(comparison: Comparison) -> str:
    if not comparison.failures:
        return "no regression"
    worse = [failure for failure in comparison.failures if failure.worse]
    if not worse:
        return "changed, not worse; run --update"
    kinds = dict.fromkeys(failure.kind for failure in worse)
    return f"REGRESSION ({', '.join(kinds)})"


def _row(comparison: Comparison, line: Line) -> dict[str, str]:
    ar = line.method == "ar"
    return {
        "task": line.task,
        "method": line.method,
        "speedup [change]": "1"
        if ar
        else _arrow(line.speedup.before, line.speedup.after) + f" {interval(line.speedup)}",
        "tok/pass": _arrow(*(totals.new_tokens / totals.target_forwards for totals in (line.before, line.after))),
        "target passes": _same_or_arrow(line.before, line.after),
        "verdict": _verdict(comparison, line),
    }


def _arrow(before: float, after: float) -> str:
    return f"{before:.2f} → {after:.2f}"


def _same_or_arrow(before: pd.Series, after: pd.Series) -> str:
    old, new = before.target_forwards, after.target_forwards
    return f"{old}" if old == new else f"{old} → {new}"


def _verdict(comparison: Comparison, line: Line) -> str:
    failures = comparison.of(line)
    if not failures:
        return "ok"
    if not any(failure.worse for failure in failures):
        return "changed, not worse"
    return "**" + ", ".join(dict.fromkeys(failure.kind for failure in failures if failure.worse)) + "**"


def _made_with(baseline: Baseline) -> str:
    machine, fixed = baseline.measured.machine, baseline.fixed
    return (
        f"Baseline: {fixed.pair['name']}, {fixed.limit} samples per task, {fixed.max_new_tokens} new tokens, "
        f"{fixed.repeat} repeats; {machine['gpu'] or machine['cpu']}, {machine['threads']} threads, "
        f"torch {machine['torch']}, commit {(baseline.measured.environment.get('git_commit') or 'unknown')[:12]}"
    )
