"""The search for layers to leave out."""

import torch

from bench.prune_search import Sequence, agreement, search
from methods import Decoder, Engine, Sampling, StopRule
from tests.methods.models import tiny_model


def test_a_layer_that_does_nothing_goes_first():
    model = tiny_model("llama", layers=4)
    for linear in (model.model.layers[2].self_attn.o_proj, model.model.layers[2].mlp.down_proj):
        linear.weight.data.zero_()
    target = Engine(model)
    sequences = []
    for start in range(6):
        prompt = [start, 2, 7]
        output = Decoder(target, None, Sampling()).decode(prompt, StopRule(20), None).tokens
        sequences.append(Sequence(torch.tensor(prompt + output), len(output)))
    assert agreement(target, sequences) == 1
    (first, score), (second, lower) = search(target, sequences, 2)
    assert first == [2] and score == 1
    assert 2 in second and lower <= 1
