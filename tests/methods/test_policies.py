"""Each length policy stops where its rule says, on drafts whose numbers are given."""

import random
import re
from itertools import accumulate
from math import prod
from operator import mul
from types import SimpleNamespace

import pytest
import torch

from methods import METHODS, Decoder, Engine, MethodError, Sampling, StopRule, get_method
from methods.decode import draft_step
from methods.draft import Draft
from methods.policies.pacer import Pace
from tests.methods.layers import LABELS, ConfidenceLayer
from tests.methods.models import noisy_copy, tiny_model


class ScriptedDrafter:
    """Drafts tokens whose confidence and entropy were written down before."""

    def __init__(self, confidence, entropy=None):
        self.confidence = torch.tensor(confidence, dtype=torch.float64)
        self.entropy = torch.tensor(confidence if entropy is None else entropy, dtype=torch.float64)
        size = dict(hidden=1, columns=1, dtype=torch.float64, device="cpu", keep_probs=False)
        self.draft = Draft(len(confidence), **size)

    def extend(self, n):
        new = slice(self.draft.length, self.draft.length + n)
        self.draft.confidence[new], self.draft.entropy[new] = self.confidence[new], self.entropy[new]
        self.draft.length += n

    def cut(self, n):
        self.draft.length -= n


def ending(policy, confidence, entropy=None, room=100) -> tuple[int, str]:
    """The length of one draft, and why it ended."""
    drafter = ScriptedDrafter(confidence, entropy)
    reason = draft_step(drafter, drafter.draft, policy, room)
    return drafter.draft.length, reason


def policy(name, **settings):
    method = get_method(name, settings)
    return (
        method.with_layer(ConfidenceLayer(label=LABELS.get(name, "token"))) if method.spec.trained else method
    ).policy()


def random_steps(seed=0, steps=60, length=64):
    rng = random.Random(seed)
    for _ in range(steps):
        yield [rng.random() for _ in range(length)], [rng.expovariate(2) for _ in range(length)], rng.random()


def lengths(policy) -> list[int]:
    """Draft lengths over many steps, some of whose tokens are accepted."""
    found = []
    for confidence, entropy, share in random_steps():
        length, _ = ending(policy, confidence, entropy)
        policy.observe(length, round(share * length))
        found.append(length)
    return found


@pytest.mark.parametrize(
    "row, settings", [("svip", {"h": 0.4}), ("adaedl", {"threshold": 0.6, "step": 0.5, "target_rate": 0.5})]
)
def test_a_rule_of_its_own_drafts_as_entropy_does_by_that_rule(row, settings):
    alone, combined = lengths(policy(row, **settings)), lengths(policy("entropy", rule=row, **settings))
    assert alone == combined
    assert len(set(alone)) > 3


def test_svip_stops_after_the_first_token_of_high_entropy():
    assert ending(policy("svip", c=0.25, h=0.5), [1] * 6, [0.2, 0.9, 1.0, 1.1, 0.1, 0.1]) == (4, "policy")


def test_adaedl_drafts_less_while_too_little_is_accepted():
    adaptive = policy("adaedl", threshold=0.4, step=1.0, threshold_decay=0.5, lambda_h=0.25)
    entropy = [0.36] * 8  # bound: 0.7
    assert ending(adaptive, [1] * 8, entropy, room=8) == (8, "length")
    adaptive.observe(8, 0)
    assert ending(adaptive, [1] * 8, entropy, room=8) == (1, "policy")


def test_confidence_stops_after_the_first_token_below_the_threshold():
    """The rule that the README's example of a new method shows."""
    for confidence, _, threshold in random_steps(length=20):
        low = next((i for i, p in enumerate(confidence) if p < threshold), 19)
        assert ending(policy("confidence", threshold=threshold), confidence)[0] == low + 1
    assert ending(policy("confidence", threshold=0.4), [0.9, 0.4, 0.39, 0.9]) == (3, "policy")
    assert ending(policy("confidence"), [1.0] * 20) == (20, "gamma_max")


def test_heuristic_follows_acceptance():
    heuristic = policy("heuristic", start=4, gamma_max=9)
    expected = [4, 6, 5, 7, 9, 9, 8, *range(7, 0, -1), 1, 3]
    accepted_whole = [True, False, True, True, True, False, *[False] * 8, True, False]
    for length, whole in zip(expected, accepted_whole, strict=True):
        assert ending(heuristic, [0.5] * 9)[0] == length
        heuristic.observe(length, length if whole else length - 1)


def test_a_new_sample_starts_anew():
    method = get_method("heuristic", {"start": 2})
    method.policy().observe(2, 2)
    assert ending(method.policy(), [0.5] * 64)[0] == 2


def test_gammatune_grows_after_full_acceptance_and_else_follows_the_mean():
    gammatune = policy("gammatune", start=3, eta=0.3, delta=2, gamma_max=10)
    # mean: 3, 3, 0.7 * 3 + 0.3 * 2 = 2.7, 2.7, 2.7, 1.89
    for length, accepted in [(3, 3), (5, 2), (3, 3), (5, 5), (7, 0), (2, 2), (4, 4), (6, 6), (8, 8), (10, 10), (10, 9)]:
        assert ending(gammatune, [0.5] * 10)[0] == length
        gammatune.observe(length, accepted)


def test_gammatune_never_drafts_less_than_one_token():
    gammatune = policy("gammatune", start=2, eta=1.0)
    gammatune.observe(2, 0)
    assert ending(gammatune, [0.5] * 16)[0] == 1


def test_gammatune_with_tau_stops_early():
    gammatune = policy("gammatune", start=4, tau=0.3, gamma_max=8)
    assert ending(gammatune, [0.9, 0.3, 0.2, 0.9, 0.9, 0.9, 0.9, 0.9]) == (3, "policy")
    assert ending(gammatune, [0.9] * 8) == (4, "policy")


@pytest.mark.parametrize("name", ["sd", "heuristic", "gammatune"])
def test_a_length_known_beforehand_needs_no_value_of_the_draft(name):
    fixed = policy(name)
    assert fixed.block > 1
    draft = SimpleNamespace(length=fixed.block)
    assert fixed.block == fixed.gamma_max or fixed.draft_on(draft) is False


def test_specdec_stops_where_a_rejection_becomes_likely():
    for p, _, threshold in random_steps(length=16):
        p = [0.7 + 0.3 * x for x in p]
        stop = next((k for k in range(1, 17) if 1 - prod(p[:k]) > threshold), 16)
        specdec = policy("specdec++", threshold=threshold)
        assert ending(specdec, p)[0] == stop
        # Nothing is asked about the token that reaches gamma_max.
        assert specdec.estimates == pytest.approx(list(accumulate(p, mul))[: min(stop, 15)])


def test_specdec_starts_each_draft_anew():
    specdec = policy("specdec++", threshold=0.7)
    assert ending(specdec, [0.5] * 16) == ending(specdec, [0.5] * 16) == (2, "policy")
    first = specdec.estimates
    ending(specdec, [0.1] * 16)
    assert first == [0.5, 0.25]


@pytest.mark.parametrize("positions, expected", [(5, 5), (16, 8)])
def test_specdec_drafts_no_further_than_its_layer_can_judge(positions, expected):
    method = get_method("specdec++", {"gamma_max": 8}).with_layer(ConfidenceLayer(positions, "conditional"))
    assert ending(method.policy(), [1.0] * 16) == (expected, "gamma_max")


def test_a_trained_method_asks_for_its_layer():
    with pytest.raises(ValueError, match=r"specdec\+\+"):
        get_method("specdec++").policy()


@pytest.mark.parametrize("spec", METHODS.values(), ids=lambda spec: spec.name)
def test_what_tuning_may_try_is_valid_and_distinct(spec):
    candidates = [tuple(vars(get_method(spec.name, values).settings).values()) for values in spec.candidates()]
    assert len(set(candidates)) == len(candidates)
    assert len(candidates) > 1 or spec.name == "ar"


# --- PACER -----------------------------------------------------------------------------------------------------------


def pacer(estimates: list[float], **settings):
    """(policy, draft): the draft's confidence, which the stand-in layer estimates by, is given token by token."""
    method = get_method("pacer", settings).with_layer(ConfidenceLayer())
    draft = Draft(16, 1, 2, dtype=torch.float32, device="cpu", keep_probs=False)
    draft.confidence[: len(estimates)] = torch.tensor(estimates)
    return method.policy(), draft


def pacer_ending(policy, draft, room: int = 16) -> tuple[str, int]:
    """Why and after how many tokens the policy ends the draft."""
    draft.length = 0

    class Given:
        def extend(self, n):
            draft.length += n

        def cut(self, n):
            draft.length -= n

    return draft_step(Given(), draft, policy, room), draft.length


def test_pacer_stops_with_the_block_whose_mean_is_low():
    policy, draft = pacer([0.9, 0.7, 0.9, 0.2, 0.4, 0.3, 0.9], block=2, threshold=0.5, growth=1.0)
    assert pacer_ending(policy, draft) == ("policy", 6)
    assert policy.estimates == pytest.approx([0.9, 0.7, 0.9, 0.2, 0.4, 0.3])


def test_pacers_threshold_grows_and_starts_again():
    flat = [0.6] * 16
    policy, draft = pacer(flat, block=2, threshold=0.5, growth=1.1)
    # 0.5, 0.55, then 0.605 > 0.6: the third block fails, on every step alike
    assert [pacer_ending(policy, draft) for _ in range(3)] == [("policy", 6)] * 3
    assert pacer_ending(*pacer(flat, block=2, threshold=0.5, growth=1.0)) == ("gamma_max", 16)


@pytest.mark.parametrize("combine, length", [("mean", 6), ("min", 4), ("product", 4), ("last", 6)])
def test_pacers_ways_to_combine(combine, length):
    policy, draft = pacer([0.9, 0.8, 0.4, 0.7, 0.1, 0.2], block=2, threshold=0.5, growth=1.0, combine=combine)
    assert pacer_ending(policy, draft) == ("policy", length)


def test_pacer_cuts_the_failing_block_if_asked():
    policy, draft = pacer([0.9, 0.8, 0.1, 0.1], block=2, threshold=0.5, failing_block="cut")
    assert pacer_ending(policy, draft) == ("policy", 2)


def test_cutting_is_refused_when_sampling():
    model = tiny_model("llama")
    method = get_method("pacer", {"failing_block": "cut"}).with_layer(ConfidenceLayer())
    decoder = Decoder(Engine(model), method.drafter(Engine(noisy_copy(model, 0.1)), Sampling(1.0)), Sampling(1.0))
    with pytest.raises(MethodError, match="pacer.failing_block=cut is for greedy"):
        decoder.decode([1, 2], StopRule(4), method.policy())


def test_pacers_own_threshold_follows_the_gain():
    """The more tokens a target pass brings, the more sure a draft token must be; the dearer, the more too."""
    good, bad, dear = (Pace(0.2), Pace(0.2), Pace(0.4))
    for _ in range(20):
        good.observe(4, 4)
        bad.observe(4, 0)
        dear.observe(4, 4)
    assert bad.threshold < good.threshold < dear.threshold
    # 5 tokens per 1 + 4 * 0.2 target passes, but for the first guess's share
    assert good.threshold == pytest.approx(0.2 * (20 * 5 + 4 * 2) / (20 * 1.8 + 4))


def test_a_trained_method_needs_its_layer():
    with pytest.raises(ValueError, match="layer"):
        get_method("pacer").policy()


@pytest.mark.parametrize("settings", [{"block": 20}, {"block": 6, "gamma_max": 4}], ids=str)
def test_pacer_refuses_blocks_that_its_layer_or_draft_has_no_room_for(settings):
    with pytest.raises(MethodError, match="pacer.block"):
        get_method("pacer", settings).with_layer(ConfidenceLayer()).policy()


def test_pacer_and_specdec_refuse_each_others_layers():
    for name, label in (("pacer", "conditional"), ("specdec++", "token")):
        with pytest.raises(MethodError, match=f"{re.escape(name)}.layer"):
            get_method(name).with_layer(ConfidenceLayer(label=label)).policy()
