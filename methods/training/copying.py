"""A layer that copies, built in closed form: on top of a student, induction heads that only need refining.

Summaries and code repeat their prompt: after "A B ... A" the next token is often B. A target does this with induction
heads (Olsson et al. 2022, arXiv 2209.11895) in its middle layers, which a student made of the first layers lacks, and
which take far more tokens to emerge than a student is trained for. The first layers do write each token's predecessor
into the residual stream, so the rest can be solved for:

  key of position j    what the stream says of token j - 1, in the directions it says it best (canonical correlations)
  query of position i  token i in the same directions, so that it matches where token i has occurred before
  value of position j  token j, written so that the bridge and the head turn it into token j's logit

Matching must not depend on distance, so keys and queries use only the slowest of the rotary frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from methods.errors import MethodError
from methods.training.batches import Batch
from methods.training.student import Student, build_student

SLOW_SHARE = 0.4  # of the rotary frequencies: at base 100 000 they turn by less than 1.5 rad over 1 000 tokens
MATCH_LOGIT = 16.0  # of a perfect match; chance matches spread by a few units around 0
SHARPNESS = (0.8, 1.0, 1.25)  # of the heads that share a key, in turns
WRITE_SHARE = 0.04  # of the residual stream's norm that the layer writes at first: enough for gradients to flow
MAX_POSITIONS = 60_000


@dataclass(frozen=True)
class _Stream:
    """The normalised residual stream (n, width) that enters the new layer, and the tokens (n,) there and just before."""

    states: Tensor
    current: Tensor
    previous: Tensor


def with_copying_layer(
    student: Student, target: PreTrainedModel, layers: Sequence[int], batches: Sequence[Batch]
) -> Student:
    """A new student: the layers of `student` (which began as `layers` of the target), then one that copies.

    The bridge must be fitted already. The new layer's feed-forward part starts at zero. Raises MethodError for an
    architecture without the usual projections and rotary embedding.
    """
    grown = build_student(target, [*layers, layers[-1]], student.bridge.dtype)
    own = grown.named_parameters()
    with torch.no_grad():
        for name, parameter in student.named_parameters().items():
            own[name].copy_(parameter)
        layer = grown.model.get_decoder().layers[-1]
        _silence(layer)
        stream = _stream(grown, layer, batches)
        table = _centred(target.get_input_embeddings().weight)
        _match(layer.self_attn, stream, table, _slow_dimensions(grown.model))
        _write(layer.self_attn, stream, _centred(target.get_output_embeddings().weight), grown)
    return grown


def _silence(layer: nn.Module) -> None:
    """Makes a layer pass its input on: nothing written by attention or feed-forward part, a plain norm before them."""
    attention = getattr(layer, "self_attn", None)
    if not all(hasattr(attention, f"{part}_proj") for part in "qkvo") or not hasattr(layer.mlp, "down_proj"):
        raise MethodError("a copying layer needs q, k, v, o and down projections: use --copying off")
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, layer.mlp.down_proj):
        projection.weight.zero_()
        if projection.bias is not None:
            projection.bias.zero_()
    layer.input_layernorm.weight.fill_(1.0)


def _stream(student: Student, layer: nn.Module, batches: Sequence[Batch]) -> _Stream:
    states, current, previous = [], [], []
    seen: list[Tensor] = []
    hook = layer.self_attn.q_proj.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    try:
        for batch in batches:
            student.model.get_decoder()(input_ids=batch.inputs, use_cache=False)
            mask = batch.mask[:, 1:]
            states.append(seen.pop()[:, 1:][mask].float())
            current.append(batch.inputs[:, 1:][mask])
            previous.append(batch.inputs[:, :-1][mask])
    finally:
        hook.remove()
    parts = [torch.cat(part)[:MAX_POSITIONS] for part in (states, current, previous)]
    return _Stream(parts[0].double(), *parts[1:])


def _centred(table: Tensor) -> Tensor:
    table = table.detach().double()
    return table - table.mean(0)


def _slow_dimensions(model: PreTrainedModel) -> list[int]:
    """Dimensions of a head that turn slowest with position: of each rotary pair (i, i + half), both."""
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    frequencies = getattr(rotary, "inv_freq", None)
    if frequencies is None:
        raise MethodError("a copying layer needs a rotary position embedding: use --copying off")
    half = len(frequencies)
    slow = frequencies.argsort()[: max(1, round(SLOW_SHARE * half))].tolist()
    return [*slow, *(i + half for i in slow)]


def _ridge(x: Tensor, y: Tensor, share: float = 1e-3) -> Tensor:
    """W (columns of x, columns of y) for which x @ W is nearest to y, with a penalty of this share of x's energy."""
    gram = x.T @ x
    penalty = share * gram.diagonal().mean() * torch.eye(len(gram), dtype=x.dtype, device=x.device)
    return torch.linalg.solve(gram + penalty, x.T @ y)


def _match(attention: nn.Module, stream: _Stream, table: Tensor, dimensions: list[int]) -> None:
    """Sets queries and keys: key-value head g matches in the g-th set of canonical directions."""
    x = stream.states
    before, here = table[stream.previous], table[stream.current]
    whiten = _inverse_root(before.T @ before / len(before))
    before, here = before @ whiten, here @ whiten
    from_before, from_here = _ridge(x, before), _ridge(x, here)
    fitted = x @ from_before
    share, directions = torch.linalg.eigh(fitted.T @ fitted / len(fitted))
    order = share.argsort(descending=True)
    share, directions = share[order].clamp(0, 1), directions[:, order]
    size = attention.head_dim
    groups = attention.k_proj.out_features // size
    heads_per_group = attention.q_proj.out_features // size // groups
    for group in range(groups):
        chosen = slice(group * len(dimensions), (group + 1) * len(dimensions))
        axes = directions[:, chosen]
        key, query = from_before @ axes, from_here @ axes
        matched = ((x @ query) * (here @ axes)).sum(1).mean() * share[chosen].mean()
        scale = (MATCH_LOGIT * size**0.5 / matched.clamp(min=1e-6)).sqrt()
        for column, dimension in enumerate(dimensions[: axes.shape[1]]):
            attention.k_proj.weight[group * size + dimension] = (key[:, column] * scale).to(attention.k_proj.weight)
            for head in range(heads_per_group):
                row = (group * heads_per_group + head) * size + dimension
                sharpened = query[:, column] * scale * SHARPNESS[head % len(SHARPNESS)]
                attention.q_proj.weight[row] = sharpened.to(attention.q_proj.weight)


def _inverse_root(covariance: Tensor) -> Tensor:
    """covariance^(-1/2), with a floor on what is divided by."""
    floor = 1e-4 * covariance.diagonal().mean()
    values, vectors = torch.linalg.eigh(covariance)
    return vectors @ torch.diag((values.clamp(min=0) + floor).rsqrt()) @ vectors.T


def _write(attention: nn.Module, stream: _Stream, head: Tensor, student: Student) -> None:
    """Sets values and output: the token at the position attended to, as a push of the residual stream to its logit.

    That push has as many dimensions as the layer has value dimensions; the heads of a group share theirs.
    """
    norm = student.model.get_decoder().norm.weight.double()
    push = (head @ student.bridge.detach().double()) * norm
    seen = torch.bincount(stream.current, minlength=len(head)).double()
    weighted = push * (seen + 0.05).sqrt()[:, None]  # unseen tokens count a little
    size, values = attention.head_dim, attention.v_proj.out_features
    _, axes = torch.linalg.eigh(weighted.T @ weighted)
    axes = axes.flip(1)[:, :values]
    goal = (push @ axes)[stream.current]
    attention.v_proj.weight[: axes.shape[1]] = _ridge(stream.states, goal).T.to(attention.v_proj.weight)
    heads = attention.o_proj.in_features // size
    per_group = heads // (values // size)
    # The stream before the norm has about the norm of its normalised form times its own scale, which is measured.
    strength = WRITE_SHARE * _stream_norm(student, stream) / goal.norm(dim=1).median()
    for index in range(heads):
        part = axes[:, index // per_group * size : (index // per_group + 1) * size]
        attention.o_proj.weight[:, index * size : index * size + part.shape[1]] = (part * strength / per_group).to(
            attention.o_proj.weight
        )


def _stream_norm(student: Student, stream: _Stream) -> Tensor:
    """Median norm of the residual stream that leaves the last layer, on some of the stream's tokens."""
    seen: list[Tensor] = []
    norm = student.model.get_decoder().norm
    hook = norm.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    try:
        student.model.get_decoder()(input_ids=stream.current[None, :512], use_cache=False)
    finally:
        hook.remove()
    return seen[0].double().norm(dim=-1).median()
