"""Decodes prompts with a loaded pair, all methods interleaved."""

from collections.abc import Iterable

import torch
from tqdm import tqdm

from bench.config import MethodEntry, RunConfig, sample_seed
from bench.errors import BenchError
from bench.layers import with_layer
from bench.loading import Pair
from bench.plan import Prompt
from bench.rows import sample_row, step_rows
from methods import Decoded, Decoder, Engine, Method, StopRule
from methods.drafters import Drafter
from methods.phrases.pool import PhrasePool
from methods.preverifier import PreVerifier

_WARM_UP_TOKENS = 24


class PairRunner:
    """Decodes prompts with one loaded pair."""

    def __init__(self, config: RunConfig, pair: Pair):
        self.config, self.pair = config, pair
        layers: dict[str, PreVerifier] = {}
        self.methods = {
            (entry.label, task): with_layer(config.method(entry, pair.spec.name, task), pair, layers)
            for entry in config.methods
            for task in config.tasks
        }
        self.pools: dict[tuple[str, str, int], PhrasePool | None] = {}

    def warm_up(self, prompts: list[Prompt]) -> None:
        """Some tokens with every method, thrown away. The caches get the size that the longest prompt needs, and the
        first passes choose kernels, so that neither happens inside a measurement."""
        longest = max(len(prompt.encoded.ids) for prompt in prompts)
        drafters = [self._drafter(method) for method in self.methods.values()]
        spare = max((drafter.spare_capacity for drafter in drafters if drafter), default=0)
        capacity = longest + self.config.max_new_tokens + spare
        for engine in filter(None, (self.pair.target, self.pair.draft)):
            engine.reset(capacity)
            self._check_finite(engine, prompts[0])
        stop = StopRule(min(_WARM_UP_TOKENS, self.config.max_new_tokens))
        first = {prompt.task.name: prompt for prompt in reversed(prompts)}
        for entry in self.config.methods:
            for prompt in first.values():
                self._decode(entry, prompt, stop, seed=0)

    def remember(self, rows: Iterable[dict]) -> None:
        """Puts into the pools what samples that were decoded before had put there: rows of samples.parquet, in the
        order of their positions."""
        for row in rows:
            if row["pool_added"] is not None:
                self._pool(row["method"], row["task"], row["repeat"]).feed(row["pool_added"])

    def _drafter(self, method: Method) -> Drafter | None:
        return method.drafter(self.pair.draft, self.config.sampling)

    def _pool(self, label: str, task: str, repeat: int) -> PhrasePool | None:
        """The pool of a method on a task, if it has one: warm over the prompts, and each repeat has its own."""
        key = (label, task, repeat)
        if key not in self.pools:
            drafter = self._drafter(self.methods[label, task])
            self.pools[key] = drafter.pool if drafter else None
        return self.pools[key]

    @torch.inference_mode()
    def _check_finite(self, engine: Engine, prompt: Prompt) -> None:
        """Raises BenchError for a model whose weights, or whose precision, give no numbers."""
        if not engine.prefill(torch.tensor(prompt.encoded.ids)).logits.isfinite().all():
            which = "target" if engine is self.pair.target else "draft"
            raise BenchError(f"the {which} of {self.pair.spec.name} gives NaN or infinite logits; try another --dtype")

    def run_prompt(self, prompt: Prompt, bar: tqdm) -> tuple[list[dict], list[dict]]:
        """The rows of one sample: all methods, all repeats. Methods take turns at going first."""
        samples, steps = [], []
        for repeat in range(self.config.repeat):
            methods = self.config.methods
            shift = (prompt.position + repeat) % len(methods)
            for order, entry in enumerate(methods[shift:] + methods[:shift]):
                seed = sample_seed(self.config.seed, prompt.task.name, prompt.sample.id, repeat)
                pool = self._pool(entry.label, prompt.task.name, repeat)
                decoded = self._decode(entry, prompt, prompt.stop, seed, pool)
                key = dict(
                    pair=self.pair.spec.name,
                    task=prompt.task.name,
                    sample_id=prompt.sample.id,
                    method=entry.label,
                    repeat=repeat,
                )
                samples.append(sample_row(key, prompt, decoded, order, seed, self.pair.tokenizer))
                steps += step_rows(key, prompt, decoded, self.pair.tokenizer)
                bar.update()
        return self._scored(prompt, samples), steps

    def _decode(
        self, entry: MethodEntry, prompt: Prompt, stop: StopRule, seed: int, pool: PhrasePool | None = None
    ) -> Decoded:
        method = self.methods[entry.label, prompt.task.name]
        drafter = self._drafter(method)
        if pool:
            drafter.pool = pool
        decoder = Decoder(self.pair.target, drafter, self.config.sampling)
        return decoder.decode(list(prompt.encoded.ids), stop, method.policy(), seed)

    def _scored(self, prompt: Prompt, rows: list[dict]) -> list[dict]:
        """Scores the outputs, equal ones once: scoring may run the program that a model wrote."""
        task = prompt.task.task
        metrics = {text: task.score([prompt.sample], [text])[0] for text in {row["output"] for row in rows}}
        for row in rows:
            row["metrics"] = list(metrics[row["output"]].items())
            row["score"] = metrics[row["output"]].get(task.metric)
        return rows
