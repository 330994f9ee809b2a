"""The table of a replay: a row per task and method, with the two bounds that hindsight gives."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from tabulate import tabulate

from bench.stats import speedup
from bench.summary import interval, percent

BEST_FIXED, ORACLE = "best fixed", "oracle"


def replay_summary(rows: pd.DataFrame, methods: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """One line per pair, costs, split, task and method of rows of replay.parquet, names and definitions as in DESIGN §4; of the
    fixed draft lengths only the fastest, as `BEST_FIXED`. `methods`: pair -> task -> label -> its `about` text and
    whether it drafts `phrases`, which the oracle's drafts have not."""
    lines = []
    for key, group in rows.groupby(["pair", "costs", "ratio", "split", "task"], sort=False):
        named = dict(zip(("pair", "costs", "ratio", "split", "task"), key, strict=True))
        lines += _task_lines(group, (methods or {}).get(named["pair"], {}).get(named["task"], {}), named)
    return pd.DataFrame(lines)


def _task_lines(group: pd.DataFrame, about: Mapping[str, Any], key: dict) -> list[dict]:
    frames = {label: own for label, own in group[group.kind != "fixed"].groupby("method", sort=False)}
    best, fixed = fastest_fixed(group)
    order = ["ar", BEST_FIXED, *(label for label in frames if label not in ("ar", ORACLE)), ORACLE]
    frames[BEST_FIXED] = fixed
    lines = [
        {
            **key,
            "method": label,
            "settings": f"gamma={best}" if label == BEST_FIXED else about.get(label, {}).get("about", ""),
            **_numbers(frames[label]),
            **_speedup(frames[label], frames["ar"]),
        }
        for label in order
    ]
    bounds = {line["method"]: line["speedup"] for line in lines}
    gain = bounds[ORACLE] - bounds[BEST_FIXED]
    for line in lines:
        comparable = gain > 0 and not about.get(line["method"], {}).get("phrases", False)
        line["oracle_share"] = (line["speedup"] - bounds[BEST_FIXED]) / gain if comparable else float("nan")
    return lines


def fastest_fixed(group: pd.DataFrame) -> tuple[int, pd.DataFrame]:
    """The draft length gamma with which `sd` decodes the samples of one pair, task and costs fastest, and its rows."""
    frames = dict(list(group[group.kind == "fixed"].groupby("method", sort=False)))
    best = max(frames, key=lambda name: frames[name].new_tokens.sum() / frames[name].decode_s.sum())
    return int(best.rpartition("-")[2]), frames[best]


def _numbers(frame: pd.DataFrame) -> dict:
    total = frame[["new_tokens", "decode_s", "target_forwards", "accepted", "steps", "drafted"]].sum()
    return {
        "samples": len(frame),
        "new_tokens": int(total.new_tokens),
        "decode_tokens_per_s": total.new_tokens / total.decode_s,
        "tokens_per_target_forward": total.new_tokens / total.target_forwards,
        "accepted_per_step": total.accepted / total.steps,
        "acceptance_rate": total.accepted / total.drafted if total.drafted else float("nan"),
        "target_forwards": int(total.target_forwards),
        "draft_forwards": int(frame.draft_forwards.sum()),
        "preverify_share": frame.preverify_s.sum() / total.decode_s,
    }


def _speedup(frame: pd.DataFrame, baseline: pd.DataFrame) -> dict:
    s = speedup(frame.assign(wall_s=frame.decode_s), baseline.assign(wall_s=baseline.decode_s))
    return {"speedup": s.value, "speedup_low": s.low, "speedup_high": s.high}


def render(table: pd.DataFrame, unit: str) -> str:
    """The summary in Markdown; `notes` says what it shows."""
    several_pairs = table.pair.nunique() > 1
    rows = [
        {
            **({"pair": row.pair} if several_pairs else {}),
            "task": row.task,
            "method": row.method,
            "settings": row.settings,
            "decode tok/s" if unit == "s" else "tok/cost": f"{row.decode_tokens_per_s:.{1 + (unit != 's')}f}",
            "speedup [95 %]": interval(row),
            "tok/pass": f"{row.tokens_per_target_forward:.2f}",
            "accepted": percent(row.acceptance_rate),
            "target": row.target_forwards,
            "draft": row.draft_forwards,
            "preverify": percent(row.preverify_share, 1),
            "of oracle's gain": percent(row.oracle_share) if row.method != "ar" else "–",
        }
        for row in table.itertuples()
    ]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True, missingval="")


def notes(table: pd.DataFrame, costs: Mapping[str, Any]) -> str:
    """Definitions, and what the numbers of a table were made from; `costs` as in replay.json."""
    speed = "decode tok/s" if costs["unit"] == "s" else "tok/cost: tokens per cost of a target pass. tok/s"
    owner = costs["about"].get("pair")
    foreign = owner is not None and any(table.pair != owner)
    return "\n".join(
        (
            *([f"Note: these costs were measured for the pair {owner}."] if foreign else []),
            "Replay of recorded drafts, greedy, decoding only: prefill is left out of times and speedups.",
            f"{speed} and speedup follow from counted steps and {priced(costs)}.",
            "tok/pass: tokens per target pass. accepted: of those drafted. target, draft: passes after prefill.",
            "preverify: the policy's questions, of decode time. Intervals: paired bootstrap over samples.",
            f"{BEST_FIXED}: the fastest fixed draft length on these very samples.",
            f"{ORACLE}: on each step the draft length with the most progress per cost, in hindsight.",
            "of oracle's gain: (speedup - best fixed) / (oracle - best fixed); its drafts have no phrases.",
            samples(table),
        )
    )


def priced(costs: Mapping[str, Any]) -> str:
    """Which costs, and where they come from."""
    about = costs["about"].get("environment") or {}
    machine = ", ".join(str(about[key]) for key in ("gpu", "cpu", "machine") if about.get(key))
    threads = f", {about['threads']} threads" if about.get("threads") else ""
    scaled = " and scaled" if " @" in costs["name"] else ""
    return f"the costs '{costs['name']}' (a draft pass costs {costs['ratio']:.3g} target passes)" + (
        f", measured on {machine}{threads}{scaled}" if machine else ""
    )


def samples(table: pd.DataFrame) -> str:
    counts = ", ".join(f"{task} {group.samples.iloc[0]}" for task, group in table.groupby("task", sort=False))
    return f"Samples: {counts}; {', '.join(table.split.unique())} split."
