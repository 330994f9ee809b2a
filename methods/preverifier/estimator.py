"""Judging one draft while it grows: the layer block by block, with a cache of its own over the draft's earlier blocks.

At this size a tensor operation costs as much as the arithmetic in it, so the Transformer layer is written out here in
as few of them as possible, with constants folded into its weights. A test holds it to `PreVerifier.forward`.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from methods.draft import Draft
from methods.errors import MethodError
from methods.preverifier.layer import AttentionBlock, PreVerifier, log_confidence


class Estimator:
    """A layer's estimates for one draft at a time. Serves one sample; a block costs some thirty small tensor operations
    and one host sync. What the layer weighs when the estimator is made, it goes by."""

    def __init__(self, layer: PreVerifier, block: int):
        if block < 1:
            raise ValueError(f"a block has at least one token, not {block}")
        self.layer, self.block = layer, block
        self._config, self._seen = layer.config, 0
        with torch.no_grad():
            self._cached = CachedBlock(layer) if isinstance(layer.body, AttentionBlock) else None

    def begin(self) -> None:
        """A new draft: what the cache holds is forgotten."""
        self._seen = 0

    @torch.no_grad()
    def estimate(self, draft: Draft) -> list[float]:
        """Probability of acceptance, as `config.label` defines it, of each draft token added since the last call.

        Raises:
            MethodError: when the draft is longer than those that the layer was trained on.
        """
        start, end = self._seen, draft.length
        if end > self._config.positions:
            raise MethodError(
                f"the pre-verification layer judges drafts of up to {self._config.positions} tokens, not {end}: "
                "lower gamma_max, or collect longer rollouts and train it anew"
            )
        edges = [*range(start, end, self.block), end]
        logits = [self._judge(draft, i, j) for i, j in pairwise(edges)]
        self._seen = end
        if not logits:
            return []
        joined = logits[0] if len(logits) == 1 else torch.cat(logits)
        return torch.sigmoid(joined).flatten().tolist()

    def _judge(self, draft: Draft, i: int, j: int) -> Tensor:
        """Logits (j - i, 1) of the block of draft tokens i to j."""
        features = self._features(draft, i, j)
        if self._cached:
            return self._cached(features, i, j)
        return self.layer.head(self.layer.body(self.layer.embedded(features, slice(i, j))))

    def _features(self, draft: Draft, i: int, j: int) -> Tensor:
        """Inputs (j - i, features), not yet standardised."""
        inputs, confidence, entropy, log_product, tokens = self._config.inputs, None, None, None, None
        if "numbers" in inputs:
            confidence, entropy = draft.confidence[i:j], draft.entropy[i:j]
        if "product" in inputs:
            log_product = log_confidence(draft.confidence[:j]).cumsum(0)[i:]
        if "token" in inputs:
            tokens = self.layer.token_embedding[draft.tokens[i:j]]
        return self.layer.features(draft.hidden[i:j], confidence, entropy, log_product, tokens)


class CachedBlock:
    """Input projection, Transformer layer and head of a `PreVerifier`, over keys and values of the draft so far.

    A block sees all that the cache holds, that is itself and the blocks before it, so no mask is needed. Folded into
    the weights: the standardisation of the inputs, and the scale of the attention scores.
    """

    def __init__(self, layer: PreVerifier):
        body, width = layer.body, layer.config.width
        inverse = layer.scale.reciprocal()
        embed = layer.embed.weight * inverse
        self._embed = (layer.embed.bias - embed @ layer.center, embed.t())
        self._place = layer.place.weight if layer.place is not None else None
        scale = torch.ones_like(body.qkv.bias)
        scale[:width] = (width // body.heads) ** -0.5
        self._qkv = (body.qkv.bias * scale, (body.qkv.weight * scale[:, None]).t())
        norm, head = layer.head
        maps = (body.out, body.up, body.down, head)
        self._out, self._up, self._down, self._head = ((m.bias, m.weight.t()) for m in maps)
        self._norms = [((width,), n.weight, n.bias, n.eps) for n in (body.attention_norm, body.mlp_norm, norm)]
        self._width, self._heads = width, body.heads
        self._cache = layer.center.new_zeros(layer.config.positions, 2 * width)
        halves = self._cache.view(layer.config.positions, 2, body.heads, -1)
        self._keys, self._values = halves[:, 0].permute(1, 2, 0), halves[:, 1].transpose(0, 1)

    def __call__(self, features: Tensor, i: int, j: int) -> Tensor:
        """Logits (j - i, 1) from inputs (j - i, features) of the draft's tokens i to j."""
        x = _apply(self._embed, features)
        if self._place is not None:
            x = x + self._place[i:j]
        before_attention, before_mlp, before_head = self._norms
        qkv = _apply(self._qkv, functional.layer_norm(x, *before_attention))
        x = x + _apply(self._out, self._attend(qkv, i, j))
        inner = functional.silu(_apply(self._up, functional.layer_norm(x, *before_mlp)))
        x = x + _apply(self._down, inner)
        return _apply(self._head, functional.layer_norm(x, *before_head))

    def _attend(self, qkv: Tensor, i: int, j: int) -> Tensor:
        """Attention of the new tokens, qkv (j - i, 3 width), over the first j, themselves included: (j - i, width)."""
        width, heads = self._width, self._heads
        self._cache[i:j] = qkv[:, width:]
        queries = qkv[:, :width].view(j - i, heads, -1).transpose(0, 1)
        scores = torch.bmm(queries, self._keys[:, :, :j])
        mixed = torch.bmm(torch.softmax(scores, dim=-1), self._values[:, :j])
        return mixed.transpose(0, 1).reshape(j - i, width)


def _apply(affine: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """bias (out,) and weight (in, out), applied to x (n, in)."""
    return torch.addmm(affine[0], x, affine[1])
