"""The decode loop: drafter x length policy x verification. Every method runs through it, `ar` included."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from methods.draft import Draft, Phrases
from methods.drafters import Drafter
from methods.engine import Engine
from methods.errors import MethodError
from methods.phrases.pool import PoolUse
from methods.policies import LengthPolicy
from methods.sampling import Sampling
from methods.stopping import StopRule
from methods.timer import StepTimer, synchronised_clock
from methods.tree import branch_parents
from methods.verification import Draws, Verdict, verify

_DRAFT_STREAM = 0x5EED


@dataclass(frozen=True)
class Step:
    """One draft-verify step. Times in seconds; `emitted` counts the tokens of the final output that it added, `tokens` are
    the draft's.
    `phrase_tokens`: tokens of candidate phrases after the draft that the target read, `phrase_accepted`: those of them
    that are in the output."""

    drafted: int
    accepted: int
    phrase_tokens: int
    phrase_accepted: int
    emitted: int
    stop_reason: str
    draft_forwards: int
    draft_s: float
    preverify_s: float
    verify_s: float
    other_s: float
    tokens: tuple[int, ...]
    confidence: list[float]
    entropy: list[float]
    estimate: list[float] | None
    draws: Draws | None


@dataclass
class Decoded:
    """The output of one sample. Times in seconds (DESIGN §4): `wall_s` = `prefill_s` + `decode_s`."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    steps: list[Step] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    target_forwards: int = 0
    target_tokens: int = 0
    draft_forwards: int = 0
    draft_tokens: int = 0
    pool: PoolUse | None = None

    @property
    def wall_s(self) -> float:
        return self.prefill_s + self.decode_s


@dataclass(frozen=True)
class Decoder:
    """Decodes prompts with one method. `drafter` is None for `ar`; a fresh `policy` comes with each sample."""

    target: Engine
    drafter: Drafter | None
    sampling: Sampling

    def _clock(self) -> float:
        return synchronised_clock(self.target.device, *([self.drafter.device] if self.drafter else []))

    @torch.inference_mode()
    def decode(self, prompt: list[int], stop: StopRule, policy: LengthPolicy | None, seed: int = 0) -> Decoded:
        """Decodes a tokenised prompt of at least one token.

        Prefill reads all of the prompt but its last token, which the first step's target pass reads: so `ar` makes
        exactly one counted pass per new token.

        Raises:
            IndexError: never for prompts that fit `context_limit` less `stop.max_new_tokens`.
            MethodError: a policy that would bias sampled outputs.
        """
        if policy and policy.greedy_only and not self.sampling.greedy:
            raise MethodError(f"--set {policy.greedy_only} is for greedy decoding: use --temperature 0")
        out = Decoded()
        start = self._clock()
        generator = self._prefill(prompt, stop.max_new_tokens, policy, seed)
        ready = self._clock()
        timer = StepTimer(self.target.device)
        unread = [prompt[-1]]
        end = None
        while end is None:
            step, unread, end = self._step(out.tokens, unread, stop, policy, generator, timer)
            out.steps.append(step)
        del out.tokens[end[0] :]
        out.finish_reason = end[1]
        out.prefill_s, out.decode_s = ready - start, self._clock() - ready
        out.target_forwards, out.target_tokens = self.target.forwards, self.target.tokens
        if self.drafter:
            out.draft_forwards, out.draft_tokens = self.drafter.forwards, self.drafter.tokens
            out.pool = self.drafter.pool.use() if self.drafter.pool else None
        return out

    def _prefill(
        self, prompt: list[int], max_new_tokens: int, policy: LengthPolicy | None, seed: int
    ) -> torch.Generator:
        capacity = len(prompt) + max_new_tokens
        tokens = torch.tensor(prompt[:-1], dtype=torch.long)
        self.target.reset(capacity + (self.drafter.spare_capacity if self.drafter else 0))
        if len(tokens):
            self.target.prefill(tokens)
        if self.drafter:
            # Draft and verification draw from streams of their own: they may live on two devices.
            self.drafter.prefill(tokens, capacity, min(policy.gamma_max, max_new_tokens), seed ^ _DRAFT_STREAM)
        return torch.Generator(self.target.device).manual_seed(seed)

    def _step(
        self, tokens: list[int], unread: list[int], stop: StopRule, policy: LengthPolicy | None, generator, timer
    ):
        """One draft-verify step: appends to `tokens`; returns the step, the tokens that the target has not read, and
        the end if the output ends in it."""
        forwards = self.drafter.forwards if self.drafter else 0
        draft, stop_reason = None, ""
        if self.drafter:
            # The target's own token takes the last place, so a draft never runs past the length limit.
            room = stop.max_new_tokens - len(tokens) - 1
            draft = self.drafter.begin(unread)
            stop_reason = draft_step(self.drafter, draft, policy, room, timer.lap)
            timer.lap("other")
            draft.candidates = self.drafter.candidates(room - draft.length)
            timer.lap("draft")
        drafted = draft.length if draft else 0
        candidates = draft.candidates if draft else ()
        timer.lap("other")
        verdict = verify(self._read(unread, draft, candidates), draft, self.sampling, generator)
        timer.lap("verify")

        self._settle(verdict, drafted, candidates)
        if self.drafter:
            self.drafter.end(verdict.tokens, verdict.accepted, verdict.phrase, verdict.corrections)
            policy.observe(drafted, verdict.accepted)
        before = len(tokens)
        tokens += (*verdict.tokens[: verdict.accepted], *verdict.phrase, verdict.next_token)
        end = stop.cut(tokens, before)
        emitted = (end[0] if end else len(tokens)) - before
        confidence, entropy = draft.numbers() if drafted else ([], [])
        timer.lap("other")
        seconds = timer.read()
        step = Step(
            drafted=drafted,
            accepted=verdict.accepted,
            phrase_tokens=sum(map(len, candidates)),
            phrase_accepted=min(len(verdict.phrase), max(0, emitted - verdict.accepted)),
            emitted=emitted,
            stop_reason=stop_reason,
            draft_forwards=(self.drafter.forwards if self.drafter else 0) - forwards,
            draft_s=seconds["draft"],
            preverify_s=seconds["preverify"],
            verify_s=seconds["verify"],
            other_s=seconds["other"],
            tokens=verdict.tokens,
            confidence=confidence,
            entropy=entropy,
            estimate=policy.estimates if drafted else None,
            draws=verdict.draws,
        )
        return step, [verdict.next_token], end

    def _read(self, unread: list[int], draft: Draft | None, candidates: Phrases) -> torch.Tensor:
        """The target's pass over what it has not read, the draft, and the candidates after it; its logits from the last
        unread token on."""
        drafted = draft.length if draft else 0
        read = torch.tensor([*unread, *(token for phrase in candidates for token in phrase)], device=self.target.device)
        if drafted:
            tokens = draft.tokens[:drafted].to(self.target.device)
            read = torch.cat([read[: len(unread)], tokens, read[len(unread) :]])
        keep = len(read) - len(unread) + 1
        if not candidates:
            return self.target.forward(read, keep=keep).logits
        parents = branch_parents(len(unread) + drafted, candidates)
        return self.target.forward_branches(read, parents, keep=keep).logits

    def _settle(self, verdict: Verdict, drafted: int, candidates: Phrases) -> None:
        """Leaves in the target's cache what it accepted: the phrase's entries move to the end of the draft's."""
        size, phrase = sum(map(len, candidates)), len(verdict.phrase)
        first = self.target.length - size
        if phrase and verdict.start:
            self.target.move(first + verdict.start, first, phrase)
        self.target.rollback(size - phrase + drafted - verdict.accepted)


def draft_step(
    drafter: Drafter, draft: Draft, policy: LengthPolicy, room: int, lap: Callable[[str], None] = lambda phase: None
) -> str:
    """Drafts block by block, at most `room` tokens, until the policy stops; returns why drafting ended: "policy",
    "gamma_max" or "length" (of the output). Decoding and replaying both draft with it."""
    policy.begin()
    limit = min(policy.gamma_max, room)
    lap("other")
    while draft.length < limit:
        drafter.extend(min(policy.block, limit - draft.length))
        lap("draft")
        if draft.length == limit:
            break
        draft_on = policy.draft_on(draft)
        if not draft_on:
            drafter.cut(draft.length - policy.keep(draft))
        lap("preverify")
        if not draft_on:
            return "policy"
    return "gamma_max" if policy.gamma_max <= room else "length"
