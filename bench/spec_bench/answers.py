"""Reads Spec-Bench's model-answer files and says what is wrong with one, by file and line."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from bench.errors import BenchError

_LARGEST = 1 << 31
# Older scripts of Spec-Bench wrote other names for the same lists, one of them with a slip of the pen.
_STEP_COUNTS = ("decoding_steps", "idxs")
_LENGTHS = ("accept_lengths", "accept_lengths:")


@dataclass(frozen=True)
class Turn:
    """The answer to one turn of a question; `steps` holds the tokens that each draft-verify step added."""

    output: str
    new_tokens: int
    wall_s: float
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """The answers to one question: for each choice (a repetition, by its index) one per turn."""

    question_id: str
    category: str
    choices: dict[int, tuple[Turn, ...]]

    def turns(self) -> Iterator[tuple[int, int, Turn]]:
        """(index of the choice, number of the turn from 1, turn)."""
        for index, turns in self.choices.items():
            for number, turn in enumerate(turns, 1):
                yield index, number, turn


@dataclass(frozen=True)
class AnswerFile:
    """One method's answers to the question set `bench`, in the order of the file."""

    path: Path
    sha256: str
    bench: str
    model_id: str
    answers: tuple[Answer, ...]


def read_answers(path: Path) -> AnswerFile:
    """A model-answer file. The question set is named by its folder, `<bench>/model_answer*/`, else it is "spec_bench".

    Raises:
        BenchError: no such file, or one that is not in the format; the message names file and line.
    """
    try:
        data = path.read_bytes()
        text = data.decode()
    except OSError as error:
        raise BenchError(f"{path}: cannot be read ({error.strerror}); name a model-answer file of Spec-Bench") from None
    except UnicodeDecodeError:
        raise BenchError(f"{path}: not a text file in UTF-8; name a model-answer file of Spec-Bench") from None
    answers, lines, model_id = [], {}, ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = _object(line, where)
        answer = _answer(row, where)
        first = lines.setdefault(answer.question_id, number)
        if first != number:
            raise BenchError(
                f"{where}: question {answer.question_id!r} was answered in line {first} already; keep one of the two"
            )
        answers.append(answer)
        model_id = model_id or _text(row.get("model_id", path.stem), where, "model_id")
    if not sum(turn.new_tokens for answer in answers for *_, turn in answer.turns()):
        raise BenchError(f"{path}: holds no answers; name a model-answer file of Spec-Bench")
    return AnswerFile(path, hashlib.sha256(data).hexdigest(), _bench(path), model_id, tuple(answers))


def _bench(path: Path) -> str:
    folder = path.absolute().parent
    return folder.parent.name if folder.name.startswith("model_answer") and folder.parent.name else "spec_bench"


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{where}: not JSON ({error}); expected one answer per line") from None
    if not isinstance(row, dict):
        raise BenchError(f"{where}: not a JSON object; expected one answer per line")
    return row


def _no_constant(name: str):
    raise ValueError(f"{name} is no JSON number")


def _answer(row: dict[str, Any], where: str) -> Answer:
    question = _get(row, where, "question_id")
    if isinstance(question, bool) or not isinstance(question, int | str) or question == "":
        raise BenchError(f"{where}: question_id is {_short(question)}; expected a number")
    name = f"question {question!r}"
    category = _text(_get(row, where, "category"), where, "category")
    listed = _get(row, where, "choices")
    if not isinstance(listed, list) or not listed:
        raise BenchError(f"{where}: {name}: choices is {_short(listed)}; expected a list of one or more")
    choices = {}
    for place, choice in enumerate(listed):
        at = f"{where}: {name}, choice {place}"
        if not isinstance(choice, dict):
            raise BenchError(f"{at}: is {_short(choice)}; expected an object with turns, new_tokens, wall_time")
        index = _integers([choice.get("index", place)], at, "index")[0]
        if index in choices:
            raise BenchError(f"{at}: the index {index} stands twice; number the choices from 0")
        choices[index] = _choice(choice, at)
    return Answer(_text(str(question), where, "question_id"), category, choices)


def _choice(choice: dict[str, Any], where: str) -> tuple[Turn, ...]:
    texts = _list(_get(choice, where, "turns"), where, "turns")
    outputs = [_text(text, where, "turns") for text in texts]
    tokens = _integers(_get(choice, where, "new_tokens"), where, "new_tokens")
    seconds = _seconds(_get(choice, where, "wall_time"), where)
    lengths = _integers(_get(choice, where, *_LENGTHS), where, "accept_lengths")
    counts = next((choice[name] for name in _STEP_COUNTS if name in choice), None)
    sized = {"new_tokens": tokens, "wall_time": seconds}
    if counts is not None:
        counts = sized["decoding_steps"] = _integers(counts, where, "decoding_steps")
    for name, values in sized.items():
        if len(values) != len(outputs):
            raise BenchError(f"{where}: {len(outputs)} turns but {len(values)} {name}; expected one for each turn")
    if not outputs:
        raise BenchError(f"{where}: turns is empty; expected one or more")
    steps = split_steps(lengths, tokens, counts)
    if steps is None:
        raise BenchError(
            f"{where}: the {len(lengths)} accept_lengths cannot be told apart by turn: they fit neither "
            "decoding_steps nor new_tokens; leave the question out of all files"
        )
    if any(count and not own for count, own in zip(tokens, steps, strict=True)):
        raise BenchError(f"{where}: a turn has new_tokens but no accept_lengths; expected one for each step")
    return tuple(map(Turn, outputs, tokens, seconds, steps))


def split_steps(
    lengths: Sequence[int], new_tokens: Sequence[int], counts: Sequence[int] | None
) -> list[tuple[int, ...]] | None:
    """An answer's accept lengths by turn; None where nothing says which step belongs to which turn.

    `counts` are the `decoding_steps`, which some of Spec-Bench's methods number from 0 (so that each is one short) and
    others fill with the count of tokens; then the sums of the lengths must reach the turns' `new_tokens`.
    """
    if len(new_tokens) == 1:
        return [tuple(lengths)]
    for sizes in (counts, [count + 1 for count in counts]) if counts else ():
        if sum(sizes) == len(lengths):
            return _cut(lengths, list(accumulate(sizes, initial=0)))
    sums, ends = list(accumulate(lengths, initial=0)), list(accumulate(new_tokens, initial=0))
    if sums[-1] != ends[-1] or not set(ends) <= set(sums):
        return None
    return _cut(lengths, [*map(sums.index, ends[:-1]), len(lengths)])


def _cut(lengths: Sequence[int], ends: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(lengths[start:end]) for start, end in pairwise(ends)]


def _get(row: dict[str, Any], where: str, *names: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise BenchError(
        f"{where}: the field '{names[0]}' is missing; expected what Spec-Bench's evaluation/eval.py writes"
    )


def _list(value: Any, where: str, name: str) -> list:
    if not isinstance(value, list):
        raise BenchError(f"{where}: {name} is {_short(value)}; expected a list")
    return value


def _text(value: Any, where: str, name: str) -> str:
    if not isinstance(value, str):
        raise BenchError(f"{where}: {name} holds {_short(value)}; expected text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BenchError(f"{where}: {name} holds half of a surrogate pair, which is no text; remove it") from None
    return value


def _integers(values: Any, where: str, name: str) -> list[int]:
    for value in _list(values, where, name):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
            raise BenchError(f"{where}: {name} holds {_short(value)}; expected whole numbers from 0")
    return values


def _seconds(values: Any, where: str) -> list[float]:
    for value in _list(values, where, "wall_time"):
        known = isinstance(value, int | float) and not isinstance(value, bool)
        if not known or not 0 < value < _LARGEST or not math.isfinite(value):
            raise BenchError(f"{where}: wall_time holds {_short(value)}; expected seconds above 0")
    return [float(value) for value in values]


def _short(value: Any) -> str:
    """A value as it stands in the file, on one line."""
    try:
        text = json.dumps(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number"
    return text if len(text) <= 40 else text[:37] + "..."
