"""The speed of the engine against a yardstick that the project's own code cannot change."""

import inspect
from collections.abc import Sequence

import pandas as pd
import torch
from transformers import DynamicCache, PreTrainedModel

from bench.loading import Pair
from methods import Decoder, Sampling, StopRule
from methods.timer import synchronised_clock

_PASSES = 8  # of each kind in a round, on each prompt
ROUNDS = 6


def engine_speed(pair: Pair, plain: PreTrainedModel, prompts: Sequence[Sequence[int]], rounds: int) -> pd.DataFrame:
    """Seconds per pass of `ar` in this project's loop (`engine_s`), and of a greedy loop over `plain`, the same weights
    in a model of its own with `transformers`' DynamicCache (`reference_s`). A row per round and prompt, in which the
    two take turns at going first; a round before them warms up."""
    decoder = Decoder(pair.target, None, Sampling())
    rows = []
    for number in range(rounds + 1):
        for place, prompt in enumerate(prompts):
            ways = {"engine_s": lambda: _ours(decoder, prompt), "reference_s": lambda: _theirs(plain, prompt)}
            names = list(ways) if (number + place) % 2 else list(reversed(ways))
            row = {name: ways[name]() for name in names}
            if number:
                rows.append(row)
    return pd.DataFrame(rows, columns=["engine_s", "reference_s"])


def _ours(decoder: Decoder, prompt: Sequence[int]) -> float:
    out = decoder.decode(list(prompt), StopRule(_PASSES), None)
    return out.decode_s / out.target_forwards


@torch.inference_mode()
def _theirs(model: PreTrainedModel, prompt: Sequence[int]) -> float:
    # `transformers` renamed the argument in 5.2x and warns about the old name.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    options = {name: DynamicCache(config=model.config), "use_cache": True, "logits_to_keep": 1}
    ids = torch.tensor([list(prompt)], device=model.device)
    model(input_ids=ids[:, :-1], **options)
    token = ids[:, -1:]
    start = synchronised_clock(model.device)
    for _ in range(_PASSES):
        logits = model(input_ids=token, **options).logits
        token = torch.tensor([[logits[0, -1].argmax().item()]], device=model.device)
    return (synchronised_clock(model.device) - start) / _PASSES
