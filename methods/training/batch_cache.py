"""A key/value cache for generating with many rows at once: preallocated, written in place, rows can be dropped."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin


class BatchCacheLayer(CacheLayerMixin):
    """Keys and values (rows, kv_heads, columns, head_dim) of one layer.

    All rows write the same columns, so the prompts are padded on the left. `length` moves only when the owner says so,
    because a prefill in several row chunks writes the same columns more than once.
    """

    def __init__(self, rows: int, heads: int, columns: int, head_dim: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.keys = torch.empty(rows, heads, columns, head_dim, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.rows, self.length, self.is_initialized = slice(0, rows), 0, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the shapes are known from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Writes (rows, kv_heads, new, head_dim) after `length`; returns views of all columns so far."""
        stop = self.length + key_states.shape[-2]
        self.keys[self.rows, :, self.length : stop] = key_states
        self.values[self.rows, :, self.length : stop] = value_states
        return self.keys[self.rows, :, :stop], self.values[self.rows, :, :stop]

    def keep_rows(self, kept: Tensor) -> None:
        """Moves the rows `kept` (ascending indices) to the front and forgets the others."""
        for buffer in (self.keys, self.values):
            buffer[: len(kept), :, : self.length] = buffer[kept, :, : self.length]
        self.rows = slice(0, len(kept))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.keys.shape[-2]

    get_max_cache_shape = get_max_length  # the name in earlier releases of transformers


class BatchCache(Cache):
    """One `BatchCacheLayer` per layer of the model."""

    def __init__(self, config: PreTrainedConfig, rows: int, columns: int, dtype: torch.dtype, device: torch.device):
        heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        super().__init__(
            layers=[
                BatchCacheLayer(rows, heads, columns, head_dim, dtype, device) for _ in range(config.num_hidden_layers)
            ]
        )

    def select_rows(self, rows: slice) -> None:
        """The rows that the next forward passes write and read."""
        for layer in self.layers:
            layer.rows = rows

    def advance(self, columns: int) -> None:
        """Makes the last `columns` columns written part of the cache."""
        for layer in self.layers:
            layer.length += columns

    def keep_rows(self, kept: Tensor) -> None:
        """Drops all rows but `kept` (ascending indices into the present rows)."""
        for layer in self.layers:
            layer.keep_rows(kept)


def left_padded_mask(pads: Tensor, start: int, stop: int) -> Tensor:
    """Attention mask (rows, 1, stop - start, stop), true where a query in [start, stop) may look.

    `pads` (rows,) counts the padding on the left of each row. A padding position sees itself, as a softmax over nothing
    is not a number.
    """
    keys = torch.arange(stop, device=pads.device)
    queries = torch.arange(start, stop, device=pads.device)[:, None]
    causal = keys <= queries
    visible = keys[None, None, :] >= pads[:, None, None]
    return ((causal & visible) | (keys == queries))[:, None]
