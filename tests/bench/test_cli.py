"""A user's mistakes: one line on stderr that says what to do, exit code 2, nothing left behind."""

import pytest

import run_bench


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--method", "pacr"], "unknown method"),
        (["--task", "gsm8"], "gsm8k"),
        (["--pair", "smolm"], "smollm2-135m"),
        (["--method", "sd", "--set", "sd.gamma=zero"], "a whole number"),
        (["--set", "gamma=3"], "METHOD.SETTING=VALUE"),
        (["--set", "sd.gamma=3", "--set", "sd.gamma=4"], "set twice"),
        (["--set", "entropy.h=0.2"], "not among --method"),
        (["--method", "sd,,entropy"], "separated by commas"),
        (["--pair", ""], "--pair is empty"),
        (["--resume", ""], "run.json"),
        (["--target", "a b c!", "--draft", "x"], "hub id"),
        (["--limit", "0"], "--limit"),
        (["--limit", "many"], "--limit"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--repeat", "0"], "--repeat"),
        (["--temperature", "-1"], "--temperature"),
        (["--temperature", "1e-40"], "--temperature"),
        (["--task", ""], "--task"),
        (["--device", "mps"], "--device"),
        (["--device", "cpu", "--device-map", "auto"], "--device-map"),
        (["--top-p", "0"], "--top-p"),
        (["--top-k", "-3"], "--top-k"),
        (["--device", "abacus"], "--device"),
        (["--dtype", "int3"], "--dtype"),
        (["--target", "somewhere"], "--draft"),
        (["--resume", "20000101-000000-nothing"], "run.json"),
        (["--split", "nope"], "split"),
        (["--few-shot", "99"], "--few-shot"),
        (["sweep", "nowhere.toml"], "nowhere.toml"),
        (["sweep"], "FILE.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_take_one_line_and_exit_2(argv, said, tmp_path, capsys):
    assert run_bench.main([*argv, "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err.strip()
    assert said in err and err.startswith("error: ") and "\n" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argv", [["--seed", "x"], ["--verbose"], ["--prompt", "foo"], ["ls", "nothing"], ["foo"]])
def test_the_parser_answers_in_one_line_too(argv, capsys):
    with pytest.raises(SystemExit) as left:
        run_bench.main(argv)
    err = capsys.readouterr().err.strip()
    assert left.value.code == 2
    assert err.startswith("error: ") and "--help" in err and "\n" not in err


def test_names_may_have_spaces_around_the_commas():
    args = run_bench.build_parser().parse_args(
        ["run", "--method", "sd, entropy", "--task", "gsm8k , mbpp", "--device", "cpu"]
    )
    config = run_bench.run_config(args)
    assert [entry.label for entry in config.methods] == ["ar", "sd", "entropy"]
    assert config.tasks == ("gsm8k", "mbpp")


@pytest.mark.parametrize(
    "text, said",
    [
        ("tasks = [", "not valid TOML"),
        ("tasks = ['gsm8k']", "methods"),
        ("tusks = ['gsm8k']", "did you mean 'tasks'"),
        ("tasks = 'gsm8k'", "wrong type"),
        ("tasks = ['gsm8k']\nlimit = -1\n[[methods]]\nmethod = 'sd'", "--limit"),
        ("tasks = ['gsm8k']\n[[methods]]\nname = 'sd'", "method and label"),
        ("tasks = ['gsm8k']\n[[methods]]\nmethod = 'sd'\n[[methods]]\nmethod = 'sd'", "listed twice"),
        ("tasks = ['gsm8k']\n[[methods]]\nmethod = 'sd'\nsettings.gamma = 'x'", "a whole number"),
        ("tasks = ['gsm8k']\n[[methods]]\nmethod = 'sd'\nsettings = 3", "method and label"),
        ("tasks = ['gsm8k']\n[[methods]]\nmethod = 'sd'\nlabel = 5", "method and label"),
        ("tasks = ['gsm8k']\n[[methods]]\nmethod = 'sd'\nlabel = 'a/b'", "letters, digits"),
        ("tasks = ['gsm8k']\n[[methods]]\nmethod = 'sd'\nlabel = 'ar'", "misleads"),
        ("tasks = ['gsm8k']\n[[methods]]\nmethod = 'ar'\nlabel = 'base'", "misleads"),
        ("tasks = ['gsm8k', 'gsm8k']\n[[methods]]\nmethod = 'sd'", "listed twice"),
        ("tasks = [1]\n[[methods]]\nmethod = 'sd'", "names in quotes"),
        ("tasks = ['gsm8k']\npairs = [1]\n[[methods]]\nmethod = 'sd'", "names in quotes"),
        ("tasks = ['gsm8k']\nprompt = 'weird'\n[[methods]]\nmethod = 'sd'", "--prompt"),
        ("tasks = ['gsm8k']\nmethods = [3]", "method and label"),
    ],
)
def test_broken_sweep_files(text, said, tmp_path, capsys):
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    assert run_bench.main(["sweep", str(file), "--out", str(tmp_path / "results")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("verb", run_bench.VERBS)
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as left:
        run_bench.main([verb, "--help"])
    assert left.value.code == 0
    assert "example" in capsys.readouterr().out


@pytest.mark.parametrize(
    "what, said",
    [("methods", "sd.gamma=5"), ("tasks", "humaneval"), ("pairs", "qwen2.5-32b"), ("columns", "accepted_flags")],
)
def test_listings(what, said, capsys):
    assert run_bench.main(["ls", what]) == 0
    assert said in capsys.readouterr().out


def test_every_sweep_that_ships_can_be_read():
    """Its methods and settings exist."""
    from importlib.resources import files

    from bench.run import check_methods
    from bench.sweep import read_sweep

    sweeps = [path for path in files("bench").joinpath("sweeps").iterdir() if path.name.endswith(".toml")]
    assert len(sweeps) >= 3
    for path in sweeps:
        assert check_methods(read_sweep(path, params="defaults"))
