"""Whether a widened model takes the time of a random one of its configuration: python -m bench.standin.same_cost --shape 1b"""

import argparse
import sys

import numpy as np
import torch
from transformers import LlamaForCausalLM

from bench.errors import BenchError, answer_mistakes
from bench.models import load_model
from bench.pairs import DEFAULT_PAIR, DTYPES, find_pair, place
from bench.standin import shapes, widen
from bench.stats import interval, resampled
from methods import Engine
from methods.settings import nearest
from methods.timer import synchronised_clock

_CONTEXT, _SIZES = 128, (1, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="1b", help="of bench/standin/shapes.toml (default: 1b)")
    parser.add_argument("--rounds", type=int, default=30, help="passes of each kind, 2 or more (default: 30)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    if args.shape not in shapes():
        raise BenchError(f"unknown shape '{args.shape}'{nearest(args.shape, shapes())}")
    if args.rounds < 2:
        raise BenchError(f"--rounds {args.rounds}: use 2 or more")
    placement = place(args.device, args.dtype)
    small = load_model(find_pair(DEFAULT_PAIR).target, placement, DTYPES[placement.dtype])
    wide = widen(small, shapes()[args.shape], device=placement.device)
    with torch.device(placement.device):
        other = LlamaForCausalLM(wide.config).to(wide.dtype).eval()
    engines = Engine(wide), Engine(other)
    print(f"{args.shape}, {placement.dtype}, {placement.device}: time of a pass, widened / random [95 %]")
    for size in _SIZES:
        print(f"{size} tokens: {_ratio(engines, size, args.rounds)}")


@torch.inference_mode()
def _ratio(engines: tuple[Engine, Engine], size: int, rounds: int) -> str:
    """ "0.998 [0.991, 1.006] (201 ms / 202 ms)": medians of interleaved passes."""
    tokens = torch.arange(_CONTEXT + size)
    for engine in engines:
        engine.reset(_CONTEXT + size)
        engine.prefill(tokens[:_CONTEXT])
    seconds = np.array([[_timed(engine, tokens[_CONTEXT:]) for engine in engines] for _ in range(rounds + 2)][2:])
    ours, theirs = seconds.T

    def statistic(a, b, axis=-1):
        return np.median(a, axis) / np.median(b, axis)

    low, high = interval(resampled((ours, theirs), statistic), rounds)
    middle = 1000 * np.median(seconds, 0)
    return f"{statistic(ours, theirs):.3f} [{low:.3f}, {high:.3f}] ({middle[0]:.0f} ms / {middle[1]:.0f} ms)"


def _timed(engine: Engine, tokens: torch.Tensor) -> float:
    start = synchronised_clock(engine.device)
    engine.forward(tokens)
    seconds = synchronised_clock(engine.device) - start
    engine.rollback(len(tokens))
    return seconds


if __name__ == "__main__":
    sys.exit(answer_mistakes(main))
