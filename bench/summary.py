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
            rows.append({"pair": pair, "task": task, "method": name, **_numbers(own), **_speedup(own, baseline)})
    return pd.DataFrame(rows)


def _numbers(own: pd.DataFrame) -> dict:
    total = own.sum(numeric_only=True)
    decode_s = total.decode_s or float("nan")
    return {
        "samples": own.sample_id.nunique(),
        "new_tokens": int(total.new_tokens),
        "tokens_per_s": total.new_tokens / total.wall_s,
        "decode_tokens_per_s": total.new_tokens / decode_s,
        "tokens_per_target_forward": total.new_tokens / total.target_forwards,
        "accepted_per_step": total.accepted / total.steps,
        "acceptance_rate": total.accepted / total.drafted if total.drafted else float("nan"),
        "wasted_drafts": int(total.drafted - total.accepted),
        "target_forwards": int(total.target_forwards),
        "draft_forwards": int(total.draft_forwards),
        **{part.removesuffix("_s") + "_share": total[part] / decode_s for part in PARTS},
        "metric": own.metric.iloc[0],
        "score": own.score.mean(),
    }


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
                "decode": f"{row.decode_tokens_per_s:.1f}",
                "speedup [95 %]": _interval(row),
                "tok/pass": f"{row.tokens_per_target_forward:.2f}",
                "accepted": f"{100 * row.acceptance_rate:.0f} %" if row.acceptance_rate == row.acceptance_rate else "–",
                "target": row.target_forwards,
                "draft": row.draft_forwards,
                "time in %": " / ".join(f"{100 * share:.0f}" for share in shares),
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


def _interval(row) -> str:
    if row.speedup != row.speedup:
        return "–"
    if row.method == "ar":
        return "1"
    if row.speedup_low != row.speedup_low:
        return f"{row.speedup:.2f} (1 sample)"
    return f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"
