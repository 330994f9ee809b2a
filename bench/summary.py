"""The table that a run prints: a row per task and method."""

from collections.abc import Sequence

import pandas as pd
from tabulate import tabulate

from bench.stats import speedup

PARTS = ("draft_s", "preverify_s", "verify_s", "other_s")


def summarise(samples: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """One row per pair, task and method (in the order of `methods`) with the numbers of DESIGN §4; speedups over the
    `ar` rows of the same pair and task, NaN where there are none."""
    rows = []
    for (pair, task), group in samples.groupby(["pair", "task"], sort=False):
        baseline = group[group.method == "ar"]
        for name in methods:
            own = group[group.method == name]
            rows.append({"pair": pair, "task": task, "method": name, **line(own, baseline)})
    return pd.DataFrame(rows)


def line(own: pd.DataFrame, baseline: pd.DataFrame) -> dict:
    """The numbers of DESIGN §4 for the rows of samples.parquet of one pair, task and method. `baseline`: those of `ar` from
    the same run; empty where there are none, and then speedups are NaN. So is what a log of another harness lacks."""
    total = own.sum(numeric_only=True, min_count=1)
    return {
        "samples": own.sample_id.nunique(),
        "new_tokens": int(total.new_tokens),
        "tokens_per_s": total.new_tokens / total.wall_s,
        "decode_tokens_per_s": total.new_tokens / (total.decode_s or float("nan")),
        "tokens_per_target_forward": total.new_tokens / total.target_forwards,
        "accepted_per_step": total.accepted / total.steps,
        "acceptance_rate": total.accepted / total.drafted if total.drafted else float("nan"),
        "drafted": _count(total.drafted),
        "wasted_drafts": _count(total.drafted - total.accepted),
        "target_forwards": _count(total.target_forwards),
        "draft_forwards": _count(total.draft_forwards),
        "wall_s": total.wall_s,
        "preverify_s": total.preverify_s,
        "prefill_share": total.prefill_s / total.wall_s,
        **{part.removesuffix("_s") + "_share": total[part] / (total.decode_s or float("nan")) for part in PARTS},
        "metric": own.metric.iloc[0],
        "score": own.score.mean(),
        **_speedup(own, baseline),
    }


def _count(value: float) -> float:
    """Whole, or NaN where nothing was counted."""
    return int(value) if value == value else value


def _speedup(own: pd.DataFrame, baseline: pd.DataFrame) -> dict:
    if baseline.empty:
        return {name: float("nan") for name in ("speedup", "speedup_low", "speedup_high")}
    s = speedup(own, baseline)
    return {"speedup": s.value, "speedup_low": s.low, "speedup_high": s.high}


def render(summary: pd.DataFrame) -> str:
    """The summary as a Markdown table; `NOTES` says what its columns mean."""
    several_pairs = summary.pair.nunique() > 1
    rows = []
    for row in summary.itertuples():
        shares = (row.draft_share, row.preverify_share, row.verify_share, row.other_share)
        rows.append(
            {
                **({"pair": row.pair} if several_pairs else {}),
                "task": row.task,
                "method": row.method,
                "tok/s": f"{row.tokens_per_s:.1f}",
                "decode": number(row.decode_tokens_per_s, 1),
                "speedup [95 %]": interval(row),
                "tok/pass": f"{row.tokens_per_target_forward:.2f}",
                "accepted": percent(row.acceptance_rate),
                "target": count(row.target_forwards),
                "draft": count(row.draft_forwards),
                "time in %": " / ".join(percent(share).removesuffix(" %") for share in shares),
                row.metric or "score": f"{row.score:.2f}" if row.score == row.score else "–",
            }
        )
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True, missingval="")


NOTES = (
    "tok/s and speedup include prefill, decode does not. tok/pass: tokens per target pass.\n"
    "accepted: of those drafted; tokens of phrases after the draft count in tok/pass only.\n"
    "target, draft: forward passes after prefill. time in %: draft/pre-verification/verify/other, of decode time.\n"
    "Intervals: paired bootstrap over samples."
)


def interval(row) -> str:
    """ "1.53 [1.35, 1.75]" of a line with its method."""
    if row.speedup != row.speedup:
        return "–"
    if row.method == "ar":
        return "1"
    if row.speedup_low != row.speedup_low:
        return f"{row.speedup:.2f}" + (" (1 sample)" if row.samples == 1 else "")
    return f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"


def percent(share: float, digits: int = 0) -> str:
    """ "61 %"; a dash for NaN."""
    # + 0.0 turns a rounded -0.0 into 0.0
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %" if share == share else "–"


def number(value: float, digits: int) -> str:
    """ "1.53"; a dash for NaN."""
    return f"{value:.{digits}f}" if value == value else "–"


def count(value: float) -> str:
    """ "1024"; a dash for NaN."""
    return f"{int(value)}" if value == value else "–"
