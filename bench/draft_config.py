"""The options of `train-draft`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import BenchError


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


_COUNTS = ("prompts", "max_new_tokens", "max_prompt_tokens", "batch_rows", "draft_vocab", "batch_tokens", "gamma")


@dataclass(frozen=True)
class TrainDraftConfig:
    """What `train-draft` does. The help texts are those of the command line."""

    out: Path = _option(Path("results/draft"), "folder for everything the run makes; the same command resumes there")
    data_dir: Path | None = _option(None, "folder with the tasks' training data (default: $BENCH_DATA, hub, built-in)")
    generations: Path | None = _option(
        None, "JSON lines with outputs that the target has made before (task, prompt, output)"
    )
    prompts: int = _option(2000, "training prompts per task")
    invented: int = _option(500, "further chat prompts, which the target makes up itself")
    temperatures: tuple[float, ...] = _option((0.0, 0.7), "temperatures at which each prompt is answered")
    max_new_tokens: int = _option(144, "longest output of the target, in tokens")
    max_prompt_tokens: int = _option(1024, "longest prompt, in tokens")
    batch_rows: int = _option(128, "prompts that the target answers at once")
    layers: tuple[int, ...] = _option((0, 1, 2, 3), "layers of the target that the draft starts from")
    copying: bool = _option(True, "add a layer that is taught to copy from the prompt")
    draft_vocab: int = _option(8192, "tokens that the draft can say: the most frequent in the target's outputs")
    minutes: float = _option(90.0, "training time, in minutes (0: no limit)")
    tokens: int = _option(0, "training tokens (0: no limit)")
    batch_tokens: int = _option(4096, "tokens per training step")
    learning_rate: float = _option(1e-3, "highest learning rate")
    gamma: int = _option(4, "draft length of the report's acceptance rate")
    seed: int = _option(0, "random seed")

    def __post_init__(self):
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise BenchError(f"--{name.replace('_', '-')} {getattr(self, name)}: use 1 or more")
        if not self.minutes and not self.tokens:
            raise BenchError("--minutes 0 --tokens 0: give training an end, as in --minutes 90")
        if not self.temperatures or min(self.temperatures) < 0:
            raise BenchError("--temperatures: give one or more numbers from 0, as in 0,0.7")

    @property
    def all_layers(self) -> list[int]:
        """The target's layers that the draft's are shaped like, the copying layer included."""
        return [*self.layers, *self.layers[-1:]] if self.copying else list(self.layers)
