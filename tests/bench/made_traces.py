"""Traces made without collecting any: from tiny models by brute force, and from random numbers."""

import random

import numpy as np
import torch

from bench.replay import TraceSet
from bench.traces import Trace
from methods import Decoder, Engine, Sampling, StopRule
from methods.drafters import AutoregressiveDrafter


def brute_force_trace(target: Engine, draft: Engine, prompt: list[int], stop: StopRule, rollout: int) -> Trace:
    """Rolls the draft model out from every position of the target's greedy output, each from scratch. Numbers keep the
    models' precision."""
    output = Decoder(target, None, Sampling()).decode(prompt, StopRule(stop.max_new_tokens + rollout), None).tokens
    end, reason = stop.cut(output, 0)
    rows, hidden = [], []
    for j in range(end):
        text = prompt + output[:j]
        drafter = AutoregressiveDrafter(draft, Sampling())
        with torch.inference_mode():
            drafter.prefill(torch.tensor(text[:-1], dtype=torch.long), len(text) + rollout, rollout, seed=0)
            proposal = drafter.begin(text[-1:])
            drafter.extend(rollout)
        rows.append((proposal.tokens.tolist(), *proposal.numbers()))
        hidden.append(proposal.hidden.numpy().copy())
    return _trace("brute", output, end, reason, rows, np.concatenate(hidden), prompt)


def random_trace(seed: int, new_tokens: int = 128, rollout: int = 16, width: int = 8, split: str = "train") -> Trace:
    """A draft that is right at random, more often where its confidence is high."""
    rng = random.Random(seed)
    total = new_tokens + 2 * rollout
    output = [rng.randrange(100) for _ in range(total)]
    confidence = [rng.betavariate(2, 0.7) for _ in range(total)]
    right = [rng.random() < c for c in confidence]
    rows = []
    for j in range(new_tokens):
        span = range(j, j + rollout)
        rows.append(
            (
                [output[i] if right[i] else 100 + output[i] for i in span],
                [confidence[i] for i in span],
                [3 * (1 - confidence[i]) for i in span],
            )
        )
    hidden = np.random.default_rng(seed).standard_normal((new_tokens * rollout, width)).astype(np.float16)
    return _trace(f"s{seed}", output, new_tokens, "length", rows, hidden, [0] * rng.randrange(20, 300), split)


def _trace(name, output, end, reason, rows, hidden, prompt, split="train") -> Trace:
    tokens, confidence, entropy = zip(*rows, strict=True)
    accepted = [next((i for i, t in enumerate(row) if t != output[j + i]), len(row)) for j, row in enumerate(tokens)]
    precise = torch.float64 if hidden.dtype == np.float64 else torch.float32
    return Trace(
        pair="tiny",
        task="gsm8k",
        split=split,
        sample_id=name,
        prompt_tokens=len(prompt),
        output=output,
        new_tokens=end,
        finish_reason=reason,
        tokens=torch.tensor(tokens),
        confidence=torch.tensor(confidence, dtype=precise),
        entropy=torch.tensor(entropy, dtype=precise),
        accepted=torch.tensor(accepted),
        node=torch.arange(end * len(tokens[0])).reshape(end, -1),
        hidden=hidden,
        positions=torch.arange(end),
        last_prompt_token=prompt[-1],
    )


def random_set(samples: int = 6, task: str = "gsm8k", split: str = "train", seed: int = 0, **options) -> TraceSet:
    """A set of random traces, which end at the length limit."""
    traces = [random_trace(1000 * seed + i, split=split, **options) for i in range(samples)]
    return TraceSet("tiny", task, split, traces[0].new_tokens, traces[0].tokens.shape[1], traces)
