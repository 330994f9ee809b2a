"""Teaching a layer's attention where to copy from: an auxiliary loss beside the distillation loss.

Whether a head looks at the right place shows in the output only once many other weights are right, so copying is
learnt late from the output alone. But where a copying head should look is known without any model: at a token that
equals the next one, in a place where the tokens before agree. This loss is the negative log of the attention that a
head gives to those places (an induction head's pattern; Olsson et al. 2022, arXiv 2209.11895).
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from methods.training.batches import Batch

MATCH = 2  # tokens that must agree before the place copied from
MAX_QUERIES = 512  # positions per batch: attention is recomputed for these only
TAUGHT_SHARE = 2 / 3  # of the key-value heads; the others stay free


class AttentionTap:
    """Keeps the queries and keys (rows, n, heads * head_dim) of the last layer, before rotation, of passes within `with`."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.attention: nn.Module = model.get_decoder().layers[-1].self_attn
        self.queries = self.keys = None

    def __enter__(self) -> Self:
        def keep(name: str):
            return lambda _module, _inputs, output: setattr(self, name, output)

        self._hooks = [
            self.attention.q_proj.register_forward_hook(keep("queries")),
            self.attention.k_proj.register_forward_hook(keep("keys")),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()


def copy_sources(ids: Tensor, queries: Tensor) -> Tensor:
    """Where to copy the next token from: (m, n) bool for ids (n + 1,) and positions `queries` (m,) below n.

    Place j is a source for position i when j <= i, token j is token i + 1, and the MATCH tokens before j are those up to i.
    """
    n = len(ids) - 1
    places = torch.arange(n, device=ids.device)
    sources = (ids[queries + 1, None] == ids[None, :n]) & (places <= queries[:, None])
    for back in range(MATCH):
        there, here = places - 1 - back, queries - back
        same = ids[here.clamp(min=0), None] == ids[None, there.clamp(min=0)]
        sources &= same & (there >= 0) & (here >= 0)[:, None]
    return sources


def copy_loss(tap: AttentionTap, batch: Batch, mask: Tensor) -> Tensor:
    """Mean over taught heads and positions of -log(attention given to the sources), in nats; 0 where nothing is copied.

    `mask` (rows, n) are the positions that count; of more than MAX_QUERIES every k-th is taken.
    """
    rows, positions = mask.nonzero(as_tuple=True)
    step = -(-len(rows) // MAX_QUERIES) or 1
    rows, positions = rows[::step], positions[::step]
    cos, sin = tap.model.get_decoder().rotary_emb(tap.keys, torch.arange(mask.shape[1], device=mask.device)[None])
    total, count = tap.keys.new_zeros((), dtype=torch.float32), 0
    for row in rows.unique().tolist():
        chosen = positions[rows == row]
        sources = copy_sources(batch.ids[row], chosen)
        found = sources.any(1)
        if found.any():
            weights = _attention(tap, row, chosen[found], cos[0], sin[0])
            total = total - weights.masked_fill(~sources[found], 0).sum(-1).clamp(min=1e-6).log().mean(0).sum()
            count += int(found.sum())
    return total / max(1, count)


def _attention(tap: AttentionTap, row: int, queries: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Attention (taught heads, m, n) of one row's positions `queries` (m,), in float32."""
    size = tap.attention.head_dim
    keys = tap.keys[row].unflatten(-1, (-1, size)).transpose(0, 1)
    groups = max(1, round(TAUGHT_SHARE * len(keys)))
    per_group = tap.attention.q_proj.out_features // size // len(keys)
    asked = tap.queries[row, queries].unflatten(-1, (-1, size)).transpose(0, 1)[: groups * per_group]
    asked = _rotate(asked, cos[queries], sin[queries]).unflatten(0, (groups, per_group))
    scores = (asked @ _rotate(keys[:groups], cos, sin)[:, None].mT).flatten(0, 1).float() * size**-0.5
    future = torch.arange(scores.shape[-1], device=scores.device) > queries[:, None]
    return scores.masked_fill(future, float("-inf")).softmax(-1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (heads, n, head_dim) in the layout of `transformers`' Llama (Su et al. 2021)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
