"""What hindsight could reach: the oracle, an upper bound, and every fixed draft length."""

import numpy as np

from bench.costs import Costs
from bench.replay import Replayed, TraceSet, replay_set
from bench.traces import Trace
from methods import get_method


def oracle(trace: Trace, costs: Costs, max_new_tokens: int) -> Replayed:
    """The steps of a policy that knows what verification will accept (DESIGN §3): each drafts the length k, of 0 to
    the accepted length of its rollout, with the most progress per cost, (k + 1) / (a target pass over k + 1 tokens +
    k draft passes + overhead), the shortest of equals. It wastes no draft and asks no questions.

    Progress ends with the output, and a draft with the rollout and the length limit, as for every other policy. Each
    step is chosen by itself; where costs are straight lines in k and a target pass costs more than a draft pass, no
    other choice of steps is faster.
    """
    end = min(trace.new_tokens, max_new_tokens)
    best = _best_lengths(trace, costs, end, max_new_tokens)
    out = Replayed(trace.sample_id, trace.prompt_tokens, True, False, [], [], [], [], [], [])
    start = 0
    while start < end:
        k = int(best[start])
        out.start.append(start)
        for values in (out.drafted, out.accepted, out.draft_forwards):
            values.append(k)
        out.emitted.append(min(k + 1, end - start))
        out.asked.append(0)
        start += k + 1
    return out


def _best_lengths(trace: Trace, costs: Costs, end: int, max_new_tokens: int) -> np.ndarray:
    """The draft length with the most progress per cost at each position: (end,)."""
    start, k = np.arange(end)[:, None], np.arange(trace.tokens.shape[1] + 1)
    context = trace.prompt_tokens + start
    cost = costs.target(k + 1, context) + k * costs.draft(context) + costs.overhead_s
    rate = np.minimum(k + 1, end - start) / cost
    longest = np.minimum(trace.accepted.numpy()[:end, None], max_new_tokens - start - 1)
    return np.where(k <= longest, rate, -1).argmax(1)


def oracle_set(traces: TraceSet, costs: Costs) -> list[Replayed]:
    """`oracle` over all traces of a set."""
    return [oracle(trace, costs, traces.max_new_tokens) for trace in traces.traces]


def fixed_sets(traces: TraceSet) -> dict[int, list[Replayed]]:
    """Replays of `sd` with each draft length gamma, of 1 to the rollouts' length."""
    return {gamma: replay_set(get_method("sd", {"gamma": gamma}), traces) for gamma in range(1, traces.rollout + 1)}


def tokens_per_s(replays: list[Replayed], costs: Costs) -> float:
    """Decoded tokens per second of all samples together (per target pass, where that is the unit of the costs)."""
    return sum(r.new_tokens for r in replays) / sum(costs.seconds(r).decode_s for r in replays)
