"""Replaying a method over a trace: the steps that decoding would have made, without a model.

The drafting loop is decoding's own (`methods.decode.draft_step`); only the drafter differs, which reads the rollout
that was recorded at the position where a step begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import torch

from bench.errors import BenchError
from bench.estimates import EstimateCache
from bench.traces import Trace, TraceFolder
from methods import Method
from methods.decode import draft_step
from methods.draft import Phrases
from methods.phrases.drafter import PhraseDrafter
from methods.phrases.drafting import PhraseDrafting
from methods.phrases.pool import Phrase
from methods.phrases.settings import PhraseSettings


@dataclass(frozen=True)
class TraceSet:
    """The traces of one pair, task and split, with the length limit of its outputs and the rollouts' length."""

    pair: str
    task: str
    split: str
    max_new_tokens: int
    rollout: int
    traces: Sequence[Trace]


def read_trace_set(folder: Path, limit: int | None = None, sampled: bool = False) -> TraceSet:
    """The traces of the first `limit` samples of a folder made by `collect`. `sampled` ones teach a layer, but fix no
    output to replay.

    Raises:
        BenchError: nothing there, broken files, or sampled traces where greedy ones are needed.
    """
    store = TraceFolder(folder)
    info = store.info()
    if info["temperature"] != 0 and not sampled:
        raise BenchError(f"{folder} was collected with sampling; replay needs greedy traces (--temperature 0)")
    names = ("pair", "task", "split", "max_new_tokens", "rollout")
    return TraceSet(*(info[name] for name in names), store.read(limit))


@dataclass(frozen=True)
class Replayed:
    """One sample's steps, an entry per draft-verify step in each list.

    `start`: output tokens before the step. `drafted`, `accepted`, `emitted`, `draft_forwards`: as decoding logs them.
    `asked`: questions for which the policy, or its layer, read a number of the draft's. `drafts` is False for `ar`;
    `trained`: questions go to a layer.

    A phrase drafter has more. `phrase_passes`: for each of a step's draft passes, the tokens of phrases that it read
    beside its own; `phrase_tokens`, `phrase_accepted`: of the candidates that the target read.
    """

    sample_id: str
    prompt_tokens: int
    drafts: bool
    trained: bool
    start: list[int]
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    draft_forwards: list[int]
    asked: list[int]
    phrase_passes: list[list[int]] = field(default_factory=list)
    phrase_tokens: list[int] = field(default_factory=list)
    phrase_accepted: list[int] = field(default_factory=list)

    @property
    def new_tokens(self) -> int:
        return sum(self.emitted)

    @property
    def target_forwards(self) -> int:
        return len(self.start)


class RolloutDraft:
    """What policies read of a `methods.draft.Draft`, for the rollout at one position of a trace.

    `read` turns true when something is: in decoding that makes the host wait for the device.
    """

    probs = token_ids = None

    def __init__(self, trace: Trace, row: int):
        self.trace, self.row, self.length, self.read = trace, row, 0, False
        self.capacity = trace.tokens.shape[1]

    @property
    def tokens(self) -> torch.Tensor:
        return self._row(self.trace.tokens)

    @property
    def confidence(self) -> torch.Tensor:
        return self._row(self.trace.confidence)

    @property
    def entropy(self) -> torch.Tensor:
        return self._row(self.trace.entropy)

    @property
    def hidden(self) -> torch.Tensor:
        """(R, width), read from disk."""
        return torch.from_numpy(self.trace.hidden[self._row(self.trace.node).numpy()])

    def _row(self, values: torch.Tensor) -> torch.Tensor:
        self.read = True
        return values[self.row]


class ReplayDrafter:
    """Drafts a trace's rollouts, as a `Drafter` drafts a model's tokens; `method` is named where one is too short."""

    device = torch.device("cpu")

    def __init__(self, method: str):
        self.method = method

    def start(self, trace: Trace, limit: int) -> None:
        """A new sample, whose drafts have up to `limit` tokens."""
        self.trace, self.rollout = trace, trace.tokens.shape[1]
        self.position = self.forwards = 0

    def begin(self, committed: Sequence[int]) -> RolloutDraft:
        self.draft, self.asked = RolloutDraft(self.trace, self.position), 0
        self.phrase_passes: list[int] = []
        return self.draft

    def lap(self, phase: str) -> None:
        """Told at the end of each phase of drafting; counts the questions that took a number to answer."""
        if phase == "preverify":
            self.asked += self.draft.read
            self.draft.read = False

    def extend(self, n: int) -> None:
        self.draft.length += n
        self.forwards += n
        self.check(self.draft.length)

    def check(self, drafted: int) -> None:
        if drafted > self.rollout:
            raise BenchError(
                f"'{self.method}' drafts {drafted} tokens or more, but the traces' rollouts end after {self.rollout}: "
                f"set its gamma or gamma_max to at most {self.rollout}, or collect with a longer --rollout"
            )

    def cut(self, n: int) -> None:
        self.draft.length -= n

    def candidates(self, room: int) -> Phrases:
        return ()

    def end(self, accepted: int, phrase: Sequence[int]) -> None:
        self.position += accepted + len(phrase) + 1


class ReplayPhraseDrafter(PhraseDrafting, ReplayDrafter):
    """A phrase drafter whose model's choices are a trace's rollouts. Its pool lives on from trace to trace."""

    def __init__(self, method: str, settings: PhraseSettings):
        ReplayDrafter.__init__(self, method)
        PhraseDrafting.__init__(self, settings)

    def start(self, trace: Trace, limit: int) -> None:
        ReplayDrafter.start(self, trace, limit)
        PhraseDrafting.start(self, limit)

    def begin(self, committed: Sequence[int]) -> RolloutDraft:
        self.start_step(committed)
        self.choices = self.trace.tokens[self.position].tolist()
        return ReplayDrafter.begin(self, committed)

    def read(self, phrases: Sequence[Phrase]) -> list[int]:
        self.forwards += 1
        self.phrase_passes.append(sum(map(len, phrases)))
        ahead = self.choices[len(self.said) :]
        said = _longest_match(phrases, ahead)[0] + 1
        self.check(len(self.said) + said)
        return ahead[:said]

    def end(self, accepted: int, phrase: Sequence[int]) -> None:
        ReplayDrafter.end(self, accepted, phrase)
        self.end_step(accepted, phrase, ())


def _longest_match(phrases: Sequence[Phrase], text: Sequence[int]) -> tuple[int, Phrase]:
    """How many tokens of a text the best of the phrases says, and which one that is."""
    counts = [sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(p, text, strict=False))) for p in phrases]
    best = max(counts, default=0)
    return best, phrases[counts.index(best)] if best else ()


def replay_drafter(method: Method) -> ReplayDrafter | None:
    """The drafter that replays a method's drafts, from one trace to the next.

    Raises:
        BenchError: phrases that the traces do not tell.
    """
    if method.spec.drafter is not PhraseDrafter:
        return ReplayDrafter(method.name) if method.spec.drafter else None
    if method.settings.lookahead or method.settings.corrections:
        raise BenchError(
            f"'{method.name}' cannot be replayed with a lookahead window or corrections, as traces do not hold what the "
            f"models say there: use {method.name}.lookahead=0 and {method.name}.corrections=off"
        )
    return ReplayPhraseDrafter(method.name, method.settings)


@torch.inference_mode()
def replay(
    method: Method,
    trace: Trace,
    max_new_tokens: int,
    estimates: EstimateCache | None = None,
    drafter: ReplayDrafter | None = None,
) -> Replayed:
    """The steps of a greedy run of `method` on the trace's prompt with at most `max_new_tokens`, which may be fewer
    than it was collected with. `estimates` keeps what trained layers say of the trace for the next replay; `drafter`, a
    `replay_drafter`, what it remembers of the traces before.

    Raises:
        BenchError: a draft longer than the rollouts, a sampled trace, or phrases that the traces do not tell.
    """
    if trace.acceptance is not None:
        raise BenchError(f"the traces of {trace.task} were collected with sampling; replay needs --temperature 0")
    if method.spec.trained and method.layer is not None:
        method = method.with_layer((estimates or EstimateCache()).of(method.layer, trace))
    policy, drafter = method.policy(), drafter or replay_drafter(method)
    out = Replayed(trace.sample_id, trace.prompt_tokens, bool(policy), method.spec.trained, [], [], [], [], [], [])
    end, right = min(trace.new_tokens, max_new_tokens), trace.accepted.tolist()
    position, next_token = 0, trace.last_prompt_token
    if drafter:
        drafter.start(trace, min(policy.gamma_max, max_new_tokens))
    while position < end:
        start, room = position, max_new_tokens - position - 1
        drafted = passes = asked = 0
        candidates, phrase_passes, phrase = (), [], ()
        if drafter:
            before = drafter.forwards
            draft_step(drafter, drafter.begin([next_token]), policy, room, drafter.lap)
            drafted, passes, asked = drafter.draft.length, drafter.forwards - before, drafter.asked
            candidates, phrase_passes = drafter.candidates(room - drafted), drafter.phrase_passes
        accepted = min(drafted, right[start])
        if accepted == drafted:
            matched, phrase = _longest_match(candidates, trace.output[start + drafted :])
            phrase = phrase[:matched]
        position = start + accepted + len(phrase) + 1
        emitted = min(position, end) - start
        if position < end:
            next_token = trace.output[position - 1]
        if drafter:
            drafter.end(accepted, phrase)
            policy.observe(drafted, accepted)
        out.phrase_passes.append(phrase_passes)
        out.phrase_tokens.append(sum(map(len, candidates)))
        out.phrase_accepted.append(min(len(phrase), max(0, emitted - accepted)))
        step = (start, drafted, accepted, emitted, passes, asked)
        lists = (out.start, out.drafted, out.accepted, out.emitted, out.draft_forwards, out.asked)
        for values, value in zip(lists, step, strict=True):
            values.append(value)
    return out


def replay_set(method: Method, traces: TraceSet, estimates: EstimateCache | None = None) -> list[Replayed]:
    """`replay` over all traces of a set, one after another, as a run decodes them."""
    drafter = replay_drafter(method)
    return [replay(method, trace, traces.max_new_tokens, estimates, drafter) for trace in traces.traces]
