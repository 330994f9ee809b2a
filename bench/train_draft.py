"""Distilling a pair's own draft: prompts, outputs of the target, draft vocabulary, training, report, in that order.

Everything lies in one folder, and every phase keeps what it finds there: the same command again goes on where it
was stopped. The finished draft is in its `student/` folder, for `--draft student:FOLDER`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from bench.draft_config import TrainDraftConfig
from bench.draft_prompts import DraftPrompts, draft_prompts
from bench.errors import BenchError
from methods import Engine
from methods.training.agreement import agreement_by_task
from methods.training.batches import Batch, collate, epoch_batches
from methods.training.bridge import fit_bridge
from methods.training.copying import with_copying_layer
from methods.training.corpus import Job, generate_shards, teach_shards
from methods.training.distill import Distillation, DistillConfig
from methods.training.generate import GenerationConfig, TaughtSequence
from methods.training.instructions import invent_instructions
from methods.training.pool import ShardPool
from methods.training.report import DraftReport, measure_cost, report_task
from methods.training.shards import read_shard, write_text_atomically
from methods.training.student import Student, build_student
from methods.training.student_file import load_student, save_student
from methods.training.teach import read_generations
from methods.training.vocab import count_tokens, most_frequent

COPY_WEIGHT = 0.2
# How the prompts begin that the target makes up itself: freely, or towards the benchmark's kinds of output.
BEGINNINGS = ("", "Write a news article about", "Write a Python function that")
FIRST_SEQUENCES = 400  # some 60 000 positions, a hundred times the default target's width


@dataclass(frozen=True)
class Target:
    """The pair's target, ready to teach: in the precision to generate in, with its tokenizer and end tokens."""

    model: PreTrainedModel
    tokenizer: Any
    end_ids: frozenset[int]

    @property
    def chat(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def head(self) -> Tensor:
        """(vocab, width)"""
        return self.model.get_output_embeddings().weight.detach()


def train_draft(target: Target, config: TrainDraftConfig) -> DraftReport:
    """Makes a draft for `target` in `config.out`, or goes on making it; returns the report that is also written there.

    The target should be in bfloat16 where the hardware multiplies that fast: generation and training run in its
    precision. Raises BenchError when the folder belongs to a run with other options, TaskError for malformed data.
    """
    _claim(config)
    prompts = _prompts(target, config)
    _generate(target, prompts, config)
    pool = ShardPool(config.out / "shards")
    pool.refresh()
    held_out = {task: read_shard(config.out / "held_out" / f"{task}-0000.safetensors") for task in prompts.held_out}
    vocab_ids = _vocabulary(target, pool, config)
    student, facts = _distil(target, pool, held_out, vocab_ids, config)
    save_student(student, config.out / "student", target.model, vocab_ids, config.all_layers, facts)
    return _report(target, held_out, facts, config)


# --- phases --------------------------------------------------------------------------------------------------------


def _claim(config: TrainDraftConfig) -> None:
    """Records the options in the folder. Raises BenchError when they differ from what it was begun with."""
    path = config.out / "config.json"
    # The time to train for may be changed on the way; everything else decides what is already there.
    said = {k: v for k, v in asdict(config).items() if k not in ("out", "minutes", "tokens")}
    said = json.loads(json.dumps(said, default=str))
    if not path.exists():
        write_text_atomically(path, json.dumps(said, indent=2) + "\n")
        return
    before = json.loads(path.read_text())
    changed = [k for k in said if before.get(k) != said[k]]
    if changed:
        name = changed[0]
        raise BenchError(
            f"--out {config.out} holds a run with --{name.replace('_', '-')} {before.get(name)}, not {said[name]}: "
            "repeat its options to resume it, or use another --out"
        )


def _prompts(target: Target, config: TrainDraftConfig) -> DraftPrompts:
    """The prompts, made once and kept in `prompts.json`."""
    path = config.out / "prompts.json"
    if not path.exists():
        made = draft_prompts(
            target.tokenizer,
            chat=target.chat,
            data_dir=config.data_dir,
            limit=config.prompts,
            max_prompt_tokens=config.max_prompt_tokens,
            seed=config.seed,
        )
        if target.chat and config.invented:
            made.training["invented"] = _invented(target, config)
        write_text_atomically(path, json.dumps(asdict(made)) + "\n")
    return DraftPrompts(**json.loads(path.read_text()))


def _invented(target: Target, config: TrainDraftConfig) -> list[tuple[int, ...]]:
    settings = GenerationConfig(config.max_new_tokens, temperature=1.0, batch_rows=config.batch_rows, seed=config.seed)
    beginnings = [BEGINNINGS[i % len(BEGINNINGS)] for i in range(config.invented)]
    messages = invent_instructions(target.model, target.tokenizer, beginnings, sorted(target.end_ids), settings)
    apply = target.tokenizer.apply_chat_template
    chats = [
        apply([{"role": "user", "content": m}], tokenize=True, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        for m in messages
    ]
    return [tuple(ids) for ids in chats if len(ids) <= config.max_prompt_tokens]


def _generate(target: Target, prompts: DraftPrompts, config: TrainDraftConfig) -> None:
    """Shards of held-out and training outputs."""
    settings = GenerationConfig(config.max_new_tokens, batch_rows=config.batch_rows, seed=config.seed)
    ends = sorted(target.end_ids)
    generate_shards(
        target.model,
        [Job(task, held) for task, held in prompts.held_out.items()],
        ends,
        settings,
        config.out / "held_out",
    )
    jobs = [
        Job(f"{task}-t{temperature:g}", found, temperature)
        for temperature in config.temperatures
        for task, found in prompts.training.items()
    ]
    generate_shards(target.model, jobs, ends, settings, config.out / "shards")
    if config.generations:
        unwanted = {tuple(p) for held in prompts.held_out.values() for p in held}
        written = [w for w in read_generations(config.generations) if w.prompt not in unwanted]
        teach_shards(target.model, written, config.out / "shards", "given")


def _vocabulary(target: Target, pool: ShardPool, config: TrainDraftConfig) -> Tensor:
    """Ids of the draft vocabulary, counted once: (draft vocabulary,)."""
    path = config.out / "vocab.json"
    if not path.exists():
        vocab = len(target.head)
        counts = count_tokens((s.ids[s.prompt_len :] for s in pool.sequences), vocab)
        special = [i for i in target.tokenizer.all_special_ids if i < vocab]
        ids = most_frequent(counts, min(config.draft_vocab, vocab), {*special, *target.end_ids})
        write_text_atomically(path, json.dumps(ids.tolist()) + "\n")
    return torch.tensor(json.loads(path.read_text()), device=target.head.device)


def _distil(
    target: Target,
    pool: ShardPool,
    held_out: dict[str, list[TaughtSequence]],
    vocab_ids: Tensor,
    config: TrainDraftConfig,
) -> tuple[Student, dict[str, Any]]:
    """The trained student, and facts about its training."""
    head = target.head[vocab_ids].contiguous()
    settings = DistillConfig(
        tokens=config.tokens,
        minutes=config.minutes,
        batch_tokens=config.batch_tokens,
        learning_rate=config.learning_rate,
        copy_weight=COPY_WEIGHT if config.copying else 0.0,
        seed=config.seed,
    )
    checkpoint = config.out / "checkpoint.safetensors"
    if checkpoint.exists():
        student = build_student(target.model, config.all_layers, target.model.dtype)
        training = Distillation(student, head, vocab_ids, ShardPool(pool.folder), settings)
        training.resume(checkpoint)
    else:
        student = _untrained(target, pool.sequences, config)
        training = Distillation(student, head, vocab_ids, pool, settings)

    def look() -> str:
        found = agreement_by_task(student, held_out, head, vocab_ids)
        return "held out " + " ".join(f"{task} {value:.3f}" for task, value in found.items())

    training.run(config.out, look)
    outputs = sum(len(s.ids) - s.prompt_len for s in training.pool.sequences)
    progress = training.progress
    facts = {
        "steps": progress.step,
        "tokens": progress.tokens,
        "minutes": round(progress.seconds / 60, 1),
        "sequences": len(training.pool.sequences),
        "output_tokens": outputs,
    }
    return student, facts


def _untrained(target: Target, sequences: Sequence[TaughtSequence], config: TrainDraftConfig) -> Student:
    """The student that training starts from, all of it in closed form."""
    student = build_student(target.model, config.layers, target.model.dtype)
    batches = [batch.to(target.head.device) for batch in _first_batches(sequences, config)]
    fit_bridge(student, batches)
    return with_copying_layer(student, target.model, config.layers, batches) if config.copying else student


def _first_batches(sequences: Sequence[TaughtSequence], config: TrainDraftConfig) -> list[Batch]:
    """A random sample of the sequences, all positions of outputs and prompts."""
    generator = torch.Generator().manual_seed(config.seed)
    chosen = torch.randperm(len(sequences), generator=generator)[:FIRST_SEQUENCES].tolist()
    batches = epoch_batches([len(sequences[i].ids) for i in chosen], config.batch_tokens, config.seed)
    return [collate([sequences[chosen[i]] for i in batch], 1.0, generator) for batch in batches]


def _report(
    target: Target, held_out: dict[str, list[TaughtSequence]], facts: dict[str, Any], config: TrainDraftConfig
) -> DraftReport:
    """Loads the student as a user would, and writes `student/report.json` and `report.md`."""
    draft, vocab_ids = load_student(config.out / "student", target.model)
    tasks = {t: report_task(draft, vocab_ids, target.head, held, config.gamma) for t, held in held_out.items()}
    context = next(iter(held_out.values()))[0].ids.tolist()
    # An engine repacks its model's weights, and the target is the caller's.
    cost = measure_cost(Engine(draft, token_ids=vocab_ids), Engine(copy.deepcopy(target.model)), context)
    report = DraftReport(
        config.gamma,
        tasks,
        _mean([r.agreement for r in tasks.values()]),
        _mean([r.acceptance_rate for r in tasks.values()]),
        cost,
        facts,
    )
    write_text_atomically(config.out / "student" / "report.json", json.dumps(report.as_dict(), indent=2) + "\n")
    write_text_atomically(config.out / "student" / "report.md", report.markdown())
    return report


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
