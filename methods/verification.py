"""Which draft tokens the target accepts, and the token it adds. The only implementation; every method uses it."""

from dataclasses import dataclass

import torch

from methods.draft import Draft
from methods.sampling import Sampling, draw


@dataclass(frozen=True)
class Verdict:
    """`accepted` draft tokens, then `next_token`: the correction, or the bonus token when all were accepted.
    `tokens` are the draft's, on the host."""

    tokens: tuple[int, ...]
    accepted: int
    next_token: int


def verify(logits: torch.Tensor, draft: Draft | None, sampling: Sampling, generator: torch.Generator) -> Verdict:
    """Verifies a draft of k tokens (k may be 0: plain autoregressive decoding).

    Args:
        logits: (k + 1, vocab) the target's, for the position of each draft token and the one after.

    Greedy: the longest prefix that equals the target's argmax. Sampling: speculative sampling (Leviathan et al. 2023,
    algorithm 1; Chen et al. 2023), whose output distribution is exactly the target's. One transfer to the host.
    """
    tokens = logits.new_empty(0, dtype=torch.long) if draft is None else draft.tokens[: draft.length].to(logits.device)
    if sampling.greedy:
        accepted, next_token = _greedy(logits, tokens)
    else:
        accepted, next_token = _rejection(sampling.distribution(logits), draft, tokens, generator)
    accepted, next_token, *tokens = torch.cat([accepted, next_token, tokens]).tolist()
    return Verdict(tuple(tokens), accepted, next_token)


def count_leading(accept: torch.Tensor) -> torch.Tensor:
    """accept (..., k) of bool -> (..., 1) how many of the first are true without a gap."""
    return accept.long().cumprod(-1).sum(-1, keepdim=True)


def count_accepted(best: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Greedy verification: the target's argmax (..., k) and the draft tokens (..., k) in those places -> (..., 1)."""
    return count_leading(best == tokens)


def _greedy(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best = logits.argmax(-1)
    accepted = count_accepted(best[:-1], tokens)
    return accepted, best[accepted]


def acceptance_probabilities(logits: torch.Tensor, draft: Draft, sampling: Sampling) -> torch.Tensor:
    """min(1, p_i(d_i) / q_i(d_i)) of each draft token (k,), from the target's logits (at least k, vocab): the chance
    that it is accepted when those before it were."""
    tokens = draft.tokens[: draft.length].to(logits.device)
    p = sampling.distribution(logits[: draft.length]).gather(1, tokens[:, None])[:, 0]
    return (p / draft.confidence[: draft.length].to(p.device)).clamp(max=1)


def _rejection(p: torch.Tensor, draft: Draft | None, tokens: torch.Tensor, generator: torch.Generator):
    if draft is None or draft.length == 0:
        return tokens.new_zeros(1), draw(p[:1], generator)
    k = draft.length
    p_of_tokens = p[:k].gather(1, tokens[:, None])[:, 0]
    q_of_tokens = draft.confidence[:k].to(p.device)
    uniform = torch.rand(k, dtype=p.dtype, device=p.device, generator=generator)
    # u < p/q, written without the division: q is positive, as the token was drawn from it.
    accepted = count_leading(uniform * q_of_tokens < p_of_tokens)
    p_next = p.index_select(0, accepted)[0]
    q_next = draft.distribution(accepted.to(draft.probs.device), len(p_next)).to(p.device)
    residual = (p_next - q_next).clamp(min=0)
    # Rounding can leave nothing when p and q are equal up to the last bit; then p is the residual, to that precision.
    residual = torch.where(residual.sum() > 0, residual, p_next)
    return accepted, draw(residual[None], generator)
