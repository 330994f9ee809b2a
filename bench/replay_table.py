"""The table of a replay: a row per task and method, with the two bounds that hindsight gives."""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import pandas as pd
from tabulate import tabulate

from bench.costs import Costs
from bench.errors import BenchError
from bench.estimates import EstimateCache
from bench.oracle import best_fixed, oracle_set
from bench.replay import Replayed, TraceSet, replay_set
from bench.stats import speedup
from methods import Method, get_method
from methods.phrases.drafter import PhraseDrafter
from methods.settings import shown

BEST_FIXED, ORACLE = "best fixed", "oracle"


def replay_table(
    methods: Mapping[str, Mapping[str, Method]],
    sets: Mapping[str, TraceSet],
    costs: Costs,
    estimates: EstimateCache | None = None,
) -> pd.DataFrame:
    """One row per task and label of `methods` (task -> label -> method; trained methods with their layer), framed by
    `ar`, the best fixed draft length of these very traces, and the oracle. Names and definitions: DESIGN §4.

    Raises:
        BenchError: a label that the table gives itself, or what `replay` and `Costs.seconds` raise.
    """
    estimates = estimates or EstimateCache()
    rows = []
    for task, traces in sets.items():
        rows += _task_rows(methods[task], traces, costs, estimates)
    return pd.DataFrame(rows)


def _task_rows(methods: Mapping[str, Method], traces: TraceSet, costs: Costs, estimates: EstimateCache) -> list[dict]:
    for label in ("ar", BEST_FIXED, ORACLE):
        if label in methods and not (label == "ar" and methods[label].name == "ar"):
            raise BenchError(f"the label '{label}' is the table's own; choose another")
    gamma, fixed = best_fixed(traces, costs)
    replays = {
        "ar": ("", replay_set(get_method("ar"), traces)),
        BEST_FIXED: (f"gamma={gamma}", fixed),
        **{
            label: (describe(method), replay_set(method, traces, estimates))
            for label, method in methods.items()
            if label != "ar"
        },
        ORACLE: ("", oracle_set(traces, costs)),
    }
    frames = {label: sample_frame(replayed, costs) for label, (_, replayed) in replays.items()}
    rows = [
        {
            "pair": traces.pair,
            "task": traces.task,
            "split": traces.split,
            "method": label,
            "settings": settings,
            **_numbers(frames[label]),
            **_speedup(frames[label], frames["ar"]),
        }
        for label, (settings, _) in replays.items()
    ]
    bounds = {row["method"]: row["speedup"] for row in rows}
    gain = bounds[ORACLE] - bounds[BEST_FIXED]
    for row in rows:
        method = methods.get(row["method"])
        comparable = gain > 0 and not (method and method.spec.drafter is PhraseDrafter)
        row["oracle_share"] = (row["speedup"] - bounds[BEST_FIXED]) / gain if comparable else float("nan")
    return rows


def describe(method: Method) -> str:
    """The settings that differ from the defaults: "gamma=3"; a trained method's layer is left out."""
    changed = [
        f"{f.name}={shown(getattr(method.settings, f.name))}"
        for f in fields(method.settings)
        if f.name != "layer" and getattr(method.settings, f.name) != f.default
    ]
    return " ".join(changed)


def sample_frame(replays: list[Replayed], costs: Costs) -> pd.DataFrame:
    """A row per sample with counts and times, named as in samples.parquet; `wall_s` is decoding alone."""
    rows = []
    for r in replays:
        seconds = costs.seconds(r)
        rows.append(
            {
                "sample_id": r.sample_id,
                "new_tokens": r.new_tokens,
                "steps": len(r.start),
                "drafted": sum(r.drafted),
                "accepted": sum(r.accepted),
                "target_forwards": r.target_forwards,
                "draft_forwards": sum(r.draft_forwards),
                "asked": sum(r.asked),
                "preverify_s": seconds.preverify_s,
                "wall_s": seconds.decode_s,
            }
        )
    return pd.DataFrame(rows)


def _numbers(frame: pd.DataFrame) -> dict:
    total = frame.sum(numeric_only=True)
    return {
        "samples": len(frame),
        "new_tokens": int(total.new_tokens),
        "decode_tokens_per_s": total.new_tokens / total.wall_s,
        "tokens_per_target_forward": total.new_tokens / total.target_forwards,
        "accepted_per_step": total.accepted / total.steps,
        "acceptance_rate": total.accepted / total.drafted if total.drafted else float("nan"),
        "target_forwards": int(total.target_forwards),
        "draft_forwards": int(total.draft_forwards),
        "preverify_share": total.preverify_s / total.wall_s,
    }


def _speedup(frame: pd.DataFrame, baseline: pd.DataFrame) -> dict:
    s = speedup(frame, baseline)
    return {"speedup": s.value, "speedup_low": s.low, "speedup_high": s.high}


def render(table: pd.DataFrame, costs: Costs) -> str:
    """The table in Markdown; `notes` says what it shows."""
    several_pairs = table.pair.nunique() > 1
    rows = [
        {
            **({"pair": row.pair} if several_pairs else {}),
            "task": row.task,
            "method": row.method,
            "settings": row.settings,
            "decode tok/s"
            if costs.unit == "s"
            else "tok/cost": f"{row.decode_tokens_per_s:.{1 + (costs.unit != 's')}f}",
            "speedup [95 %]": _interval(row),
            "tok/pass": f"{row.tokens_per_target_forward:.2f}",
            "accepted": _percent(row.acceptance_rate),
            "target": row.target_forwards,
            "draft": row.draft_forwards,
            "preverify": f"{100 * row.preverify_share:.1f} %",
            "of oracle's gain": _percent(row.oracle_share) if row.method != "ar" else "–",
        }
        for row in table.itertuples()
    ]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True, missingval="")


def notes(table: pd.DataFrame, costs: Costs) -> str:
    """Definitions, and what the numbers of a table were made from."""
    counts = ", ".join(f"{task} {group.samples.iloc[0]}" for task, group in table.groupby("task", sort=False))
    about = costs.about.get("environment", {})
    machine = ", ".join(str(about[key]) for key in ("gpu", "cpu", "machine") if about.get(key))
    threads = f", {about['threads']} threads" if about.get("threads") else ""
    speed = "decode tok/s" if costs.unit == "s" else "tok/cost: tokens per cost of a target pass. tok/s"
    owner = costs.about.get("pair")
    foreign = owner is not None and any(table.pair != owner)
    return "\n".join(
        (
            *([f"Note: these costs were measured for the pair {owner}."] if foreign else []),
            "Replay of recorded drafts, greedy, decoding only: prefill is left out of times and speedups.",
            f"{speed} and speedup follow from counted steps and the costs '{costs.name}' (a draft pass costs "
            f"{costs.ratio:.3g} target passes)" + (f", measured on {machine}{threads}." if machine else "."),
            "tok/pass: tokens per target pass. accepted: of those drafted. target, draft: passes after prefill.",
            "preverify: the policy's questions, of decode time. Intervals: paired bootstrap over samples.",
            f"{BEST_FIXED}: the fastest fixed draft length on these very samples.",
            f"{ORACLE}: on each step the draft length with the most progress per cost, in hindsight.",
            "of oracle's gain: (speedup - best fixed) / (oracle - best fixed); its drafts have no phrases.",
            f"Samples: {counts}; {', '.join(table.split.unique())} split.",
        )
    )


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{100 * share:.0f} %"


def _interval(row) -> str:
    if row.method == "ar":
        return "1"
    if np.isnan(row.speedup_low):
        return f"{row.speedup:.2f} (1 sample)"
    return f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"
