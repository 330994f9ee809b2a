"""The engine: rollback is exact, logits are computed only where needed, memory does not grow with the number of
steps."""

import subprocess
import sys
import textwrap

import pytest
import torch

from methods import Engine, MethodError
from methods.packing import PackedLinear, can_pack, multiplies_bfloat16, pack_linears
from methods.tree import branch_parents
from tests.methods.models import ARCHITECTURES, noisy_copy, tiny_model

TOLERANCES = {
    "sdpa": 1e-9,
    "eager": 1e-5,
}  # eager attention takes its softmax in float32, whatever the model's precision


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


BRANCHES = [
    [(5, 6, 7)],
    [(5, 6, 7), (5, 6, 8), (9,)],
    [(5,), (7, 7, 7, 1, 2, 3, 4, 5, 6, 8, 9), (5, 2)],  # longer than a sliding window
    [(1, 2, 3), (1, 2, 3), (3, 2, 1), (2, 1)],
]


@pytest.fixture(
    scope="module",
    params=[*((name, "sdpa") for name in ARCHITECTURES), ("llama", "eager"), ("gemma3", "eager")],
    ids=str,
)
def twins(request):
    """Two engines with the same weights, a cache each: one reads branches, one reads token after token."""
    name, attention = request.param
    model = tiny_model(name, attn_implementation=attention)
    return Engine(model), Engine(noisy_copy(model, 0.0)), TOLERANCES[attention]


def reads(engine: Engine, tokens) -> torch.Tensor:
    return engine.forward(torch.tensor(tokens)).logits


@pytest.mark.parametrize("context", [1, 21])
@pytest.mark.parametrize("chain", [(3,), (3, 1, 4, 1)], ids=str)
@pytest.mark.parametrize("branches", BRANCHES, ids=str)
@torch.inference_mode()
def test_branches_are_read_as_if_alone(twins, context, chain, branches):
    """Each after the chain, blind to the others; contexts on both sides of the sliding windows' width."""
    engine, alone, tolerance = twins
    for e in (engine, alone):
        e.reset(64)
        e.prefill(torch.arange(context) * 7 % 40)
    tokens = [*chain, *(token for branch in branches for token in branch)]
    out = engine.forward_branches(torch.tensor(tokens), branch_parents(len(chain), branches), keep=len(tokens))
    assert (engine.forwards, engine.tokens, engine.length) == (1, len(tokens), context + len(tokens))
    torch.testing.assert_close(engine.model.get_output_embeddings()(out.hidden), out.logits)
    start = len(chain)
    for branch in branches:
        expected = reads(alone, [*chain, *branch])
        alone.rollback(len(chain) + len(branch))
        got = torch.cat([out.logits[: len(chain)], out.logits[start : start + len(branch)]])
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
        start += len(branch)


@pytest.mark.parametrize("keep", [1, 2, 5])
@torch.inference_mode()
def test_logits_of_branches_are_computed_where_they_are_kept(twins, keep):
    engine, _, _ = twins
    tokens, parents = torch.tensor([3, 1, 5, 6, 7]), branch_parents(2, [(5,), (6, 7)])
    engine.reset(64)
    everything = engine.forward_branches(tokens, parents, keep=5).logits
    engine.rollback(5)
    torch.testing.assert_close(engine.forward_branches(tokens, parents, keep=keep).logits, everything[-keep:])


@pytest.mark.parametrize("branches", BRANCHES, ids=str)
@torch.inference_mode()
def test_a_branch_that_moved_into_place_leaves_no_trace(twins, branches):
    """Whatever branch is kept and however much of it, the cache goes on as one that read the kept tokens in order: over
    a second pass of branches, and a rollback into what was moved."""
    engine, plain, tolerance = twins
    chain, size = (3, 1), sum(map(len, branches))
    tokens = torch.tensor([*chain, *(token for branch in branches for token in branch)])
    for number, branch in enumerate(branches):
        for kept in range(len(branch) + 1):
            for e in (engine, plain):
                e.reset(128)
                e.prefill(torch.arange(13) * 7 % 40)
            reads(plain, [*chain, *branch[:kept]] * 2)
            for _ in range(2):
                engine.forward_branches(tokens, branch_parents(2, branches), keep=1)
                first, start = engine.length - size, sum(map(len, branches[:number]))
                engine.move(first + start, first, kept)
                engine.rollback(size - kept)
            assert engine.length == plain.length
            for _ in range(2):
                after = [e.forward(torch.tensor([8, 9])).logits for e in (engine, plain)]
                torch.testing.assert_close(*after, rtol=tolerance, atol=tolerance)
                for e in (engine, plain):
                    e.rollback(3 + kept)


@torch.inference_mode()
def test_branches_need_attention_that_takes_a_mask():
    engine = Engine(tiny_model("llama"))
    engine.model.config._attn_implementation = "flash_attention_2"
    engine.reset(16)
    with pytest.raises(MethodError, match="sdpa"):
        engine.forward_branches(torch.tensor([1, 2, 3]), (-1, 0, 0), keep=1)


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
