"""The registry of pairs, and what loading refuses."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch
from accelerate import dispatch_model
from transformers import AutoModelForCausalLM

from bench import models
from bench.errors import BenchError
from bench.loading import eos_ids, load_pair
from bench.models import load_model, prune
from bench.pairs import Placement, find_pair, place, registry
from methods import Decoder, Engine, Sampling, StopRule, get_method
from methods.packing import PackedLinear, can_pack
from tests.bench.test_run import config
from tests.conftest import save_pair, tiny_tokenizer
from tests.methods.models import ARCHITECTURES, tiny_model

CPU = Placement("cpu", "float32")


def test_every_registered_pair_is_complete():
    for name, spec in registry().items():
        assert spec.target and spec.draft and spec.summary, name


def test_the_paper_pairs_are_registered():
    paper = {
        "deepseek-coder-33b",
        "deepseek-coder-6.7b",
        "llama-2-70b",
        "llama-2-13b",
        "qwen2.5-32b",
        "qwen2.5-14b",
        "qwen2.5-7b",
        "qwen3-8b",
    }
    assert paper | {"smollm2-135m", "smollm2-135m-pruned"} <= registry().keys()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (dict(name="smollm-135m"), "did you mean 'smollm2-135m'"),
        (dict(name=None, target="x"), "--draft"),
        (dict(name="qwen3-8b", target="x", draft="y"), "exclude each other"),
    ],
)
def test_pairs_that_cannot_be_found(arguments, said):
    with pytest.raises(BenchError, match=said):
        find_pair(**arguments)


@pytest.mark.parametrize(
    "device, dtype, said",
    [("tpu9", "auto", "--device"), ("cpu", "int4", "--dtype"), ("cuda:99", "auto", "CUDA devices")],
)
def test_placements_that_do_not_exist(device, dtype, said):
    with pytest.raises(BenchError, match=said):
        place(device, dtype)


def test_a_missing_model_and_a_broken_one_take_one_line(llama_pair, tmp_path):
    target, draft = map(str, llama_pair)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    for bad in (str(tmp_path / "nowhere"), "no-such/model", str(broken)):
        with pytest.raises(BenchError) as raised:
            load_pair(find_pair(None, bad, draft), CPU)
        assert "\n" not in str(raised.value)


def test_a_draft_with_another_tokenizer_is_refused(llama_pair, tmp_path):
    """The message names a token and both of its ids."""
    other = tmp_path / "other"
    AutoModelForCausalLM.from_pretrained(llama_pair[1]).save_pretrained(other)
    tiny_tokenizer(extra=("<think>",)).save_pretrained(other)
    with pytest.raises(BenchError, match="'<think>' is unknown in the target's and 119 in the draft's"):
        load_pair(find_pair(None, str(llama_pair[0]), str(other)), CPU)


def test_a_reduced_draft_vocabulary_changes_no_token(llama_pair, tmp_path):
    """For a draft of its own and for a pruned one; the ids come from a file."""
    ids = list(range(3, 90, 2))
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(ids))
    spec = find_pair(None, *map(str, llama_pair))
    plain = load_pair(spec, CPU)
    expected = Decoder(plain.target, None, Sampling()).decode([5, 6, 7], StopRule(40), None).tokens
    for draft in (spec.draft, "pruned:0"):
        pair = load_pair(replace(spec, draft=draft, draft_vocab=str(file)), CPU)
        method = get_method("sd")
        decoder = Decoder(pair.target, method.drafter(pair.draft, Sampling()), Sampling())
        assert decoder.decode([5, 6, 7], StopRule(40), method.policy()).tokens == expected
        assert decoder.drafter.draft.tokens[0].item() in ids


@pytest.mark.parametrize("text", ["{}", "[]", "[1, 1]", "[999]", "[-1]", "[true]", "[1.5]", "nonsense"])
def test_broken_draft_vocabularies(text, llama_pair, tmp_path):
    file = tmp_path / "ids.json"
    file.write_text(text)
    with pytest.raises(BenchError, match="draft_vocab"):
        load_pair(replace(find_pair(None, *map(str, llama_pair)), draft_vocab=str(file)), CPU)


def test_logits_end_with_the_tokenizers_vocabulary(llama_pair):
    pair = load_pair(find_pair(None, *map(str, llama_pair)), CPU)
    assert pair.target.vocab_size == pair.draft.vocab_size == len(pair.tokenizer)
    assert pair.eos_ids == {0}


def test_eos_ids_of_generation_config_and_tokenizer_are_joined():
    model = tiny_model("qwen2")
    model.generation_config.eos_token_id = [7, 9]
    assert eos_ids(model, tiny_tokenizer()) == {0, 7, 9}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.inference_mode()
def test_pruned_draft_is_the_target_without_the_layers(architecture):
    """Same logits as a model built from the remaining layers; target and draft keep separate caches but share
    weights."""
    layer_types = {"layer_types": ["sliding_attention", "full_attention"] * 2} if architecture == "gemma3" else {}
    model = tiny_model(architecture, layers=4, dtype=torch.float32, **layer_types)
    tokens = torch.arange(12)
    whole = model(tokens[None]).logits[0]
    cut = copy.deepcopy(model)
    del cut.model.layers[1:3]
    cut.config.num_hidden_layers = 2
    if layer_types:
        cut.config.layer_types = ["sliding_attention", "full_attention"]
    for index, layer in enumerate(cut.model.layers):
        layer.self_attn.layer_idx = index
    expected = cut(tokens[None], use_cache=False).logits[0]

    target = Engine(model)
    draft = Engine(prune(model, "1,2"))
    target.reset(16), draft.reset(16)
    torch.testing.assert_close(draft.forward(tokens).logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(target.forward(tokens).logits, whole, rtol=1e-4, atol=1e-4)
    assert draft.model.get_decoder().layers[1].mlp.up_proj is target.model.get_decoder().layers[3].mlp.up_proj


@pytest.mark.parametrize("layers", ["", "9", "a", "0,1", "-1"])
def test_layers_that_cannot_be_pruned(layers):
    with pytest.raises(BenchError, match="pruned:"):
        prune(tiny_model("llama"), layers)


def test_prompt_and_output_must_fit_the_context(tmp_path):
    from bench.run import run

    pair = save_pair(tmp_path, "llama")
    for too_long in (dict(max_new_tokens=5000), dict(max_new_tokens=4000)):
        with pytest.raises(ValueError, match="--max-new-tokens"):
            run(config(pair, **too_long), tmp_path / "results")
    assert not list((tmp_path / "results").iterdir())


def test_a_model_placed_by_hooks_gives_the_same_tokens(llama_pair):
    """accelerate's hooks move weights about: its linears are left as they are, and a pruned draft cannot share them."""
    spec = find_pair(None, *map(str, llama_pair))
    plain = load_pair(spec, CPU)
    hooked = dispatch_model(load_model(spec.target, CPU, torch.float32), {"": "cpu"}, force_hooks=True)
    engine = Engine(hooked, vocab_size=plain.target.vocab_size)
    assert not any(isinstance(module, PackedLinear) for module in hooked.modules())
    method = get_method("sd")
    outputs = []
    for target in (plain.target, engine):
        decoder = Decoder(target, method.drafter(plain.draft, Sampling()), Sampling())
        outputs.append(decoder.decode([5, 6, 7], StopRule(20), method.policy()).tokens)
    assert outputs[0] == outputs[1]
    with pytest.raises(BenchError, match="--device-map"):
        prune(hooked, "0")


def test_a_tokenizer_with_more_tokens_than_the_models(llama_pair, tmp_path):
    """An added token without a row is never drawn; a draft that lacks rows the target has is refused."""
    small = tmp_path / "small"
    model = tiny_model("llama", vocab=100, dtype=torch.float32, max_position_embeddings=4096)
    model.save_pretrained(small)
    tiny_tokenizer().save_pretrained(small)
    spec = find_pair(None, *map(str, llama_pair))
    pair = load_pair(replace(spec, target=str(small)), CPU)
    method, sampling = get_method("sd"), Sampling(2.0)
    decoder = Decoder(pair.target, method.drafter(pair.draft, sampling), sampling)
    assert max(decoder.decode([5, 6, 7], StopRule(60), method.policy()).tokens) < 100
    with pytest.raises(BenchError, match="fewer tokens"):
        load_pair(replace(spec, draft=str(small)), CPU)


def test_bfloat16_drafts_fall_back_on_a_cpu_without_it(llama_pair, monkeypatch):
    import bench.loading
    import methods.packing

    for module in (bench.loading, methods.packing):
        monkeypatch.setattr(module, "multiplies_bfloat16", lambda: False)
    pair = load_pair(replace(find_pair(None, *map(str, llama_pair)), draft_dtype="bfloat16"), CPU)
    assert pair.draft_dtype == "float32" and pair.draft.model.dtype == torch.float32
    assert not can_pack(torch.nn.Linear(4, 4, dtype=torch.bfloat16))


def test_a_generation_config_is_recorded_not_applied(llama_pair, tmp_path):
    target = tmp_path / "target"
    shutil.copytree(llama_pair[0], target)
    generation = json.loads((target / "generation_config.json").read_text())
    (target / "generation_config.json").write_text(
        json.dumps({**generation, "repetition_penalty": 5.0, "do_sample": True, "temperature": 0.5})
    )
    plain = load_pair(find_pair(None, *map(str, llama_pair)), CPU)
    changed = load_pair(find_pair(None, str(target), str(llama_pair[1])), CPU)
    assert changed.ignored_generation_config["repetition_penalty"] == 5.0
    outputs = [
        Decoder(p.target, None, Sampling()).decode([5, 6, 7], StopRule(20), None).tokens for p in (plain, changed)
    ]
    assert outputs[0] == outputs[1]


def test_a_model_that_another_process_converted_meanwhile_is_left_alone(monkeypatch, tmp_path):
    """It may be loading it already; two first runs at once must both work."""
    monkeypatch.setattr(models, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(models, "_package_file", lambda package, file, scratch: scratch / file)
    folder = tmp_path / "model"

    def convert(gguf, made):
        made.mkdir()
        folder.mkdir()
        (folder / "weights").write_text("the other's")
        (folder / models._DONE).write_text("")

    monkeypatch.setattr(models, "_convert", convert)
    assert models.converted_gguf("package/model.gguf") == folder
    assert (folder / "weights").read_text() == "the other's"
