"""The pre-verification layer: one small network that estimates which tokens of a draft the target will accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from methods.errors import MethodError

if TYPE_CHECKING:
    from methods.preverifier.estimator import Estimator

KINDS = ("transformer", "linear", "mlp")
INPUTS = ("hidden", "numbers", "product", "token")
LABELS = ("token", "next", "conditional")

# Confidence is read as log-odds; beyond these a draft model's probability says nothing more.
_SURE = 1e-5


@dataclass(frozen=True)
class LayerConfig:
    """What a layer reads, how it is built, and what its estimates mean.

    hidden: width of the draft's hidden states.
    kind: transformer (DESIGN §3, PACER's M_B) | linear (a probe) | mlp (the acceptance head of SpecDec++, arXiv 2405.19715:
        residual SiLU blocks on the hidden state).
    width, heads, mlp: of the transformer: its width, attention heads, and its feed-forward part as a multiple of the width.
    depth: residual blocks of the mlp (SpecDec++'s published head: 3).
    positions: longest draft it can judge, the rollout length that it was trained on.
    position: whether it knows each token's index in the draft.
    inputs: any of hidden | numbers (confidence and entropy) | product (of the draft's confidences so far, which attention,
        an average, is slow to learn) | token (the draft model's embedding of the token).
    label: what an estimate is the probability of. token: this token and all before it are accepted | next: every token of
        the next block is accepted | conditional: the token is accepted given that those before it were (SpecDec++).
    blocks: block sizes it was trained for.
    token_width: width of the draft's token embedding; 0 without it.
    """

    hidden: int
    kind: str = "transformer"
    width: int = 128
    heads: int = 4
    mlp: int = 4
    depth: int = 3
    positions: int = 16
    position: bool = True
    inputs: tuple[str, ...] = ("hidden", "numbers", "product")
    label: str = "token"
    blocks: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    token_width: int = 0

    def __post_init__(self):
        _choose("kind", [self.kind], KINDS)
        _choose("label", [self.label], LABELS)
        _choose("inputs", self.inputs, INPUTS)
        if self.kind == "transformer" and self.width % self.heads:
            raise MethodError(
                f"layer: width {self.width} is no multiple of its {self.heads} heads; change width or heads"
            )
        if not self.blocks or min(self.blocks) < 1:
            raise MethodError(f"layer: blocks {self.blocks} must be block sizes of at least 1; change blocks")
        if "token" in self.inputs and not self.token_width:
            raise MethodError("layer: input token needs the draft's token embedding; leave token out of inputs")

    @property
    def widths(self) -> list[int]:
        """Width of each of the inputs."""
        known = {"hidden": self.hidden, "numbers": 2, "product": 1, "token": self.token_width}
        return [known[name] for name in self.inputs]

    @property
    def features(self) -> int:
        """Width of all inputs together."""
        return sum(self.widths)


def _choose(name: str, values: Sequence[str], known: Sequence[str]) -> None:
    unknown = [v for v in values if v not in known]
    if unknown or not values:
        raise MethodError(f"layer: {name} {', '.join(map(str, unknown)) or 'empty'} is not one of {', '.join(known)}")


def block_causal_mask(step: Tensor, index: Tensor, block: int | Tensor) -> Tensor:
    """Who may look at whom in packed steps: (..., n, n), True where the query (second to last) may look at the key.

    `step` (..., n) says which draft a token belongs to, `index` (..., n) its place in it from 0. A token sees the tokens
    of its own draft, up to the end of its own block of `block` tokens: those are known when it is judged. `block` may
    be a tensor (..., 1) where packed sequences differ in it.
    """
    number = index // block
    same = step[..., :, None] == step[..., None, :]
    return same & (number[..., None, :] <= number[..., :, None])


def log_confidence(confidence: Tensor) -> Tensor:
    """log q(d), bounded for tokens that the draft thinks impossible."""
    return confidence.clamp(min=_SURE).log()


class AttentionBlock(nn.Module):
    """One pre-norm Transformer layer over packed drafts. Decoding goes through `estimator.CachedBlock` instead."""

    def __init__(self, width: int, heads: int, mlp: int):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, mlp * width), nn.Linear(mlp * width, width)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (..., n, width), mask (..., n, n) -> (..., n, width)."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (part.transpose(-2, -3) for part in qkv.unbind(-3))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(-3))
        x = x + self.dropout(self.out(mixed.transpose(-2, -3).flatten(-2)))
        return x + self.dropout(self.down(functional.silu(self.up(self.mlp_norm(x)))))


class ResidualBlocks(nn.Module):
    """SpecDec++'s acceptance head up to its last projection: each block adds SiLU of a linear map of itself. A token is
    judged alone, so the mask is not looked at. SpecDec++ reads the state after the token, which is known one draft pass
    later; this one reads the state that the token was drawn from, as all kinds here do."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = x + self.dropout(functional.silu(block(x)))
        return x


class Alone(nn.Module):
    """The linear probe has nothing between its input and its estimate."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


class PreVerifier(nn.Module):
    """The layer, for any `LayerConfig`. `token_embedding` (vocab, token_width) is the draft model's own and no part of
    the layer's weights: it comes with the draft.

    Inputs are standardised by `center` and `scale` (features,), which training measures.
    """

    def __init__(self, config: LayerConfig, token_embedding: Tensor | None = None):
        super().__init__()
        self.config = config
        width, embed, body, head = _parts(config)
        self.embed, self.body, self.head, self.thin = embed, body, head, nn.Dropout(0.0)
        self.place = nn.Embedding(config.positions, width) if config.position else None
        if self.place is not None:
            nn.init.normal_(self.place.weight, std=0.02)
        if config.kind == "linear":
            nn.init.zeros_(embed.weight)
        elif config.kind == "transformer":
            _balance(embed.weight, config.widths)
        self.register_buffer("center", torch.zeros(config.features))
        self.register_buffer("scale", torch.ones(config.features))
        table = None if token_embedding is None else token_embedding.detach()
        self.register_buffer("token_embedding", table, persistent=False)

    def features(
        self,
        hidden: Tensor,
        confidence: Tensor | None,
        entropy: Tensor | None,
        log_product: Tensor | None,
        tokens: Tensor | None,
    ) -> Tensor:
        """The inputs that the layer reads, side by side and not yet standardised: (..., n, features), in its precision.

        hidden (..., n, hidden); confidence, entropy and log_product (..., n); tokens (..., n, token_width). Those that
        it does not read may be None.
        """
        parts = []
        for name in self.config.inputs:
            if name == "hidden":
                parts.append(hidden)
            elif name == "token":
                parts.append(tokens)
            elif name == "product":
                parts.append(log_product.unsqueeze(-1))
            else:
                parts += [torch.logit(confidence, _SURE).unsqueeze(-1), entropy.unsqueeze(-1)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(self.center.dtype)

    def packed_features(
        self, hidden: Tensor, numbers: Tensor, tokens: Tensor | None, index: Tensor, mask: Tensor | None
    ) -> Tensor:
        """`features` of packed drafts; arguments as in `forward`."""
        confidence, entropy = numbers.unbind(-1)
        log_product = None
        if "product" in self.config.inputs:
            so_far = mask & (index[..., None, :] <= index[..., :, None])
            log_product = (so_far.to(confidence.dtype) @ log_confidence(confidence).unsqueeze(-1)).squeeze(-1)
        return self.features(hidden, confidence, entropy, log_product, tokens)

    def embedded(self, features: Tensor, index: Tensor | slice) -> Tensor:
        """Standardised, projected, and with their place in the draft: (..., n, features) -> (..., n, width)."""
        x = self.embed(self._thinned((features - self.center) / self.scale))
        return x if self.place is None else x + self.place.weight[index]

    def _thinned(self, features: Tensor) -> Tensor:
        """Dropout, in training only, of the wide inputs: they are what a small layer learns by heart."""
        if not (self.training and self.thin.p):
            return features
        parts = zip(self.config.inputs, features.split(self.config.widths, dim=-1), strict=True)
        return torch.cat([self.thin(part) if name in ("hidden", "token") else part for name, part in parts], dim=-1)

    def forward(
        self, hidden: Tensor, numbers: Tensor, tokens: Tensor | None, index: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Judges packed drafts; every argument may have leading dimensions.

        hidden (n, hidden). numbers (n, 2): confidence, and entropy in nats. tokens (n, token_width): embeddings, or None.
        index (n,): place in the draft from 0. mask (n, n): see `block_causal_mask`; only the transformer and input product
        need it.
        Returns logits (n,) of the acceptance that `config.label` names.
        """
        x = self.embedded(self.packed_features(hidden, numbers, tokens, index, mask), index)
        return self.head(self.body(x, mask)).squeeze(-1)

    def estimator(self, block: int) -> Estimator:
        """Judges one draft at a time while it grows in blocks of `block` tokens. Fresh for each sample."""
        from methods.preverifier.estimator import Estimator

        return Estimator(self, block)


@torch.no_grad()
def _balance(weight: Tensor, widths: Sequence[int]) -> None:
    """Initial weights (width, features) with which each input, however wide, sways the layer alike: else a few telling
    numbers drown in hundreds of hidden dimensions."""
    for part in weight.split(list(widths), dim=1):
        part.normal_(std=(part.shape[1] * len(widths)) ** -0.5)


def _parts(config: LayerConfig) -> tuple[int, nn.Module, nn.Module, nn.Module]:
    """Inner width, input projection, body and head."""
    if config.kind == "linear":
        return 1, nn.Linear(config.features, 1), Alone(), nn.Identity()
    if config.kind == "mlp":
        width = config.features
        return width, nn.Identity(), ResidualBlocks(width, config.depth), nn.Linear(width, 1)
    body = AttentionBlock(config.width, config.heads, config.mlp)
    head = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, 1))
    return config.width, nn.Linear(config.features, config.width), body, head
