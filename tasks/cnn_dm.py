"""CNN/DailyMail 3.0.0: news summaries, scored by ROUGE F (See et al. 2017, arXiv 1704.04368)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.common import Sample, Task, TaskError
from tasks.hub import HubDataset
from tasks.sources import Origin

INSTRUCTION = "Summarize the following article in three or four sentences."
ROUGES = ("rouge1", "rouge2", "rougeL")


class CNNDailyMail(Task):
    """The article is the only part of the prompt that may be shortened."""

    name = "cnn_dm"
    version = 1
    metric = "rougeL"
    splits = ("train", "validation", "test")
    stop_base = ("\n\nArticle:", "\n\n\n")

    def origin(self, split: str) -> Origin:
        return Origin(
            local=f"cnn_dm/{split}.jsonl",
            required={"id": "text", "article": "text", "highlights": "text"},
            hub=HubDataset("abisee/cnn_dailymail", "3.0.0", split),
            builtin="cnn_dm.jsonl",
        )

    def sample(self, row: Mapping[str, Any], index: int, prefix: str) -> Sample:
        return Sample(row["id"], row)

    def question(self, fields: Mapping[str, Any]) -> str:
        return f"{INSTRUCTION}\n\n{fields['article']}"

    def base_prompt(self, sample: Sample) -> str:
        return f"{INSTRUCTION}\n\nArticle: {sample.fields['article']}\n\nSummary:"

    def truncatable(self, sample: Sample) -> str:
        return "article"

    def score(self, samples: Sequence[Sample], outputs: Sequence[str]) -> list[dict[str, float]]:
        """ROUGE-1, -2 and -L F-measures with Porter stemming, each in [0, 1].

        Raises TaskError when `rouge_score` is not installed.
        """
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError as error:
            raise TaskError("--task cnn_dm is scored with rouge_score: pip install rouge_score") from error
        scorer = RougeScorer(list(ROUGES), use_stemmer=True)
        return [
            {name: float(found.fmeasure) for name, found in scorer.score(sample.fields["highlights"], output).items()}
            for sample, output in zip(samples, outputs, strict=True)
        ]
