"""Where outputs end."""

import pytest

from methods import Decoder, Engine, Sampling, StopRule, get_method
from tests.methods.models import greedy_reference, noisy_copy, tiny_model

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"


def decode_text(tokens) -> str:
    return "".join(LETTERS[t] for t in tokens)


def test_first_reason_wins():
    rule = StopRule(3, frozenset([9]))
    assert rule.cut([1, 2], 0) is None
    assert rule.cut([1, 9, 2, 3], 0) == (2, "eos")
    assert rule.cut([1, 2, 3, 9], 0) == (3, "length")
    assert rule.cut([1, 2, 9], 2) == (3, "eos")


@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 8])
def test_a_stop_string_ends_at_the_same_token_for_every_draft_length(gamma):
    """Also when its characters come from two tokens, and from two draft-verify steps."""
    model = tiny_model("llama", seed=3)
    expected = greedy_reference(model, [5, 1], 30)
    text = decode_text(expected)
    target, draft = Engine(model), Engine(noisy_copy(model, 0.1))
    method = get_method("sd", {"gamma": gamma})
    decoder = Decoder(target, method.drafter(draft, Sampling()), Sampling())
    for start in range(0, 26):
        stop_string = text[start : start + 3]
        rule = StopRule(30, strings=("zzzz", stop_string), decode=decode_text)
        out = decoder.decode([5, 1], rule, method.policy())
        assert out.tokens == expected[: text.find(stop_string) + 3]
        assert out.finish_reason == "stop" or len(out.tokens) == 30
        assert rule.trim(decode_text(out.tokens)) == text[: text.find(stop_string)]


def test_trim_cuts_at_the_first_of_several_strings():
    rule = StopRule(9, strings=("END", "\n\n"), decode=decode_text)
    assert rule.trim("one\n\ntwo END") == "one"
    assert rule.trim("one END\n\n") == "one "
    assert rule.trim("one") == "one"
