"""Function-preserving widening of a Llama model.

The small model's weights sit in the first dimensions of a larger one, whose residual stream is exactly zero in all
others. Whatever cannot reach the output is filled with random numbers, as products with zeros would not be timed
fairly by hardware that saves power on them.
"""

import copy
import math
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.standin.shape import Shape, fit, shape_of

_FILLER_STD = 0.02


@dataclass(frozen=True)
class Layout:
    """Where the small model lies in the large one.

    Attributes:
        layers: of each small layer, its place in the large model; the layers between add exactly zero.
        query_heads: of each small query head, its place.
        kv_sources: of each large key/value head, the small one that it copies, or -1 for filler.
        dims: of each dimension of a small head, its place; rotary pair j of d/2 becomes pair j*D/d of D/2.
    """

    layers: tuple[int, ...]
    query_heads: tuple[int, ...]
    kv_sources: tuple[int, ...]
    dims: tuple[int, ...]


def layout(small: Shape, large: Shape, layers: tuple[int, ...] | None = None) -> Layout:
    """The layout of a small model in a shape that `fit` returned; without `layers` its layers are spread evenly, the first
    and the last at the ends."""
    group, room = small.heads // small.kv_heads, large.heads // large.kv_heads
    copies = -(-group // room)
    queries, sources = [], [-1] * large.kv_heads
    for head in range(small.heads):
        kv, member = divmod(head, group)
        place = kv * copies + member // room
        sources[place] = kv
        queries.append(place * room + member % room)
    half, wide_half = small.head_dim // 2, large.head_dim // 2
    step = wide_half // half
    pairs = [pair * step for pair in range(half)]
    if layers is None:
        gaps = max(small.layers - 1, 1)
        layers = tuple(round(layer * (large.layers - 1) / gaps) for layer in range(small.layers))
    return Layout(layers, tuple(queries), tuple(sources), (*pairs, *(wide_half + pair for pair in pairs)))


@torch.no_grad()
def widen(
    small: LlamaForCausalLM,
    shape: Shape,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    layers: tuple[int, ...] | None = None,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A model of the given shape with the small model's function, built on `device` in `dtype` (default: the small model's).

    Its logits in the first columns, and its final hidden states in the first dimensions, are the small model's; further
    columns pad the vocabulary with noise. `layers` are the places of the small model's layers.

    Raises:
        BenchError: the small model does not fit into the shape.
    """
    rows = small.get_output_embeddings().out_features  # fewer than embeddings, where the head is reduced
    given = fit(small.config, shape)
    config = widened_config(small.config, given)
    plan = layout(shape_of(small.config), given, layers)
    large = _empty(config, torch.device(device), dtype or small.dtype)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in large.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, _FILLER_STD, generator=generator)
    _place_ends(small, large, rows)
    _place_frequencies(small.model.rotary_emb, large.model.rotary_emb, plan)
    sources = dict(zip(plan.layers, small.model.layers, strict=True))
    for place, layer in enumerate(large.model.layers):
        # Nothing of a layer reaches the residual stream but through these two.
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        if place in sources:
            _place_attention(sources[place].self_attn, layer.self_attn, plan)
            _place_mlp(sources[place].mlp, layer.mlp)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                _place_norm(getattr(sources[place], norm), getattr(layer, norm))
    large.generation_config = copy.deepcopy(small.generation_config)
    return large.eval()


def widened_config(small: LlamaConfig, shape: Shape) -> LlamaConfig:
    """The small model's config in another shape. Mean squares over more dimensions are smaller, and so is epsilon."""
    config = copy.deepcopy(small)
    config.hidden_size, config.intermediate_size = shape.hidden, shape.intermediate
    config.num_hidden_layers, config.vocab_size = shape.layers, shape.vocab
    config.num_attention_heads, config.num_key_value_heads = shape.heads, shape.kv_heads
    config.head_dim = shape.head_dim
    config.rms_norm_eps = small.rms_norm_eps * small.hidden_size / shape.hidden
    config.tie_word_embeddings = False
    return config


def _empty(config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """A model with uninitialised weights, never allocated in another precision or place."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(dtype).to_empty(device=device)
    # Buffers are not weights: they have been emptied, too, and are made again, in float32 as `transformers` makes them.
    with device:
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def _place_ends(small: LlamaForCausalLM, large: LlamaForCausalLM, rows: int) -> None:
    embedding = small.get_input_embeddings().weight
    wide = large.get_input_embeddings().weight
    wide[:, embedding.shape[1] :] = 0  # the residual stream starts as zero in the added dimensions
    wide[: embedding.shape[0], : embedding.shape[1]] = embedding
    large.lm_head.weight[:rows, : embedding.shape[1]] = small.get_output_embeddings().weight
    _place_norm(small.model.norm, large.model.norm)


def _place_frequencies(small, large, plan: Layout) -> None:
    """The same to the last bit: a power that is rounded otherwise turns by a visible angle far into the context."""
    for name in ("inv_freq", "original_inv_freq"):
        narrow, wide = getattr(small, name), getattr(large, name)
        wide[list(plan.dims[: len(narrow)])] = narrow.to(wide)


def _place_norm(small, large) -> None:
    width = len(small.weight)
    large.weight[:width] = small.weight * math.sqrt(width / len(large.weight))


def _place_attention(small, large, plan: Layout) -> None:
    """A head's added dimensions meet keys of zero and leave through columns of zero; an added head, through the latter."""
    dim, width = small.head_dim, small.q_proj.weight.shape[1]
    device = large.q_proj.weight.device
    dims = torch.tensor(plan.dims, device=device)
    # Attention divides by the root of the head dimension, which is now a larger one.
    scale = math.sqrt(large.head_dim / dim)
    for source, place in enumerate(plan.query_heads):
        narrow, wide = slice(source * dim, (source + 1) * dim), dims + place * large.head_dim
        large.q_proj.weight[wide, :width] = (small.q_proj.weight[narrow] * scale).to(large.q_proj.weight)
        columns = small.o_proj.weight[:, narrow].to(large.o_proj.weight)
        large.o_proj.weight[:width].index_copy_(1, wide, columns)
    for place, source in enumerate(plan.kv_sources):
        if source < 0:
            continue
        narrow, wide = slice(source * dim, (source + 1) * dim), dims + place * large.head_dim
        large.k_proj.weight[place * large.head_dim : (place + 1) * large.head_dim] = 0
        large.k_proj.weight[wide, :width] = small.k_proj.weight[narrow].to(large.k_proj.weight)
        large.v_proj.weight[wide, :width] = small.v_proj.weight[narrow].to(large.v_proj.weight)


def _place_mlp(small, large) -> None:
    inner, width = small.gate_proj.weight.shape
    large.gate_proj.weight[:inner, :width] = small.gate_proj.weight
    large.up_proj.weight[:inner, :width] = small.up_proj.weight
    large.down_proj.weight[:width, :inner] = small.down_proj.weight
