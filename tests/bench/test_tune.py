"""Equal tuning, and the files that it writes."""

import dataclasses

import pytest

from bench.config import MethodEntry
from bench.costs import flat_costs
from bench.errors import BenchError
from bench.oracle import fixed_sets, tokens_per_s
from bench.params import Params, find_params, read_params, write_params
from bench.replay import replay_set
from bench.tune import render, tune
from methods import METHODS, get_method
from run_bench import build_parser, run_config
from tests.bench.made_traces import random_set

COSTS = flat_costs(0.1)


def searching(name: str, values: dict | None = None, **search):
    """A method with a grid to search, whatever its own is."""
    method = get_method(name, values)
    return dataclasses.replace(method, spec=dataclasses.replace(method.spec, search=search))


@pytest.fixture(scope="module")
def sets():
    """Two tasks of unequal difficulty."""
    return {
        "gsm8k": random_set(4, new_tokens=60),
        "mbpp": random_set(4, task="mbpp", seed=1, new_tokens=60),
    }


def test_the_best_setting_is_found(sets):
    tuned = tune({"sd": searching("sd", gamma=tuple(range(1, 17)))}, sets, COSTS).methods["sd"]
    for task, traces in sets.items():
        speeds = {gamma: tokens_per_s(replays, COSTS) for gamma, replays in fixed_sets(traces).items()}
        gamma = max(speeds, key=speeds.get)
        ar = tokens_per_s(replay_set(get_method("ar"), traces), COSTS)
        assert tuned.best[task].settings.get("gamma", 5) == gamma
        assert tuned.best[task].speedup == pytest.approx(speeds[gamma] / ar)
        assert tuned.best[task].default <= tuned.best[task].speedup
    both = [
        tune({"sd": get_method("sd", {"gamma": gamma})}, sets, COSTS).methods["sd"].best["all"].speedup
        for gamma in range(1, 17)
    ]
    assert tuned.best["all"].speedup == pytest.approx(max(both))
    assert tuned.candidates.grid == 16 and len(tuned.candidates.settings) == 16


def test_every_method_tries_as_many_settings(sets):
    wide = {"gamma_max": (4, 8, 12, 16), "h": tuple(0.1 * i for i in range(1, 12))}
    methods = {
        "sd": searching("sd", gamma=tuple(range(1, 17))),
        "entropy": searching("entropy", rule=("svip", "adaedl"), **wide),
    }
    tuned = tune(methods, sets, COSTS, budget=9)
    for method in tuned.methods.values():
        tried = method.candidates.settings
        assert len(tried) == 9 and len({tuple(sorted(s.items())) for s in tried}) == 9
    again, other = tune(methods, sets, COSTS, budget=9), tune(methods, sets, COSTS, budget=9, seed=1)
    assert again == tuned and other.methods["sd"].candidates != tuned.methods["sd"].candidates
    text = render(tuned)
    assert "9 of 16" in text and "9 of 88" in text and "| all " in text


def test_the_first_of_equals_is_taken(sets):
    """adaedl's c changes nothing: the default stays."""
    tuned = tune({"entropy": searching("entropy", {"rule": "adaedl", "gamma_max": 8}, c=(0.1, 0.2))}, sets, COSTS)
    assert all(best.settings == {} for best in tuned.methods["entropy"].best.values())


def test_drafts_that_the_rollouts_do_not_hold():
    """A default gamma_max beyond the rollouts is lowered, and says so; settings that draft more are left out."""
    sets = {"gsm8k": random_set(2, new_tokens=40, rollout=6)}
    methods = {
        "entropy": searching("entropy", h=(0.2, 0.9)),
        "sd": searching("sd", {"gamma": 9}, gamma=(3, 5, 7, 9)),
    }
    tuned = tune(methods, sets, COSTS).methods
    assert tuned["entropy"].candidates.settings == [
        {"gamma_max": 6},
        {"gamma_max": 6, "h": 0.2},
        {"gamma_max": 6, "h": 0.9},
    ]
    assert tuned["sd"].candidates.settings == [{"gamma": 3}, {"gamma": 5}]
    assert tuned["sd"].candidates.left_out == 2


def test_traces_of_the_test_split_are_refused(sets):
    methods = {"sd": get_method("sd")}
    with pytest.raises(BenchError, match="--split train"):
        tune(methods, {**sets, "humaneval": random_set(1, task="humaneval", split="test")}, COSTS)
    disguised = dataclasses.replace(random_set(1, split="test"), split="train")
    with pytest.raises(BenchError, match="--split train"):
        tune(methods, {"gsm8k": disguised}, COSTS)
    with pytest.raises(BenchError, match="--budget"):
        tune(methods, sets, COSTS, budget=0)


def test_tuned_parameters_are_written_and_found(sets, tmp_path):
    methods = {"sd": searching("sd", gamma=(1, 2, 3, 8)), "entropy": searching("entropy", h=(0.5, 0.9))}
    tuned = tune(methods, sets, COSTS, budget=3)
    path = tmp_path / "sub" / "params.toml"
    write_params(path, tuned.params(commit="abc", date=None))
    params = find_params(str(path), "tiny")
    for name, method in tuned.methods.items():
        for task, best in method.best.items():
            assert params.settings(task, name) == best.settings
        assert params.tuning[name]["tried"] == len(method.candidates.settings)
        assert params.settings("cnn_dm", name) == method.best["all"].settings
    assert params.settings("gsm8k", "ar") == {}
    assert params.meta["commit"] == "abc" and params.meta["costs"] == "flat:0.1" and params.meta["budget"] == 3
    assert params.meta["data"]["mbpp"] == {"split": "train", "samples": 4, "rollout": 16, "max_new_tokens": 60}


def test_other_sources_of_parameters():
    for source in ("defaults", "paper"):
        params = find_params(source, "tiny")
        for name in METHODS:
            get_method(name, params.settings("gsm8k", name))
    with pytest.raises(BenchError, match="ship for nothing; make them with run_bench.py tune"):
        find_params("tuned", "nothing")
    with pytest.raises(BenchError, match="no-such-file"):
        find_params("no-such-file", "tiny")


def test_a_stand_in_has_its_own_parameters_or_those_of_the_pair_whose_tokens_it_has(tmp_path, monkeypatch):
    from bench import params

    monkeypatch.setattr(params, "files", lambda package: tmp_path)
    (tmp_path / "params").mkdir()
    for name, gamma in (("standin-1b-small", 9), ("smollm2-135m", 3)):
        write_params(tmp_path / "params" / f"{name}.toml", Params("", tasks={"all": {"sd": {"gamma": gamma}}}))

    def gamma(pair: str) -> int:
        config = run_config(build_parser("run").parse_args(["run", "--pair", pair, "--method", "sd", "--task", "mbpp"]))
        return config.params[pair]["mbpp"]["sd"]["gamma"]

    assert gamma("standin:1b/small") == 9
    assert gamma("standin:1b/1b") == gamma("smollm2-135m") == 3


def test_a_row_with_the_default_layer_takes_the_methods_own_parameters():
    def key(method, **settings):
        return MethodEntry(method, method, settings).params_key

    assert key("pacer") == key("pacer", layer="default", block=3) == "pacer"
    assert key("pacer", layer="linear") == "pacer:linear" and key("specdec++", layer="specdec++") == "specdec++"
    assert key("sd", layer="x") == "sd" and key("nonesuch", layer="x") == "nonesuch"  # refused later, in one line


@pytest.mark.parametrize(
    "text, words",
    (
        ("[task.all.sd]\ngamma = 3", "did you mean 'tasks'"),
        ("[tasks.all.sdd]\ngamma = 3", "did you mean 'sd'"),
        ("[tasks.gsm8k.sd]\ngama = 3", "did you mean 'gamma'"),
        ("[tasks.gsm8k.sd]\ngamma = 0", "from 1 to 256"),
        ("[tasks.gsm8k]\nsd = 3", "expected a table"),
        ("[tasks]\ngsm8k = 3", "expected a table"),
        ("meta = 3", "expected a table"),
        ("[tasks", "not valid TOML"),
    ),
)
def test_mistakes_in_files_are_named_in_one_line(text, words, tmp_path):
    path = tmp_path / "params.toml"
    path.write_text(text)
    with pytest.raises(BenchError) as error:
        read_params(path)
    assert str(path) in str(error.value) and words in str(error.value) and "\n" not in str(error.value)


def test_labels_that_are_no_methods_are_not_written(tmp_path):
    with pytest.raises(BenchError, match="unknown method 'mine'"):
        write_params(tmp_path / "params.toml", Params("", tasks={"all": {"mine": {}}}))
