"""Replaying a method over a trace: the steps that decoding would have made, without a model.

The drafting loop is decoding's own (`methods.decode.draft_step`); only the drafter differs, which reads the rollout
that was recorded at the position where a step begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.errors import BenchError
from bench.estimates import EstimateCache
from bench.traces import Trace, TraceFolder
from methods import Method
from methods.decode import draft_step
from methods.drafters import AutoregressiveDrafter


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
    """A `Drafter` whose drafts are a trace's rollouts; `method` is named where one is too short."""

    device = torch.device("cpu")

    def __init__(self, trace: Trace, method: str):
        self.trace, self.method, self.rollout = trace, method, trace.tokens.shape[1]
        self.prefill()

    def prefill(self, *_) -> None:
        self.position = self.forwards = 0

    def begin(self, committed: Sequence[int] = ()) -> RolloutDraft:
        self.draft, self.asked = RolloutDraft(self.trace, self.position), 0
        return self.draft

    def lap(self, phase: str) -> None:
        """Told at the end of each phase of drafting; counts the questions that took a number to answer."""
        if phase == "preverify":
            self.asked += self.draft.read
            self.draft.read = False

    def extend(self, n: int) -> None:
        self.draft.length += n
        self.forwards += n
        if self.draft.length > self.rollout:
            raise BenchError(
                f"'{self.method}' drafts {self.draft.length} tokens or more, but the traces' rollouts end after "
                f"{self.rollout}: set its gamma or gamma_max to at most {self.rollout}, or collect with a longer "
                "--rollout"
            )

    def cut(self, n: int) -> None:
        self.draft.length -= n

    def end(self, tokens: Sequence[int], accepted: int) -> None:
        self.position += accepted + 1


@torch.inference_mode()
def replay(method: Method, trace: Trace, max_new_tokens: int, estimates: EstimateCache | None = None) -> Replayed:
    """The steps of a greedy run of `method` on the trace's prompt with at most `max_new_tokens`, which may be fewer
    than it was collected with. `estimates` keeps what trained layers say of the trace for the next replay.

    Raises:
        BenchError: a draft longer than the rollouts, a sampled trace, or a method that drafts with more than a model.
    """
    if trace.acceptance is not None:
        raise BenchError(f"the traces of {trace.task} were collected with sampling; replay needs --temperature 0")
    if method.spec.drafter not in (None, AutoregressiveDrafter):
        raise BenchError(f"'{method.name}' cannot be replayed: its drafts depend on more than the draft model")
    if method.spec.trained and method.layer is not None:
        method = method.with_layer((estimates or EstimateCache()).of(method.layer, trace))
    policy, drafter = method.policy(), ReplayDrafter(trace, method.name)
    out = Replayed(trace.sample_id, trace.prompt_tokens, bool(policy), method.spec.trained, [], [], [], [], [], [])
    end, right = min(trace.new_tokens, max_new_tokens), trace.accepted.tolist()
    while (start := drafter.position) < end:
        drafted = passes = asked = 0
        if policy:
            before = drafter.forwards
            draft_step(drafter, drafter.begin(), policy, max_new_tokens - start - 1, drafter.lap)
            drafted, passes, asked = drafter.draft.length, drafter.forwards - before, drafter.asked
        accepted = min(drafted, right[start])
        drafter.end((), accepted)
        if policy:
            policy.observe(drafted, accepted)
        step = (start, drafted, accepted, min(drafter.position, end) - start, passes, asked)
        lists = (out.start, out.drafted, out.accepted, out.emitted, out.draft_forwards, out.asked)
        for values, value in zip(lists, step, strict=True):
            values.append(value)
    return out


def replay_set(method: Method, traces: TraceSet, estimates: EstimateCache | None = None) -> list[Replayed]:
    """`replay` over all traces of a set."""
    return [replay(method, trace, traces.max_new_tokens, estimates) for trace in traces.traces]
