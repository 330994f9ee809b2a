"""What a finished draft is worth: agreement, overlap, acceptance and coverage per task, and what a pass costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from methods.engine import Engine
from methods.training.generate import TaughtSequence


@dataclass(frozen=True)
class TaskReport:
    """A draft on the target's greedy outputs to held-out prompts of one task.

    sequences, tokens: how many outputs, and output tokens, were looked at.
    agreement: share of tokens where the draft's argmax is the target's.
    overlap: mean of sum(min(p, q)) over the vocabulary, the acceptance probability when sampling at temperature 1
        (Leviathan et al. 2023, section 3).
    acceptance_rate: accepted / drafted in greedy speculative decoding with drafts of `gamma` tokens.
    tokens_per_step: accepted per draft-verify step, and the target's own token.
    coverage: share of tokens that are in the draft vocabulary, an upper bound of `agreement`.
    """

    sequences: int
    tokens: int
    agreement: float
    overlap: float
    acceptance_rate: float
    tokens_per_step: float
    coverage: float


@dataclass(frozen=True)
class CostReport:
    """Median time of one pass over one token, in milliseconds, and the draft's as a share of the target's."""

    draft_ms: float
    target_ms: float
    ratio: float
    device: str
    draft_dtype: str
    target_dtype: str


@dataclass(frozen=True)
class DraftReport:
    """All of it: `tasks` by name, the plain average of agreement and acceptance over them, cost, facts of the training."""

    gamma: int
    tasks: Mapping[str, TaskReport]
    mean_agreement: float
    mean_acceptance_rate: float
    cost: CostReport
    training: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def markdown(self) -> str:
        """A table with a row per task, and the cost below it."""
        lines = [
            f"| task | outputs | tokens | top-1 agreement | overlap | acceptance rate, γ = {self.gamma} | tokens per step | coverage |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for task, r in self.tasks.items():
            lines.append(
                f"| {task} | {r.sequences} | {r.tokens} | {r.agreement:.3f} | {r.overlap:.3f} | "
                f"{r.acceptance_rate:.3f} | {r.tokens_per_step:.2f} | {r.coverage:.3f} |"
            )
        lines.append(f"| mean | | | {self.mean_agreement:.3f} | | {self.mean_acceptance_rate:.3f} | | |")
        c = self.cost
        draft = f"A draft pass ({c.draft_dtype}) takes {c.draft_ms:.2f} ms"
        target = f"a target pass ({c.target_dtype}) {c.target_ms:.2f} ms"
        return "\n".join([*lines, "", f"{draft}, {target} on {c.device}: {c.ratio:.3f} of it."]) + "\n"


@torch.inference_mode()
def report_task(
    draft: PreTrainedModel, vocab_ids: Tensor, target_head: Tensor, sequences: Sequence[TaughtSequence], gamma: int
) -> TaskReport:
    """Looks at greedy outputs of the target with its hidden states.

    `vocab_ids` (draft vocabulary,) are the ids of the draft's logits, `target_head` (vocab, width) the target's head.
    Raises ValueError without any sequence.
    """
    if not sequences:
        raise ValueError("no held-out outputs to report on")
    covered = torch.zeros(len(target_head), dtype=torch.bool)
    covered[vocab_ids.cpu()] = True
    hits: list[Tensor] = []
    overlap = said = 0.0
    for s in sequences:
        logits = draft(input_ids=s.ids[None, :-1].to(draft.device)).logits[0, s.prompt_len - 1 :]
        hits.append(vocab_ids.to(logits.device)[logits.argmax(-1)].cpu() == s.ids[s.prompt_len :])
        overlap += float(_overlap(logits, vocab_ids, s.hidden[s.prompt_len - 1 :], target_head).sum())
        said += int(covered[s.ids[s.prompt_len :]].sum())
    tokens = sum(len(h) for h in hits)
    accepted, drafted, steps = map(sum, zip(*(simulate_greedy(h.tolist(), gamma) for h in hits), strict=True))
    return TaskReport(
        len(sequences),
        tokens,
        float(sum(int(h.sum()) for h in hits)) / tokens,
        overlap / tokens,
        accepted / max(1, drafted),
        tokens / steps,
        said / tokens,
    )


def _overlap(draft_logits: Tensor, vocab_ids: Tensor, target_hidden: Tensor, target_head: Tensor) -> Tensor:
    """sum(min(p, q)) per position (n,); q is zero outside the draft vocabulary."""
    p = torch.softmax((target_hidden.to(target_head) @ target_head.T).float(), dim=-1)
    q = torch.softmax(draft_logits.float(), dim=-1)
    return torch.minimum(p[:, vocab_ids.to(p.device)], q.to(p.device)).sum(-1)


def simulate_greedy(hits: Sequence[bool], gamma: int) -> tuple[int, int, int]:
    """(accepted, drafted, steps) of greedy speculative decoding of one output with drafts of up to `gamma` tokens.

    `hits[i]` says whether the draft, given the target's own text before token i, says token i. That is all a rollout
    needs: up to its first mistake a draft's text is the target's, and what it drafts after that is rejected.
    """
    position = accepted = drafted = steps = 0
    while position < len(hits):
        length = min(gamma, len(hits) - position - 1)
        run = 0
        while run < length and hits[position + run]:
            run += 1
        accepted, drafted, steps = accepted + run, drafted + length, steps + 1
        position += run + 1
    return accepted, drafted, steps


@torch.inference_mode()
def measure_cost(draft: Engine, target: Engine, context: Sequence[int], passes: int = 40) -> CostReport:
    """Times single-token passes of both models in turns, after a prompt of `context` token ids."""
    times: dict[Engine, list[float]] = {draft: [], target: []}
    for engine in times:
        engine.reset(len(context) + 1)
        engine.prefill(torch.tensor(context))
    token = torch.tensor(context[-1:])
    for _ in range(passes):
        for engine, seconds in times.items():
            _synchronise(engine.device)
            start = perf_counter()
            engine.forward(token)
            _synchronise(engine.device)
            seconds.append(perf_counter() - start)
            engine.rollback(1)
    draft_ms, target_ms = (1000 * median(times[engine]) for engine in (draft, target))
    dtypes = [str(engine.model.dtype).removeprefix("torch.") for engine in (draft, target)]
    return CostReport(draft_ms, target_ms, draft_ms / target_ms, target.device.type, *dtypes)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
