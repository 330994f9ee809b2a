"""Which draft tokens the target accepts, and the token it adds. The only implementation; every method uses it."""

from dataclasses import dataclass

import torch

from methods.draft import Draft
from methods.sampling import Sampling, draw
from methods.tree import follow


@dataclass(frozen=True)
class Draws:
    """What decided a sampled step, so that its decisions can be checked afterwards.

    `target_probability`, `uniform`: of each draft token, p_i(d_i) and the number in [0, 1) that p_i(d_i) / q_i(d_i) was
    compared with. `next_target_probability`, `next_draft_probability`: p and q of the token that the target put after the
    accepted ones; q is 0 after full acceptance.
    """

    target_probability: tuple[float, ...]
    uniform: tuple[float, ...]
    next_target_probability: float
    next_draft_probability: float


@dataclass(frozen=True)
class Verdict:
    """`accepted` draft tokens, then `phrase`, then `next_token`: the correction, or the bonus token when all were
    accepted.

    `tokens` are the draft's, on the host. `phrase`: the tokens that the target accepted of a candidate after the draft,
    which begins at `start`, counted over all candidates' tokens. `corrections`, after a rejection: `next_token`, and
    what the target finds likeliest after each further draft token, the rejected one first. `draws`: None when greedy.
    """

    tokens: tuple[int, ...]
    accepted: int
    next_token: int
    phrase: tuple[int, ...] = ()
    start: int = 0
    corrections: tuple[int, ...] = ()
    draws: Draws | None = None


def verify(logits: torch.Tensor, draft: Draft | None, sampling: Sampling, generator: torch.Generator) -> Verdict:
    """Verifies a draft of k tokens (k may be 0: plain autoregressive decoding), and the candidates after it, n tokens in
    all.

    Args:
        logits: (k + 1 + n, vocab) the target's: for the position of each draft token, the one after, and the one after
            each of the candidates' tokens.

    Greedy: the longest prefix that equals the target's argmax. Sampling: speculative sampling (Leviathan et al. 2023,
    algorithm 1; Chen et al. 2023), whose output distribution is exactly the target's. A phrase is a deterministic
    proposal, q = one-hot: it is accepted with probability p(x), and the residual after it is p without x. Candidates
    tried in turn that way are accepted each with the probability that p has for it, so the target's token is drawn once,
    and a candidate that goes on with it is followed.

    One transfer to the host; when sampling, one more for each token of a candidate that is accepted.
    """
    k, candidates = (draft.length, draft.candidates) if draft else (0, ())
    tokens = draft.tokens[:k].to(logits.device) if draft else logits.new_empty(0, dtype=torch.long)
    if sampling.greedy:
        best = logits.argmax(-1)
        accepted = count_accepted(best[:k], tokens)
        next_token = best[accepted]
        found, draws = torch.cat([accepted, next_token, tokens, best]).tolist(), None
    else:
        best = logits[: k + 1].argmax(-1)
        accepted, next_token, numbers = _rejection(sampling.distribution(logits[: k + 1]), draft, tokens, generator)
        # Token ids are exact in float64, so that one transfer takes them and the probabilities.
        *found, draws = _split(torch.cat([accepted, next_token, tokens, best, numbers.double()]).tolist(), 3 + 2 * k, k)
    accepted, next_token, *rest = found
    tokens, best = tuple(rest[:k]), rest[k:]
    if accepted < k:
        corrections = (next_token, *best[accepted + 1 : k + 1])
        return Verdict(tokens, accepted, next_token, corrections=corrections, draws=draws)

    def choose(place: int) -> int:
        """The target's token after one of the candidates'."""
        row = k + 1 + place
        if sampling.greedy:
            return best[row]
        return draw(sampling.distribution(logits[row : row + 1]), generator).item()

    followed = follow(candidates, next_token, choose)
    phrase = candidates[followed.branch][: followed.passed] if followed.passed else ()
    return Verdict(tokens, accepted, followed.next_token, phrase, followed.start, draws=draws)


def _split(numbers: list[float], ids: int, k: int) -> list:
    """Token ids and counts, then the `Draws` of the numbers behind them."""
    p, uniform, (p_next, q_next) = numbers[ids : ids + k], numbers[ids + k : ids + 2 * k], numbers[ids + 2 * k :]
    return [*map(int, numbers[:ids]), Draws(tuple(p), tuple(uniform), p_next, q_next)]


def count_leading(accept: torch.Tensor) -> torch.Tensor:
    """accept (..., k) of bool -> (..., 1) how many of the first are true without a gap."""
    return accept.long().cumprod(-1).sum(-1, keepdim=True)


def count_accepted(best: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Greedy verification: the target's argmax (..., k) and the draft tokens (..., k) in those places -> (..., 1)."""
    return count_leading(best == tokens)


def acceptance_probabilities(logits: torch.Tensor, draft: Draft, sampling: Sampling) -> torch.Tensor:
    """min(1, p_i(d_i) / q_i(d_i)) of each draft token (k,), from the target's logits (at least k, vocab): the chance
    that it is accepted when those before it were."""
    tokens = draft.tokens[: draft.length].to(logits.device)
    p = sampling.distribution(logits[: draft.length]).gather(1, tokens[:, None])[:, 0]
    return (p / draft.confidence[: draft.length].to(p.device)).clamp(max=1)


def _rejection(p: torch.Tensor, draft: Draft | None, tokens: torch.Tensor, generator: torch.Generator):
    """How many draft tokens are accepted (1,), the next token (1,), and the numbers of `Draws` in order (2k + 2,)."""
    if draft is None or draft.length == 0:
        next_token = draw(p[:1], generator)
        p_next = p[0, next_token]
        return tokens.new_zeros(1), next_token, torch.cat([p_next, torch.zeros_like(p_next)])
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
    next_token = draw(residual[None], generator)
    return accepted, next_token, torch.cat([p_of_tokens, uniform, p_next[next_token], q_next[next_token]])
