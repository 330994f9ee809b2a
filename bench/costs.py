"""What a decoding step costs: measured on this machine, computed from published sizes, or a plain ratio."""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import BenchError
from bench.replay import Replayed
from bench.toml_text import read_toml, toml_text
from methods.settings import nearest

UNITS = ("s", "target passes")
_GROWTH = 6  # draft tokens over which the growth of a target pass is averaged
_HEADER = """Costs of draft-verify steps for replay, one row of target_s and one entry of draft_s per context length.
target_s: a target pass over as many tokens as `verified` says. draft_s: a pass of the draft model.
preverify_s, question_s: a question of a policy with and without a trained layer. overhead_s: the rest of a step.
phrase_s: what phrases add to a draft pass, by their tokens (`phrases`).
candidates_s: what candidates add to a target pass beside their tokens."""


@dataclass(frozen=True)
class Seconds:
    """Time of a sample's decoding by phase, named as in DESIGN §4; in the unit of the costs."""

    draft_s: float
    preverify_s: float
    verify_s: float
    other_s: float

    @property
    def decode_s(self) -> float:
        return self.draft_s + self.preverify_s + self.verify_s + self.other_s


@dataclass(frozen=True)
class Costs:
    """Prices of the parts of a step, in `unit`: "s", or "target passes".

    Attributes:
        contexts: context lengths in tokens that were priced; between and beyond them, times go on in straight lines.
        verified: sizes of target passes in tokens (the draft and the one before it) that were priced; likewise.
        target_s: (contexts, verified) a target pass, the comparison of its tokens included.
        draft_s: (contexts,) a pass of the draft model.
        preverify_s: a question to a trained layer, per block; None where no layer was at hand.
        question_s: a question of a policy without one, which reads a number on the host.
        overhead_s: what else a step with a draft takes.
        phrases, phrase_s: by their tokens, what phrases add to a draft pass; empty where that was not measured.
        candidates_s: what candidates add to a target pass beside their tokens.
        about: machine, pair, precision, versions.
    """

    name: str
    contexts: tuple[int, ...]
    verified: tuple[int, ...]
    target_s: tuple[tuple[float, ...], ...]
    draft_s: tuple[float, ...]
    preverify_s: float | None = None
    question_s: float = 0.0
    overhead_s: float = 0.0
    phrases: tuple[int, ...] = ()
    phrase_s: tuple[float, ...] = ()
    candidates_s: float = 0.0
    unit: str = "s"
    about: dict[str, Any] = field(default_factory=dict)

    def target(self, tokens: Sequence[int] | np.ndarray, context: Sequence[int] | np.ndarray) -> np.ndarray:
        """Target passes over `tokens` after `context` tokens; the two are broadcast."""
        tokens, context = np.broadcast_arrays(np.asarray(tokens, float), np.asarray(context, float))
        return self._in_context([_line(tokens, self.verified, row) for row in self.target_s], context)

    def draft(self, context: Sequence[int] | np.ndarray) -> np.ndarray:
        """A draft pass after `context` tokens."""
        return self._in_context(list(self.draft_s), np.asarray(context, float))

    def _in_context(self, times: list, context: np.ndarray) -> np.ndarray:
        if len(self.contexts) == 1:
            return times[0] + 0 * context
        (near, far), (first, last) = (times[0], times[-1]), (self.contexts[0], self.contexts[-1])
        return near + (context - first) / (last - first) * (far - near)

    @property
    def ratio(self) -> float:
        """A draft pass in target passes of one token, at the first context length: c."""
        return float(self.draft(self.contexts[0]) / self.target(1, self.contexts[0]))

    @property
    def marginal(self) -> float:
        """What one more draft token costs, drafted and verified, in target passes of one token: its draft pass, and the
        mean growth of a target pass over the first tokens."""
        context, sizes = self.contexts[0], (2, 2 + _GROWTH)
        first, last = (float(self.target(size, context)) for size in sizes)
        return self.ratio + max(0.0, last - first) / _GROWTH / float(self.target(1, context))

    def seconds(self, replayed: Replayed) -> Seconds:
        """Decoding time of a replayed sample; prefill is left out.

        Raises:
            BenchError: a method with a trained layer, or with phrases, and costs that were measured without.
        """
        context = replayed.prompt_tokens + np.array(replayed.start)
        read = np.array(replayed.phrase_tokens) if replayed.phrase_tokens else np.zeros(len(context), int)
        question_s = self.preverify_s if replayed.trained else self.question_s
        if question_s is None:
            raise BenchError(f"the costs '{self.name}' have no preverify_s: measure them with the pair's trained layer")
        return Seconds(
            draft_s=float((self.draft(context) * replayed.draft_forwards).sum()) + self._phrases(replayed, context),
            preverify_s=question_s * sum(replayed.asked),
            verify_s=float(self.target(1 + np.array(replayed.drafted) + read, context).sum())
            + self.candidates_s * int((read > 0).sum()),
            other_s=self.overhead_s * len(context) * replayed.drafts,
        )

    def _phrases(self, replayed: Replayed, context: np.ndarray) -> float:
        """What phrases add to the draft passes that read some."""
        passes = replayed.phrase_passes or [()] * len(context)
        sizes = [(size, place) for step, place in zip(passes, context, strict=True) for size in step if size]
        if not sizes:
            return 0.0
        if not self.phrases:
            raise BenchError(f"the costs '{self.name}' are older than phrases: measure them with: run_bench.py costs")
        tokens, places = np.array(sizes).T
        growth = self.draft(places) / self.draft(self.contexts[0])
        return float((_line(tokens, (0, *self.phrases), (0.0, *self.phrase_s)) * growth).sum())


def _line(x: np.ndarray, xs: Sequence[float], ys: Sequence[float]) -> np.ndarray:
    """A straight line from each point (xs, ys) to the next, the last ones going on beyond the ends."""
    if len(xs) == 1:
        return np.full(np.shape(x), ys[0])
    xs, ys = np.asarray(xs, float), np.asarray(ys, float)
    right = np.clip(np.searchsorted(xs, x), 1, len(xs) - 1)
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


def find_costs(source: str) -> Costs:
    """Costs by what `--costs` says: a FILE, "paper:NAME", "flat:RATIO", or "FILE@RATIO", a file's with draft passes that
    cost RATIO target passes.

    Raises:
        BenchError: none of these.
    """
    kind, colon, rest = source.partition(":")
    if colon and kind == "paper":
        return paper_costs(rest)
    if colon and kind == "flat":
        return flat_costs(rest)
    base, at, ratio = source.rpartition("@")
    if at and not Path(source).exists():
        return with_ratio(find_costs(base), ratio)
    if not Path(source).exists():
        raise BenchError(
            f"--costs {source}: no such file; give a file made by 'run_bench.py costs', paper:NAME "
            f"({', '.join(paper_names())}), flat:RATIO, as in flat:0.05, or FILE@RATIO"
        )
    return read_costs(Path(source))


def with_ratio(costs: Costs, ratio: float | str) -> Costs:
    """The costs of a pair with a dearer or cheaper draft model: a draft pass, and what phrases add to it, is scaled so that
    it costs `ratio` target passes; questions, verification and the rest stay."""
    value = _ratio(f"{costs.name}@{ratio}", ratio)
    scale = value / costs.ratio
    draft_s, phrase_s = (tuple(scale * seconds for seconds in times) for times in (costs.draft_s, costs.phrase_s))
    return replace(costs, name=f"{costs.name} @{value:g}", draft_s=draft_s, phrase_s=phrase_s)


def _ratio(source: str, ratio: float | str) -> float:
    try:
        value = float(ratio)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BenchError(f"--costs {source}: expected draft pass : target pass as a number, as in flat:0.05")
    return value


def flat_costs(ratio: float | str) -> Costs:
    """A target pass costs 1 whatever it verifies, a draft pass `ratio` of it, and nothing else costs anything."""
    value = _ratio(f"flat:{ratio}", ratio)
    free = {"phrases": (1,), "phrase_s": (0.0,)}
    return Costs(f"flat:{value:g}", (1,), (1,), ((1.0,),), (value,), 0.0, unit="target passes", **free)


def _paper_table() -> dict[str, Any]:
    return tomllib.loads(files("bench").joinpath("costs", "paper.toml").read_text(encoding="utf-8"))


def paper_names() -> list[str]:
    """The paper's pairs, by the names that "paper:NAME" takes."""
    return [name for name, value in _paper_table().items() if isinstance(value, dict)]


def paper_costs(name: str) -> Costs:
    """Costs of one of the paper's pairs, from bench/costs/paper.toml, which states the assumptions.

    Raises:
        BenchError: an unknown name.
    """
    table = _paper_table()
    if name not in paper_names():
        raise BenchError(f"--costs paper:{name}: no such pair{nearest(name, paper_names())}")
    row, second = table[name], table["bytes_per_s"] / table["bytes_per_parameter"]
    target, draft = (float(row[side]["parameters"] - row[side]["embedding"]) / second for side in ("target", "draft"))
    width, flat = table["layer_width"], table["flat_up_to"]
    # Projection of hidden state, confidence and entropy; attention; a feed-forward part of four times the width.
    layer = width * (row["draft"]["hidden"] + 2) + 12 * width**2
    assumptions = {key: value for key, value in table.items() if not isinstance(value, dict)}
    return Costs(
        f"paper:{name}",
        (1,),
        (1, flat),
        ((target, target),),
        (draft,),
        table["question_s"] + table["launch_s"] + layer / second,
        table["question_s"],
        phrases=(flat,),
        phrase_s=(0.0,),
        about={"summary": row["summary"], **assumptions, "draft": row["draft"], "target": row["target"]},
    )


def write_costs(path: Path, costs: Costs) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(toml_text(asdict(costs), _HEADER), encoding="utf-8")


def read_costs(path: Path) -> Costs:
    """The inverse of `write_costs`.

    Raises:
        BenchError: a file that cannot be read or does not hold costs.
    """
    table = read_toml(path, "a file made by 'run_bench.py costs'")
    names = [f.name for f in fields(Costs)]
    for key in table:
        if key not in names:
            raise BenchError(f"{path}: unknown key '{key}'{nearest(key, names)}")
    try:
        lists = {key: tuple(table.get(key, ())) for key in ("contexts", "verified", "draft_s", "phrases", "phrase_s")}
        costs = Costs(**{**table, **lists, "target_s": tuple(map(tuple, table["target_s"]))})
        numbers = (*costs.contexts, *costs.verified, *costs.draft_s, *sum(costs.target_s, ()))
        rest = (costs.preverify_s or 0.0, costs.question_s, costs.overhead_s, costs.candidates_s, *costs.phrase_s)
        valid = all(0 < x < math.inf for x in numbers) and all(0 <= x < math.inf for x in rest) and _shaped(costs)
        valid = valid and isinstance(costs.name, str) and costs.unit in UNITS and isinstance(costs.about, dict)
    except (KeyError, TypeError):
        valid = False
    if not valid:
        raise BenchError(f"{path} does not hold costs; make it with: python run_bench.py costs")
    return costs


def _shaped(costs: Costs) -> bool:
    rising = all(list(points) == sorted(set(points)) for points in (costs.contexts, costs.verified, costs.phrases))
    rising = rising and len(costs.phrases) == len(costs.phrase_s) and all(size > 0 for size in costs.phrases)
    rows = len(costs.contexts) == len(costs.target_s) == len(costs.draft_s) > 0
    return rising and rows and all(len(row) == len(costs.verified) > 0 for row in costs.target_s)
