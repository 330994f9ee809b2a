"""Whether sampled outputs are what the target's probabilities and the logged random numbers decide."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bench.audit.greedy import gap_to_best, noted
from bench.audit.readings import Output, read
from bench.audit.verdict import Place, Read
from methods import Engine, Sampling

_ROUNDING = 1e-5  # relative, of logged numbers: some are stored in float32
# That a logged number is farther from all three readings than these are from each other: of four alike, less than this.
_CHANCE = 1 / 3


@torch.inference_mode()
def read_sampled(
    engine: Engine, output: Output, steps: Sequence[Mapping[str, Any]], sampling: Sampling, key: dict
) -> Read:
    """Reads a sampled output again. `steps` are its rows of steps.parquet. Checks that the target gives every token a
    probability, that logged probabilities are the target's, and that acceptances and residual draws follow from them
    (Leviathan et al. 2023, algorithm 1)."""
    readings = read(engine, output)
    read_p = [sampling.distribution(logits) for logits in readings.all]
    places = [*_impossible(output, readings.single, read_p[0], sampling), *_decisions(output, steps)]
    logged, odd = [], 0
    for position, token, probability in _logged(output, steps):
        ours = [p[position, token].item() for p in read_p]
        differences = [sampling.temperature * _distance(probability, p) for p in ours]
        logged.append(Place(position, token, token, *differences[:2]))
        odd += min(differences) > sampling.temperature * _distance(min(ours), max(ours))
    return noted(readings, key, places, logged=logged, odd=odd, of=len(logged), chance=_CHANCE)


def _distance(a: float, b: float) -> float:
    """Between two probabilities, in logarithms; 0 where one is 0, which top-k and top-p make of any small one."""
    return abs(math.log(a / b)) if a > 0 and b > 0 else 0.0


def _impossible(output: Output, logits: torch.Tensor, p: torch.Tensor, sampling: Sampling) -> Iterator[Place]:
    """Tokens to which the target gives no probability, with how far its logits are from giving one."""
    tokens = torch.tensor(output.tokens, device=logits.device)
    for position in (p.gather(1, tokens[:, None])[:, 0] == 0).nonzero()[:, 0].tolist():
        token = output.tokens[position]
        gap = _ruled_out_by(logits[position].double(), token, sampling)
        yield Place(position, token, token, gap, gap)


def _ruled_out_by(logits: torch.Tensor, token: int, sampling: Sampling) -> float:
    """How far logits (vocab,) would have to move for top-k and top-p to let a token pass."""
    likelier, gaps = logits > logits[token], [0.0]
    if sampling.top_k:
        gaps.append((logits.topk(min(sampling.top_k, len(logits))).values[-1] - logits[token]).item())
    if sampling.top_p < 1:
        mass = (logits / sampling.temperature).softmax(-1)[likelier].sum().item()
        gaps.append(sampling.temperature * math.log(max(mass, sampling.top_p) / sampling.top_p))
    if not sampling.top_k and sampling.top_p == 1:
        gaps.append(gap_to_best(logits[None], torch.tensor([token], device=logits.device)).item())
    return max(gaps)


def _logged(output: Output, steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int, float]]:
    """Position, token and logged probability under the target of everything that was verified or drawn there."""
    at = 0
    for row in steps:
        if row["target_probability"] is not None:
            verified = zip(row["drafted_tokens"].tolist(), row["target_probability"].tolist(), strict=True)
            places = [(at + place, *pair) for place, pair in enumerate(verified) if place <= row["accepted"]]
            if row["accepted"] < row["emitted"]:
                position = at + row["accepted"]
                places.append((position, output.tokens[position], row["next_target_probability"]))
            yield from (place for place in places if place[0] < len(output.tokens))
        at += row["emitted"]


def _decisions(output: Output, steps: Sequence[Mapping[str, Any]]) -> Iterator[Place]:
    """Acceptances and residual draws that the logged numbers contradict."""
    at = 0
    for row in steps:
        if row["target_probability"] is not None:
            for place, fault in _faults(row):
                position = min(at + place, len(output.tokens) - 1)
                yield Place(position, output.tokens[position], output.tokens[position], 0.0, 0.0, fault)
        at += row["emitted"]


def _faults(row: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    accepted = row["accepted"]
    for place in range(min(accepted + 1, row["drafted"])):
        p, q, u = (float(row[name][place]) for name in ("target_probability", "confidence", "uniform"))
        if place < accepted and u * q > p * (1 + _ROUNDING):
            yield place, f"a draft token was accepted although {u:.4g} is above p/q = {p:.4g}/{q:.4g}"
        if place == accepted and u * q < p * (1 - _ROUNDING):
            yield place, f"a draft token was rejected although {u:.4g} is below p/q = {p:.4g}/{q:.4g}"
    p, q = row["next_target_probability"], row["next_draft_probability"]
    if not p > 0:
        yield accepted, "a token was drawn to which the target gives no probability"
    elif p < q * (1 - _ROUNDING):
        yield accepted, f"a token was drawn after a rejection that the residual rules out: p {p:.4g} is below q {q:.4g}"
