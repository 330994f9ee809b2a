"""The likely cause of a lower speedup, from counts and from times in units of `ar`'s own pass."""

from dataclasses import dataclass

import pandas as pd

from bench.check.measured import Measured

LOSSY = "outputs differ from ar's: lossy verification"
_WORTH_NAMING = 0.4  # a second cause is named when it explains this share of the loss
_AR_FASTER = 0.05  # gain of ar over plain transformers that explains slower methods


@dataclass(frozen=True)
class Costs:
    """What a token of a method's output takes. Times are in passes of `ar` in the same run."""

    passes: float
    drafts: float
    pass_cost: float
    draft_cost: float
    preverify: float
    other: float
    prefill: float
    drafted: float
    acceptance: float


def costs(measured: Measured, task: str, method: str) -> Costs:
    """Counts and times per token of a method on a task."""
    own, ar = measured.per_sample(task, method).sum(), measured.per_sample(task, "ar").sum()
    unit = ar.decode_s / ar.target_forwards
    tokens = own.new_tokens
    return Costs(
        own.target_forwards / tokens,
        own.draft_forwards / tokens,
        own.verify_s / own.target_forwards / unit,
        _ratio(own.draft_s, own.draft_forwards) / unit,
        own.preverify_s / tokens / unit,
        own.other_s / tokens / unit,
        (own.wall_s - own.decode_s) / tokens / unit,
        _ratio(own.drafted, own.target_forwards),
        _ratio(own.accepted, own.drafted),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def cause_of_counts(before: pd.Series, after: pd.Series) -> str:
    """Why the totals of a method on a task (COUNTS, and the same samples) got worse; "" if they did not."""
    old, new = (_ratio(totals.accepted, totals.drafted) for totals in (before, after))
    length = [_ratio(totals.drafted, totals.target_forwards) for totals in (before, after)]
    wasted = [int(totals.drafted - totals.accepted) for totals in (before, after)]
    if _per_token(after, "target_forwards") > _per_token(before, "target_forwards"):
        if length[1] < length[0] and new >= old:
            return f"shorter drafts ({length[0]:.2f} → {length[1]:.2f} tokens per target pass)"
        return f"fewer accepted ({100 * old:.0f} % → {100 * new:.0f} % of drafted)"
    if _per_token(after, "draft_forwards") > _per_token(before, "draft_forwards"):
        return f"more drafts wasted ({wasted[0]} → {wasted[1]} tokens)"
    return ""


def _per_token(totals: pd.Series, name: str) -> float:
    return totals[name] / totals.new_tokens


def cause_of_time(before: Measured, after: Measured, task: str, method: str, engine_gain: float) -> str:
    """Which parts of a token's time grew most. The change of a product (passes times what one takes) is split between
    its two factors at their means, so that the parts add up to the whole. `engine_gain`: how much `ar` has gained on
    plain transformers for certain (the interval's lower bound less 1)."""
    old, new = costs(before, task, method), costs(after, task, method)
    parts = {
        f"fewer accepted ({1 / old.passes:.2f} → {1 / new.passes:.2f} tokens per target pass)": (
            new.passes - old.passes
        )
        * (old.pass_cost + new.pass_cost)
        / 2,
        f"more drafts wasted ({old.drafts:.2f} → {new.drafts:.2f} draft passes per token)": (new.drafts - old.drafts)
        * (old.draft_cost + new.draft_cost)
        / 2,
        f"slower draft passes ({old.draft_cost:.2f} → {new.draft_cost:.2f} of ar's pass)": (
            new.draft_cost - old.draft_cost
        )
        * (old.drafts + new.drafts)
        / 2,
        f"slower verification ({old.pass_cost:.2f} → {new.pass_cost:.2f} of ar's pass)": (new.pass_cost - old.pass_cost)
        * (old.passes + new.passes)
        / 2,
        f"more policy overhead ({old.preverify:.3f} → {new.preverify:.3f} of ar's pass per token)": new.preverify
        - old.preverify,
        f"more other overhead ({old.other:.3f} → {new.other:.3f} of ar's pass per token)": new.other - old.other,
        f"slower prefill ({old.prefill:.2f} → {new.prefill:.2f} of ar's passes per token)": new.prefill - old.prefill,
    }
    loss = sum(parts.values())
    first, second = sorted(parts, key=parts.__getitem__, reverse=True)[:2]
    named = [first, second] if parts[second] > _WORTH_NAMING * loss > 0 else [first]
    if engine_gain > _AR_FASTER:
        named.insert(0, f"ar became faster (its pass, over plain transformers, by {100 * engine_gain:.0f} % or more)")
    return "; ".join(named)
