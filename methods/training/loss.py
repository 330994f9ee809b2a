"""The distillation loss over a reduced vocabulary, computed in chunks so that no large logit matrix is ever kept.

Loss of one position: cross-entropy of the draft against a mixture of the target's distribution, renormalised over the
reduced vocabulary, and of the target's own most likely token. The first part is KL divergence up to a constant
(Hinton et al. 2015); the second is what greedy acceptance asks for. As the head is frozen, the gradient with
respect to the hidden states is all that is needed, and it is known as soon as the logits are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 512  # positions: logits of a chunk stay in the processor's cache


@dataclass(frozen=True)
class HeadLoss:
    """loss: mean over positions, in nats. agreement: share of positions where both argmaxes are the same."""

    loss: Tensor
    agreement: float


class _ChunkedHeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, student: Tensor, teacher: Tensor, head: Tensor, argmax_share: float) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(student)
        loss = torch.zeros((), dtype=torch.float32, device=student.device)
        agreed = torch.zeros((), dtype=torch.long, device=student.device)
        for start in range(0, len(student), CHUNK):
            rows = slice(start, start + CHUNK)
            goal = torch.softmax((teacher[rows] @ head.T).float(), dim=-1)
            best = goal.argmax(-1, keepdim=True)
            goal.mul_(1 - argmax_share).scatter_add_(1, best, torch.full_like(best, argmax_share, dtype=goal.dtype))
            log_q = torch.log_softmax((student[rows] @ head.T).float(), dim=-1)
            agreed += (log_q.argmax(-1, keepdim=True) == best).sum()
            loss -= torch.dot(goal.view(-1), log_q.view(-1))
            gradient[rows] = (log_q.exp_().sub_(goal)).to(head.dtype) @ head
        count = max(1, len(student))
        ctx.save_for_backward(gradient.div_(count))
        ctx.mark_non_differentiable(agreed)
        return loss / count, agreed

    @staticmethod
    def backward(ctx, loss_gradient: Tensor, _agreed) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * loss_gradient.to(gradient.dtype), None, None, None


def head_loss(student: Tensor, teacher: Tensor, head: Tensor, argmax_share: float) -> HeadLoss:
    """Loss of hidden states `student` (n, width) against the target's, `teacher` (n, width).

    `head` (draft vocabulary, width) holds the target's rows of the reduced vocabulary; `argmax_share` in [0, 1] is the
    weight of the target's most likely token against its whole distribution. A mean over no position is 0.
    """
    loss, agreed = _ChunkedHeadLoss.apply(student, teacher, head, argmax_share)
    return HeadLoss(loss, float(agreed) / max(1, len(student)))


def counted_positions(ids: Tensor, mask: Tensor, in_vocabulary: Tensor) -> Tensor:
    """Which positions of (rows, n) the loss is taken at: those of `mask` whose next token the draft can say at all.

    `ids` (rows, n + 1) and `in_vocabulary` (vocab,) bool. Where the target went on with a token outside the reduced
    vocabulary the draft will be rejected whatever it says, so nothing is to be learnt there.
    """
    return mask & in_vocabulary[ids[:, 1:]]
