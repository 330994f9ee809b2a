"""The engine: rollback is exact, logits are computed only where needed, memory does not grow with the number of
steps."""

import subprocess
import sys
import textwrap

import pytest
import torch

from methods import Engine
from methods.packing import PackedLinear, can_pack, multiplies_bfloat16, pack_linears
from tests.methods.models import ARCHITECTURES, tiny_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-6), (torch.float32, 1e-4)])
@torch.inference_mode()
def test_rollback_leaves_no_trace(architecture, dtype, tolerance):
    """Passes of several sizes with rollbacks in between give the logits of one pass over the tokens that were kept; the
    contexts are longer than the sliding windows."""
    tokens = torch.randint(0, 40, (40,), generator=torch.Generator().manual_seed(0))
    model = tiny_model(architecture, dtype=dtype)
    expected = model(tokens[None]).logits[0]
    engine = Engine(model)
    engine.reset(64)
    engine.prefill(tokens[:11])
    logits = []
    position = 11
    for step, size in enumerate((1, 5, 2, 1, 8, 4, 8)):
        wrong = torch.randint(0, 40, (step + 1,), generator=torch.Generator().manual_seed(step))
        engine.forward(wrong)
        engine.rollback(step + 1)
        logits.append(engine.forward(tokens[position : position + size]).logits)
        position += size
    torch.testing.assert_close(torch.cat(logits), expected[11:position], rtol=tolerance, atol=tolerance)
    assert engine.length == position
    assert engine.forwards == 14


@torch.inference_mode()
def test_prefill_computes_one_row_of_logits():
    model = tiny_model("qwen2")
    engine, rows = Engine(model), []
    model.get_output_embeddings().register_forward_hook(lambda head, inputs, output: rows.append(output.shape[1]))
    engine.reset(128)
    out = engine.prefill(torch.arange(100) % 40)
    engine.forward(torch.tensor([1, 2, 3]), keep=1)
    assert rows == [1, 1]
    assert out.logits.shape == (1, 40) and out.hidden.shape == (1, 32)
    assert engine.forwards == 1 and engine.tokens == 3


@torch.inference_mode()
def test_hidden_state_is_what_the_head_reads():
    model = tiny_model("llama")
    engine = Engine(model)
    engine.reset(16)
    out = engine.forward(torch.tensor([1, 2, 3]))
    torch.testing.assert_close(model.get_output_embeddings()(out.hidden), out.logits)


@torch.inference_mode()
def test_a_full_cache_is_an_error_not_a_wrong_answer():
    engine = Engine(tiny_model("llama"))
    engine.reset(4)  # rounded up to 256
    with pytest.raises(IndexError):
        engine.prefill(torch.zeros(257, dtype=torch.long))


@torch.inference_mode()
def test_cache_is_not_copied_by_a_step():
    engine = Engine(tiny_model("llama"))
    engine.reset(64)
    engine.prefill(torch.arange(20))
    addresses = [layer.keys.data_ptr() for layer in engine.cache.layers]
    for _ in range(10):
        engine.forward(torch.tensor([1, 2]))
        engine.rollback(1)
    assert addresses == [layer.keys.data_ptr() for layer in engine.cache.layers]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@torch.inference_mode()
def test_packed_linear_is_the_same_product(rows, dtype, tolerance):
    linear = torch.nn.Linear(48, 40, dtype=dtype)
    if not can_pack(linear):  # bfloat16, on a CPU without instructions for it: left as it is, which is the same product
        assert dtype == torch.bfloat16 and not multiplies_bfloat16()
        assert type(pack_linears(torch.nn.Sequential(linear))[0]) is torch.nn.Linear
        return
    x = torch.randn(rows, 48, dtype=dtype)
    torch.testing.assert_close(PackedLinear(linear)(x), linear(x), rtol=tolerance, atol=tolerance)


def test_peak_memory_does_not_grow_with_the_number_of_steps():
    """In a process of its own, with the cache already allocated: three times the steps. With a vocabulary of 50 000,
    keeping one row of logits per step would add 24 MB or more, copying the cache another few."""
    program = """
        import resource
        from methods import Decoder, Engine, Sampling, StopRule, get_method
        from tests.methods.models import noisy_copy, tiny_model
        import torch

        model = tiny_model("llama", vocab=50_000, dtype=torch.float32, max_position_embeddings=4096)
        draft = Engine(noisy_copy(model, 0.3))
        method, sampling = get_method("sd", {"gamma": 4}), Sampling(1.0)
        decoder = Decoder(Engine(model), method.drafter(draft, sampling), sampling)
        prompt = list(range(1, 1000))
        def peak(new_tokens):
            out = decoder.decode(prompt[: 1000 - new_tokens], StopRule(new_tokens), method.policy())
            return len(out.steps), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        _, before = peak(200)
        few, first = peak(200)
        many, last = peak(600)
        print(few, many, last - first)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    few, many, grown_mb = map(float, out.stdout.split())
    assert many - few > 120
    assert grown_mb < 8
