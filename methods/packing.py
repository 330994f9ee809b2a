"""Faster matrix products and attention on CPU, without another model implementation.

Decoding is bound by reading weights. `torch.nn.Linear` on CPU calls a BLAS that reads them at a fraction of the
memory bandwidth when the input has 2 to 16 rows, which is what verification does. oneDNN with weights reordered once
("packed") comes close to it, so that verifying a draft costs little more than one token, as on a GPU.
"""

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# One packed layout serves all batch sizes; a layout packed for few rows is pathologically slow for others.
_LAYOUT_ROWS = 8
_GROUPED_SDPA = "grouped_sdpa"


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on CPU, its weight held in oneDNN's blocked layout."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _LAYOUT_ROWS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., rows, in_features) -> (..., rows, out_features)."""
        if x.ndim > 1 and x.shape[-2] == 2:  # oneDNN multiplies two rows a sixth slower than one or four
            return self._multiply(nn.functional.pad(x, (0, 0, 0, 2)))[..., :2, :]
        return self._multiply(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16; without them oneDNN packs none, and float32 is faster."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def can_pack(linear: nn.Module) -> bool:
    return (
        type(linear) is nn.Linear
        and linear.weight.device.type == "cpu"
        and (linear.weight.dtype == torch.float32 or linear.weight.dtype == torch.bfloat16 and multiplies_bfloat16())
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack_linears(model: nn.Module) -> nn.Module:
    """Replaces, in place, every CPU `nn.Linear` by a `PackedLinear`; leaves others, and models spread over devices
    whose hooks move weights about, alone. Idempotent."""
    if getattr(model, "hf_device_map", None):
        return model
    for module in list(model.modules()):
        for name, child in module.named_children():
            if can_pack(child):
                setattr(module, name, PackedLinear(child))
    return model


def grouped_sdpa(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **kwargs):
    """Scaled-dot-product attention that never copies the KV cache for grouped-query models.

    `transformers` repeats keys and values once per query head whenever there is a mask: a copy of the whole cache per
    layer and step. Here the heads that share a key are folded into the query's rows instead; whatever a model asks for
    beyond that (a position bias, a mask per head) is left to `transformers`.
    Shapes: query (1, heads, k, d), key and value (1, kv_heads, n, d), mask (1, 1, k, n) or None -> (1, k, heads, d).
    """
    batch, heads, rows, dim = query.shape
    group = heads // key.shape[1]
    unusual = any(kwargs.get(name) is not None for name in ("position_bias", "softcap", "s_aux"))
    if unusual or (attention_mask is not None and attention_mask.shape[1] != 1):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **kwargs
        )
    causal = attention_mask is None and rows > 1
    if causal and group > 1:  # a prefill: no cache to copy yet, and the causal kernel needs one row per token
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    elif group > 1:
        query = query.reshape(batch, heads // group, group * rows, dim)
        attention_mask = None if attention_mask is None else attention_mask.repeat(1, 1, group, 1)
    out = nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, is_causal=causal, scale=scaling)
    return out.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(_GROUPED_SDPA, grouped_sdpa)
AttentionMaskInterface.register(_GROUPED_SDPA, sdpa_mask)


def use_grouped_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Switches a model that uses `sdpa` to `grouped_sdpa`; leaves others (eager, flash) as they are."""
    if getattr(model.config, "_attn_implementation", None) == "sdpa":
        model.set_attn_implementation(_GROUPED_SDPA)
    return model
