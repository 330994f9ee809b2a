"""Chat prompts that the target makes up itself: it writes the user's turn before it answers it.

A chat model was trained on both turns, so after the opening of a user's turn it continues with something users ask
(Xu et al. 2024, arXiv 2406.08464). That needs no data set and covers whatever the target knows.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from methods.training.generate import GenerationConfig, generate

_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands where the user's words will be


def user_opening(tokenizer: Any, beginning: str = "") -> list[int]:
    """Token ids of the chat template up to the user's first words, followed by `beginning`.

    Raises ValueError when the tokenizer's template does not contain the user's words as they are.
    """
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
    )
    before, mark, _ = text.partition(_MARK)
    if not mark:
        raise ValueError("the tokenizer's chat template hides the user's words")
    return list(tokenizer(before + beginning, add_special_tokens=False)["input_ids"])


def invent_instructions(
    target: nn.Module, tokenizer: Any, beginnings: list[str], end_ids: list[int], config: GenerationConfig
) -> list[str]:
    """One user message per beginning ("" for a free one), sampled from the target; cut-off and repeated ones are dropped.

    `config.temperature` should be near 1, or all of them are alike.
    """
    prompts = [user_opening(tokenizer, beginning) for beginning in beginnings]
    opening = len(user_opening(tokenizer))
    found: dict[str, None] = {}  # a set that keeps its order
    for batch in generate(target, prompts, end_ids, config):
        for sequence in batch:
            ids = sequence.ids.tolist()
            if ids[-1] in end_ids:
                text = tokenizer.decode(ids[opening:-1], skip_special_tokens=True).strip()
                if text:
                    found[text] = None
    return list(found)
