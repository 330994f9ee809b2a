"""A preallocated key/value cache for `transformers` models, with O(1) rollback.

`DynamicCache` concatenates, so every decoding step copies the whole cache; `StaticCache` hands attention the full
buffer, empty tail included. This layer writes in place and returns views of exactly the tokens it holds.
"""

import torch
from transformers import Cache, PretrainedConfig
from transformers.cache_utils import CacheLayerMixin


class RollbackLayer(CacheLayerMixin):
    """Keys and values of one attention layer: buffers of shape (1, kv_heads, capacity, head_dim).

    Sliding-window layers use it too: they keep the whole context and the attention mask applies the window, which
    is what makes a rollback across the window's edge exact.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocates on the device and in the dtype of the layer's first states, so `device_map` needs no extra care."""
        self.keys, self.values = (
            states.new_zeros((*states.shape[:2], self.capacity, states.shape[-1]))
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Appends (1, kv_heads, k, head_dim) states and returns views of everything held.

        Raises:
            IndexError: the buffer is full.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise IndexError(f"KV cache holds {self.capacity} tokens; {end} were needed")
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last `-tokens_to_remove` tokens (`transformers` passes a negative count)."""
        self.length -= abs(tokens_to_remove)

    def move(self, source: int, target: int, n: int) -> None:
        """Copies the states of n tokens from place `source` to place `target`; the two may overlap."""
        for states in (self.keys, self.values):
            states[:, :, target : target + n] = states[:, :, source : source + n].clone()

    def reset(self) -> None:
        self.length = 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


def rollback_cache(config: PretrainedConfig, capacity: int) -> Cache:
    """A `transformers` cache of one `RollbackLayer` per decoder layer, `capacity` tokens each (bytes are allocated on
    first use)."""
    decoder = config.get_text_config(decoder=True)
    return Cache(layers=[RollbackLayer(capacity) for _ in range(decoder.num_hidden_layers)])
