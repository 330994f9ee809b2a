"""Measuring the costs of a loaded pair."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from tqdm import tqdm

from bench.costs import Costs
from bench.environment import environment
from bench.errors import BenchError
from bench.loading import Pair
from methods import Decoder, Sampling, StopRule, get_method
from methods.draft import Phrases
from methods.drafters import AutoregressiveDrafter
from methods.phrases.drafter import PhraseDrafter
from methods.phrases.settings import PhraseSettings
from methods.preverifier.layer import PreVerifier
from methods.timer import synchronised_clock
from methods.tree import branch_parents
from methods.verification import verify

CONTEXTS = (128, 768)
VERIFIED = (*range(1, 18), 21, 25, 29, 33, 41, 49)
PHRASES = (2, 4, 8, 16, 24)  # tokens of phrases in a draft pass
_PHRASE = 4  # tokens of a measured phrase
_CANDIDATES = ((1, 2, 3, 4),) * 3  # of a measured target pass, after a chain of as many tokens as one of them
_BLOCK = 2  # tokens per question to the layer
_DRAFTED = 8  # draft passes of a measured draft
_GREEDY = Sampling()


def measure_costs(
    pair: Pair,
    layer: PreVerifier | None = None,
    *,
    contexts: Sequence[int] = CONTEXTS,
    verified: Sequence[int] = VERIFIED,
    repeats: int = 15,
) -> Costs:
    """Times of greedy decoding with a loaded pair: medians over `repeats` rounds after one that warms up, the device
    synchronised around every pass. Each round has all contexts, and all sizes in random order, so that a machine's slow
    minutes fall on all alike.

    More tokens may well be cheaper than fewer (matrix kernels prefer some sizes), so sizes are left as they were
    measured; but a longer context is never cheaper: where noise says so, contexts are averaged (isotonic regression).

    Raises:
        BenchError: a pair that cannot read so long a context, or no rounds.
    """
    if repeats < 1:
        raise BenchError(f"--repeats {repeats}: use 1 or more")
    longest = max(contexts) + max(verified) + _DRAFTED
    if longest > pair.context_limit:
        raise BenchError(f"{pair.spec.name} reads {pair.context_limit} tokens, but the costs need {longest}")
    contexts, verified = tuple(sorted(contexts)), tuple(sorted(verified))
    stopwatch = _Stopwatch(pair, layer)
    rows = stopwatch.measure(contexts, verified, repeats)
    target = np.array([[row["target", k] for k in verified] for row in rows])
    draft = np.array([row["draft"] for row in rows])
    target = np.apply_along_axis(lambda times: isotonic_regression(times).x, 0, target)
    device = str(pair.target.device)
    return Costs(
        f"{pair.spec.name} on {device}",
        contexts,
        verified,
        tuple(tuple(map(float, row)) for row in target),
        tuple(map(float, isotonic_regression(draft).x)),
        None if layer is None else median(row["preverify"] for row in rows),
        median(row["question"] for row in rows),
        stopwatch.overhead(),
        PHRASES,
        tuple(map(float, _rising([rows[0]["phrases", n] - rows[0]["draft"] for n in PHRASES]))),
        max(0.0, rows[0]["candidates"] - rows[0]["chain"]),
        about={
            "pair": pair.spec.name,
            "target": pair.spec.target,
            "draft": pair.spec.draft,
            "target_dtype": str(pair.target.model.dtype).removeprefix("torch."),
            "draft_dtype": pair.draft_dtype,
            "repeats": repeats,
            "environment": environment(device),
        },
    )


def _rising(times: list[float]) -> np.ndarray:
    """More of something never takes less than nothing, or than less of it."""
    return isotonic_regression(np.maximum(0, times)).x


class _Stopwatch:
    """Times the parts of a step as decoding makes them."""

    def __init__(self, pair: Pair, layer: PreVerifier | None):
        self.pair, self.layer = pair, layer
        self.drafter = AutoregressiveDrafter(pair.draft, _GREEDY)
        self.phrases = PhraseDrafter(pair.draft, _GREEDY, PhraseSettings(candidates=0, phrase_length=max(PHRASES)))
        self.random = random.Random(0)
        self.generator = torch.Generator(pair.target.device)

    @torch.inference_mode()
    def measure(self, contexts: tuple[int, ...], verified: tuple[int, ...], repeats: int) -> list[dict]:
        """For each context length, median seconds by part: ("target", tokens), "draft", "question", "preverify",
        and at the first of them ("phrases", tokens), "candidates" and, for as many tokens without them, "chain"."""
        times: list[dict] = [defaultdict(list) for _ in contexts]
        for round_ in tqdm(range(repeats + 1), desc="costs", unit="round"):
            for context, found in zip(contexts, times, strict=True):
                self._read(context, context + max(verified) + 2 * _DRAFTED)
                for what, seconds in self._round(self.random.sample(verified, len(verified))):
                    if round_:  # the first one warms up
                        found[what].append(seconds)
            for what, seconds in self._phrase_round(contexts[0]):
                if round_:
                    times[0][what].append(seconds)
        return [{what: median(seconds) for what, seconds in found.items()} for found in times]

    def _read(self, context: int, room: int) -> None:
        prompt = torch.tensor(self._prompt(context))
        self.pair.target.reset(room)
        self.pair.target.prefill(prompt)
        self.drafter.prefill(prompt, room, _DRAFTED, seed=0)

    def _prompt(self, length: int) -> list[int]:
        vocab = self.pair.target.vocab_size or self.pair.target.model.config.vocab_size
        return [self.random.randrange(vocab) for _ in range(length)]

    def _round(self, sizes: list[int]) -> list[tuple]:
        """Some (what, seconds): every size of target pass, and the draft's part between them."""
        found = []
        for n, size in enumerate(sizes):
            if n % 4 == 0:
                found += self._draft()
            read = torch.tensor(self._prompt(size), device=self.pair.target.device)
            found.append((("target", size), self._timed(lambda read=read: self._verify(read))))
            self.pair.target.rollback(size)
        return found

    def _verify(self, read: torch.Tensor) -> None:
        logits = self.pair.target.forward(read, keep=len(read)).logits
        verify(logits, _Proposal(read[1:]) if len(read) > 1 else None, _GREEDY, self.generator)

    def _draft(self) -> list[tuple]:
        """Blocks as decoding drafts them, a question after each: the draft pass has left the layer's weights and the
        policy's numbers as cold in the caches as they are there."""
        draft = self.drafter.begin(self._prompt(1))
        estimator = self.layer.estimator(_BLOCK) if self.layer else None
        if estimator:
            estimator.begin()
        found = []
        for last in range(_BLOCK - 1, _DRAFTED, _BLOCK):
            found.append(("draft", self._timed(lambda: self.drafter.extend(_BLOCK)) / _BLOCK))
            found.append(("question", self._timed(lambda last=last: draft.entropy[last].item())))
            if estimator and last < self.layer.config.positions:
                found.append(("preverify", self._timed(lambda: estimator.estimate(draft))))
        self.drafter.end(range(_DRAFTED), 0)
        self.pair.draft.rollback(1)
        return found

    @torch.inference_mode()
    def _phrase_round(self, context: int) -> list[tuple]:
        """Some (what, seconds): draft passes with phrases, and a target pass with candidates."""
        drafter, found = self.phrases, []
        drafter.prefill(torch.tensor(self._prompt(context)), context + _DRAFTED, _DRAFTED, seed=0)
        drafter.begin(self._prompt(1))
        drafter.read([])
        length = self.pair.draft.length
        for size in self.random.sample(PHRASES, len(PHRASES)):
            drafter.said = self._prompt(1)
            phrases = [tuple(self._prompt(min(_PHRASE, size - i))) for i in range(0, size, _PHRASE)]
            found.append((("phrases", size), self._timed(lambda phrases=phrases: drafter.read(phrases))))
            self.pair.draft.rollback(self.pair.draft.length - length)
        target, parents = self.pair.target, branch_parents(_PHRASE, _CANDIDATES)
        read = torch.tensor(self._prompt(len(parents)), device=target.device)
        found.append(("candidates", self._timed(lambda: self._verify_candidates(read, parents))))
        target.rollback(len(parents))
        found.append(("chain", self._timed(lambda: self._verify(read))))
        target.rollback(len(parents))
        return found

    def _verify_candidates(self, read: torch.Tensor, parents: tuple[int, ...]) -> None:
        logits = self.pair.target.forward_branches(read, parents, keep=len(read)).logits
        verify(logits, _Proposal(read[1:_PHRASE], _CANDIDATES), _GREEDY, self.generator)

    def _timed(self, work: Callable[[], object]) -> float:
        devices = (self.pair.target.device, self.pair.draft.device)
        start = synchronised_clock(*devices)
        work()
        return synchronised_clock(*devices) - start

    def overhead(self) -> float:
        """What else a step takes, from a short run through the decode loop: median seconds."""
        decoder = Decoder(self.pair.target, self.drafter, _GREEDY)
        out = decoder.decode(self._prompt(32), StopRule(64), get_method("sd", {"gamma": 4}).policy())
        return median(step.other_s for step in out.steps)


class _Proposal:
    """The draft tokens, and the phrases after them, that a timed verification compares."""

    def __init__(self, tokens: torch.Tensor, candidates: Phrases = ()):
        self.tokens, self.length, self.candidates = tokens, len(tokens), candidates
