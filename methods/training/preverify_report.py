"""What a trained pre-verification layer is worth on held-out steps, beside the draft's own confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from methods.training.preverify_metrics import BINS, Metrics

OVERALL = "all"
# Of the palette of Okabe and Ito, which colour-blind readers can tell apart.
_BLUE, _ORANGE = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Look:
    """One look at the held-out steps during training: after how many updates and seconds, the training loss since the
    last look, and the held-out loss (both as trained on: weighted, in nats)."""

    step: int
    seconds: float
    training_loss: float
    held_out_loss: float


@dataclass(frozen=True)
class Report:
    """All of it.

    label: what estimates mean (`LayerConfig.label`). layer, confidence: metrics by task, and under "all" over all tasks,
    of the layer and of the draft's confidence alone (`confidence_alone`). blocks: the layer's by block size over all
    tasks; the others mix the block sizes. history: looks at the held-out loss, `best_step` the one whose weights were
    kept. stopped: why training ended, "steps", "patience" or "minutes".
    """

    label: str
    layer: Mapping[str, Metrics]
    confidence: Mapping[str, Metrics]
    blocks: Mapping[int, Metrics]
    history: tuple[Look, ...]
    best_step: int
    stopped: str
    seconds: float
    parameters: int
    training_sequences: int
    training_tokens: int
    held_out_sequences: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def markdown(self) -> str:
        """A table with a row per task, one with a row per block size, and how it was trained."""
        lines = [
            f"| task | tokens | {_SHARES[self.label]} | {_pairs('loss, nats', 'AUROC', 'calibration error')} |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for task, own in self.layer.items():
            rival = self.confidence[task]
            lines.append(
                f"| {task} | {own.tokens} | {own.accepted:.3f} | {own.loss:.3f} | {rival.loss:.3f} | {_number(own.auroc)} "
                f"| {_number(rival.auroc)} | {own.ece:.3f} | {rival.ece:.3f} |"
            )
        lines += ["", "| block | loss, nats | AUROC | calibration error |", "| ---: | ---: | ---: | ---: |"]
        for block, own in self.blocks.items():
            lines.append(f"| {block} | {own.loss:.3f} | {_number(own.auroc)} | {own.ece:.3f} |")
        training = (
            f"{self.parameters} parameters; trained on {self.training_sequences} sequences ({self.training_tokens} draft "
            f"tokens seen) for {self.seconds:.0f} s; measured on {self.held_out_sequences}. Best after {self.best_step} "
            f"of {self.history[-1].step} updates; stopped by {self.stopped}."
        )
        lines += ["", training]
        return "\n".join(lines) + "\n"

    def plot(self, path: str | Path) -> None:
        """Writes the reliability diagram over all tasks: estimates against what happened, layer and confidence, and how
        often each estimate is made. The format follows the name, PNG or any other of matplotlib's."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.6, 5.4), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="perfect calibration")
        shown = (("layer", self.layer, _BLUE, "o"), ("confidence alone", self.confidence, _ORANGE, "s"))
        for place, (name, metrics, colour, marker) in enumerate(shown):
            bins = metrics[OVERALL].reliability
            estimates = [b.estimate for b in bins]
            label = f"{name} (calibration error {metrics[OVERALL].ece:.3f})"
            upper.plot(estimates, [b.accepted for b in bins], color=colour, marker=marker, markersize=5, label=label)
            starts = [(min(int(e * BINS), BINS - 1) + 0.1 + 0.4 * place) / BINS for e in estimates]
            shares = [b.tokens / metrics[OVERALL].tokens for b in bins]
            lower.bar(starts, shares, width=0.4 / BINS, align="edge", color=colour)
        upper.set(ylim=(-0.02, 1.02), ylabel=_SHARES[self.label], title="Held-out draft tokens")
        lower.set(xlim=(-0.02, 1.02), xlabel="estimate", ylabel="share of tokens")
        upper.legend(loc="upper left", fontsize="small", frameon=False)
        for axes in (upper, lower):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)


_SHARES = {
    "token": "share accepted",
    "next": "share with next block accepted",
    "conditional": "share accepted, given all before",
}


def _pairs(*names: str) -> str:
    return " | ".join(f"{name}: layer | confidence" for name in names)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
