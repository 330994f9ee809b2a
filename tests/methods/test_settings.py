"""Hyperparameters are checked by name, type and range, and the message says what to type."""

from dataclasses import dataclass

import pytest

from methods import METHODS, MethodError, get_method, parse_assignments
from methods.registry import settings_help
from methods.settings import parse_settings, setting


@dataclass(frozen=True)
class WordSettings:
    threshold: float = setting(0.5, "a number or a word", low=0, high=1, words=("auto", "none"))
    gamma: int = setting(4, "a whole number or a word", low=1, words=("auto",))


def test_defaults_pass_their_own_checks():
    for name, spec in METHODS.items():
        assert get_method(name, vars(spec.settings()) if vars(spec.settings()) else {}).settings == spec.settings()


@pytest.mark.parametrize(
    "name, values, said",
    [
        ("sdd", {}, "did you mean 'sd'"),
        ("sd", {"gama": 3}, "did you mean 'gamma'"),
        ("sd", {"gamma": "three"}, "a whole number from 1 to 256"),
        ("sd", {"gamma": "2.5"}, "a whole number"),
        ("sd", {"gamma": 0}, "from 1"),
        ("sd", {"gamma": "1e9"}, "to 256"),
        ("sd", {"gamma": "nan"}, "a whole number"),
        ("entropy", {"rule": "magic"}, "one of adaedl, svip"),
        ("entropy", {"h": "-1"}, "at least 0"),
        ("entropy", {"h": "nan"}, "a number"),
        ("entropy", {"h": "inf"}, "a number"),
        ("ar", {"gamma": 3}, "no such setting"),
    ],
)
def test_mistakes_are_named(name, values, said):
    with pytest.raises(MethodError, match=said) as raised:
        get_method(name, values)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["gamma=3", "sd.gamma", "=", "sd.=3", ".gamma=3", "", "nope.gamma=3"])
def test_malformed_assignments(text):
    with pytest.raises(MethodError, match="--set"):
        parse_assignments([text])


def test_assignments_are_grouped_by_method():
    assert parse_assignments(["sd.gamma=3", "entropy.h=0.2", "entropy.rule=svip"]) == {
        "sd": {"gamma": "3"},
        "entropy": {"h": "0.2", "rule": "svip"},
    }
    assert get_method("sd", {"gamma": "3"}).settings.gamma == 3


def test_a_number_may_be_a_word():
    assert parse_settings(WordSettings, "m", {"threshold": "auto", "gamma": "auto"}) == WordSettings("auto", "auto")
    assert parse_settings(WordSettings, "m", {"threshold": "0.25", "gamma": "3"}) == WordSettings(0.25, 3)


@pytest.mark.parametrize(
    "values, said",
    [
        ({"threshold": "atuo"}, "--set m.threshold=atuo: expected a number from 0 to 1 or auto or none"),
        ({"threshold": 2}, "--set m.threshold=2: expected a number from 0 to 1 or auto or none"),
        ({"gamma": "none"}, "--set m.gamma=none: expected a whole number of at least 1 or auto"),
    ],
)
def test_the_words_are_named(values, said):
    with pytest.raises(MethodError) as raised:
        parse_settings(WordSettings, "m", values)
    assert str(raised.value) == said


@pytest.mark.parametrize("name", METHODS)
def test_what_the_help_shows_can_be_set(name):
    """Each line begins with an assignment that gives the default."""
    lines = [line.split("  ")[0] for line in settings_help(METHODS[name])]
    assert get_method(name, parse_assignments(lines).get(name)) == get_method(name)
