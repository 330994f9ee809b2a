"""What --dry-run says of a pair is what loading it finds."""

import pytest

from bench.dry_run import free_memory, read_bandwidth
from bench.loading import load_pair
from bench.pairs import DTYPES, PairSpec, Placement
from bench.sizes import context_limit, draft_size, target_size
from methods.packing import PackedLinear
from run_bench import main
from tests.bench.test_standin import tiny_standin  # noqa: F401


def weights_of(engine, itemsize: int) -> int:
    """Bytes of the weights that lie in memory for a loaded engine, packed ones included."""
    seen = {id(p): p.numel() for p in engine.model.parameters()}
    for module in engine.model.modules():
        if isinstance(module, PackedLinear):
            seen[id(module.packed)] = module.packed.numel()
            if module.bias is not None:
                seen[id(module.bias)] = module.bias.numel()
    return itemsize * sum(seen.values())


def check(spec: PairSpec, dtype: str) -> None:
    pair, itemsize = load_pair(spec, Placement("cpu", dtype)), DTYPES[dtype].itemsize
    for engine, size in ((pair.target, target_size(spec)), (pair.draft, draft_size(spec))):
        assert weights_of(engine, itemsize) == pytest.approx(size.weight_bytes(itemsize, on_cpu=True), rel=1e-6)
        engine.reset(256)
        engine.prefill(__import__("torch").arange(8))
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in engine.cache.layers)
        assert held == size.cache_bytes(itemsize, 256)
    assert context_limit(spec) == pair.context_limit


def test_sizes_are_those_of_a_loaded_pair(any_pair):
    target, draft = map(str, any_pair)
    check(PairSpec("tiny", target, draft), "float32")


def test_sizes_of_a_pruned_draft_are_those_of_what_it_keeps(llama_pair):
    target, _ = map(str, llama_pair)
    spec = PairSpec("tiny", target, "pruned:1")
    check(spec, "float32")
    assert draft_size(spec).borrowed and not target_size(spec).borrowed


def test_sizes_of_the_default_pair():
    from bench.pairs import find_pair

    spec = find_pair("smollm2-135m")
    pair = load_pair(spec, Placement("cpu", "float32"))
    for engine, size in ((pair.target, target_size(spec)), (pair.draft, draft_size(spec))):
        itemsize = engine.model.get_input_embeddings().weight.dtype.itemsize
        assert weights_of(engine, itemsize) == size.weight_bytes(itemsize, on_cpu=True)


def test_sizes_of_a_stand_in_are_those_of_its_shape(tiny_standin):  # noqa: F811
    from bench.pairs import find_pair

    spec = find_pair("standin:big/middle@tiny")
    check(spec, "float32")
    assert target_size(spec).parameters > 3 * target_size(find_pair("standin:middle/small@tiny")).parameters


def test_a_pass_reads_what_it_multiplies_with_and_the_cache(llama_pair):
    target, draft = map(str, llama_pair)
    size = target_size(PairSpec("tiny", target, draft))
    multiplied = size.parameters - (0 if size.tied else size.embedding)
    assert size.read_bytes(2, 0) == 2 * multiplied
    assert size.read_bytes(2, 100) - size.read_bytes(2, 0) == 200 * size.cached


OPTIONS = [
    "--method",
    "sd",
    "--task",
    "gsm8k",
    "--limit",
    "2",
    "--data-dir",
    "builtin",
    "--prompt",
    "base",
    "--dry-run",
]


def pair_options(pair) -> list[str]:
    return ["--target", str(pair[0]), "--draft", str(pair[1])]


def test_it_says_whether_the_pair_fits_and_runs_nothing(llama_pair, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*OPTIONS, *pair_options(llama_pair), "--memory", "1", "--bandwidth", "100"]) == 0
    text = capsys.readouterr().out
    assert "1 GB: float32" in text and "fits" in text and "does not fit" not in text
    assert "100.0 GB/s (as given)" in text and not list(tmp_path.iterdir())
    assert main([*OPTIONS, *pair_options(llama_pair), "--memory", "0.0001", "--bandwidth", "100"]) == 0
    assert "fits" not in capsys.readouterr().out.replace("does not fit", "")


def test_without_numbers_it_measures_this_machine(llama_pair, capsys):
    assert main([*OPTIONS, *pair_options(llama_pair)]) == 0
    assert "(measured on cpu)" in capsys.readouterr().out
    assert 1e8 < read_bandwidth("cpu") < 1e13 and free_memory()["cpu"] > 1e8


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--memory", "0"], "--memory 0: expected a number above 0"),
        (["--bandwidth", "-3"], "--bandwidth -3: expected a number above 0"),
        (["--bandwidth", "nan"], "--bandwidth nan: expected a number above 0"),
        (["--max-new-tokens", "100000"], "has a context of 4096 tokens"),
        (["--method", "sd", "--set", "sd.gamma=x"], "sd.gamma"),
        (["--resume", "x"], "leave out --resume"),
    ],
)
def test_mistakes_are_answered_in_a_line(llama_pair, options, reason, capsys):
    assert main([*OPTIONS, *pair_options(llama_pair), *options]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
