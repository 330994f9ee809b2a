"""Replay makes the steps that decoding makes, and hindsight bounds what any policy reaches."""

import dataclasses
import random
from itertools import pairwise

import pytest
import torch

from bench.costs import find_costs, flat_costs
from bench.errors import BenchError
from bench.estimates import EstimateCache, judge_rollouts
from bench.oracle import fixed_sets, oracle, oracle_set, tokens_per_s
from bench.replay import ReplayDrafter, replay, replay_drafter, replay_set
from bench.replay_rows import Replays, describe, replay_rows
from bench.replay_run import costs_info
from bench.replay_table import notes, render, replay_summary
from bench.schema import REPLAYS
from methods import METHODS, Decoder, Engine, Method, Sampling, StopRule, get_method
from methods.drafters import AutoregressiveDrafter
from methods.policies import LengthPolicy
from methods.preverifier.layer import LayerConfig, PreVerifier
from methods.registry import MethodSpec
from methods.settings import setting
from tests.bench.made_traces import brute_force_trace, random_set
from tests.methods.models import noisy_copy, tiny_model

GREEDY, ROLLOUT, LENGTH = Sampling(), 8, 24


@dataclasses.dataclass(frozen=True)
class CuttingSettings:
    threshold: float = setting(0.5, "least confidence in a block")
    block: int = setting(2, "tokens per block")


class Cutting(LengthPolicy):
    """Forgets the block in which confidence falls below a threshold."""

    gamma_max = 7

    def __init__(self, settings: CuttingSettings):
        self.settings, self.block = settings, settings.block

    def draft_on(self, draft) -> bool:
        block = draft.confidence[draft.length - self.block : draft.length]
        return bool(block.min() >= self.settings.threshold)

    def keep(self, draft) -> int:
        return draft.length - self.block


class Judging(LengthPolicy):
    """Stops where a trained layer's mean estimate of a block falls below a threshold."""

    gamma_max = 7

    def __init__(self, settings: CuttingSettings, layer: PreVerifier):
        self.settings, self.block = settings, settings.block
        self.estimator = layer.estimator(settings.block)

    def begin(self) -> None:
        self.estimator.begin()
        self.estimates = []

    def draft_on(self, draft) -> bool:
        block = self.estimator.estimate(draft)
        self.estimates += block
        return sum(block) / len(block) >= self.settings.threshold


CUTTING = MethodSpec("cutting", "", CuttingSettings, Cutting, AutoregressiveDrafter)
JUDGING = MethodSpec("judging", "", CuttingSettings, Judging, AutoregressiveDrafter, trained=True)


def make_layer(width: int, kind: str = "transformer") -> PreVerifier:
    """Untrained, with estimates that spread over (0, 1)."""
    torch.manual_seed(0)
    label = "conditional" if kind == "mlp" else "token"
    layer = PreVerifier(LayerConfig(hidden=width, kind=kind, width=16, heads=2, positions=ROLLOUT, label=label)).eval()
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if weight.dim() == 2:
                weight *= 3 if "head" not in name else 10
    return layer


VARIED = [
    *(get_method("sd", {"gamma": gamma}) for gamma in (1, 2, 3, 5, ROLLOUT)),
    *(get_method("entropy", {"rule": "svip", "h": h, "gamma_max": 7}) for h in (0.2, 0.5, 0.65)),
    *(get_method("entropy", {"rule": "adaedl", "threshold": t, "gamma_max": ROLLOUT}) for t in (0.2, 0.5)),
    *(get_method("svip", {"h": h, "gamma_max": ROLLOUT}) for h in (0.4, 0.6)),
    *(get_method("adaedl", {"threshold": t, "gamma_max": ROLLOUT}) for t in (0.3, 0.5)),
    *(get_method("confidence", {"threshold": t, "gamma_max": ROLLOUT}) for t in (0.3, 0.6)),
    *(get_method("heuristic", {"start": n, "gamma_max": ROLLOUT}) for n in (1, 4)),
    *(get_method("gammatune", {"start": 3, "tau": t, "gamma_max": ROLLOUT}) for t in (0.0, 0.3)),
    *(Method(CUTTING, CuttingSettings(t, b)) for t in (0.3, 0.6) for b in (1, 2, 3)),
    *(
        Method(JUDGING, CuttingSettings(t, b), make_layer(32, kind))
        for t, b, kind in (
            (0.4, 1, "transformer"),
            (0.5, 2, "transformer"),
            (0.5, 3, "transformer"),
            (0.5, 2, "linear"),
        )
    ),
    *(
        get_method("pacer", {"block": block, **values}).with_layer(make_layer(32))
        for block in (1, 2, 3)
        for values in ({"threshold": 0.4}, {"failing_block": "cut"}, {"threshold": "auto"})
    ),
    *(get_method("specdec++", {"threshold": t}).with_layer(make_layer(32, "mlp")) for t in (0.5, 0.9)),
]
PHRASED = [
    *(
        get_method("ouroboros", {"gamma": gamma, "candidates": k, "phrase_length": n, "draft_candidates": d})
        for gamma, k, n, d in ((1, 1, 1, 1), (4, 0, 3, 2), (4, 4, 2, 0), (6, 3, 8, 3))
    ),
    get_method("ouroboros", {"gamma": 4, "warm_start": False}),
    get_method("ouroboros", {"gamma": 4, "pool_tokens": 9, "pool_phrases": 2}),
    *(
        get_method("pacer-ouroboros", values).with_layer(make_layer(32))
        for values in (
            {"block": 1, "threshold": 0.4},
            {"block": 2, "threshold": 0.4, "phrase_length": 3},
            {"block": 2, "failing_block": "cut"},
            {"block": 3, "threshold": 0.3, "growth": 1.2},
        )
    ),
]
NAMES = [f"{m.name}-{describe(m)}" for m in VARIED]


@pytest.fixture(scope="module")
def pair():
    model = tiny_model("llama")
    return Engine(model), Engine(noisy_copy(model, 0.15))


@pytest.fixture(scope="module")
def samples(pair):
    """(prompt, stop rule, trace): outputs that end at the length limit, and at an end-of-sequence token."""
    rng = random.Random(0)
    made = []
    for eos in (False, True):
        for _ in range(4):
            prompt = [rng.randrange(40) for _ in range(rng.randrange(1, 30))]
            stop = StopRule(LENGTH)
            trace = brute_force_trace(*pair, prompt, stop, ROLLOUT)
            if eos:
                stop = StopRule(LENGTH, frozenset([trace.output[rng.randrange(5, 18)]]))
                trace = brute_force_trace(*pair, prompt, stop, ROLLOUT)
            made.append((prompt, stop, trace))
    return made


@pytest.mark.parametrize("method", VARIED, ids=NAMES)
def test_replayed_steps_are_those_of_decoding(pair, samples, method):
    target, draft = pair
    lengths, cache = set(), EstimateCache()
    for prompt, stop, trace in samples:
        real = Decoder(target, method.drafter(draft, GREEDY), GREEDY).decode(prompt, stop, method.policy())
        replayed = replay(method, trace, stop.max_new_tokens, cache)
        assert real.tokens == trace.output[: trace.new_tokens] and real.finish_reason == trace.finish_reason
        for name in ("drafted", "accepted", "emitted", "draft_forwards"):
            assert getattr(replayed, name) == [getattr(step, name) for step in real.steps], name
        assert (replayed.target_forwards, replayed.new_tokens) == (real.target_forwards, len(real.tokens))
        lengths |= set(replayed.drafted)
    assert method.name == "sd" or len(lengths) > 2


@pytest.mark.parametrize("method", PHRASED, ids=[f"{m.name}-{describe(m)}" for m in PHRASED])
def test_replayed_phrases_are_those_of_decoding(pair, samples, method):
    """One drafter for all samples, as in a run: what it remembers of the earlier ones is replayed, too."""
    target, draft = pair
    decoder = Decoder(target, method.drafter(draft, GREEDY), GREEDY)
    drafter, cache = replay_drafter(method), EstimateCache()
    matched = hits = 0
    for prompt, stop, trace in [*samples, *samples[:2]]:
        real = decoder.decode(prompt, stop, method.policy())
        replayed = replay(method, trace, stop.max_new_tokens, cache, drafter)
        assert real.tokens == trace.output[: trace.new_tokens]
        for name in ("drafted", "accepted", "emitted", "draft_forwards", "phrase_tokens", "phrase_accepted"):
            assert getattr(replayed, name) == [getattr(step, name) for step in real.steps], name
        assert drafter.pool.use() == real.pool
        matched, hits = matched + sum(replayed.phrase_accepted), hits + real.pool.hits
    assert hits > 10
    # Candidates are followed after full acceptance, which only short drafts of this pair see often.
    assert matched or getattr(method.settings, "gamma", 4) > 1


def test_phrases_that_traces_do_not_tell_are_refused():
    for settings in ({"lookahead": 2}, {"corrections": True}):
        with pytest.raises(BenchError, match="cannot be replayed"):
            replay_set(get_method("ouroboros", settings), random_set(1))


def test_every_method_is_replayed_here():
    assert set(METHODS) - {"ar"} <= {method.name for method in VARIED + PHRASED}


def test_the_traces_vary(samples):
    """Otherwise equality would prove little."""
    assert len({int(n) for *_, trace in samples for n in trace.accepted}) >= 4
    assert {trace.finish_reason for *_, trace in samples} == {"length", "eos"}


def test_ar_is_a_pass_per_token(samples):
    _, stop, trace = samples[0]
    out = replay(get_method("ar"), trace, stop.max_new_tokens)
    assert out.start == list(range(trace.new_tokens)) and not sum(out.drafted)


def test_questions_are_counted(samples):
    _, stop, trace = samples[0]
    assert sum(replay(get_method("sd"), trace, stop.max_new_tokens).asked) == 0
    single = replay(Method(CUTTING, CuttingSettings(0.0, 1)), trace, stop.max_new_tokens)
    # Nothing is read to answer a question whose answer does not depend on the draft.
    assert sum(replay(get_method("heuristic", {"start": 3}), trace, stop.max_new_tokens).asked) == 0
    # The last token of a draft that reaches its limit is not asked about.
    assert single.asked == [max(n - 1, 0) for n in single.drafted]


def test_fewer_tokens_than_were_collected(pair, samples):
    target, draft = pair
    prompt, _, trace = samples[0]
    method = get_method("entropy", {"gamma_max": 7, "h": 0.5})
    for n in (1, 5, 11):
        real = Decoder(target, method.drafter(draft, GREEDY), GREEDY).decode(prompt, StopRule(n), method.policy())
        assert replay(method, trace, n).drafted == [step.drafted for step in real.steps]


@pytest.mark.parametrize("block", (1, 2, 3))
@pytest.mark.parametrize("kind", ("transformer", "linear", "mlp"))
def test_tables_hold_what_the_estimator_says(samples, kind, block):
    layer, trace = make_layer(32, kind), samples[0][2]
    table, estimator = judge_rollouts(layer, trace, block), layer.estimator(block)
    for j in range(0, trace.new_tokens, 5):
        drafter = ReplayDrafter("")
        drafter.start(trace, ROLLOUT)
        drafter.position = j
        draft = drafter.begin([])
        estimator.begin()
        found = []
        with torch.inference_mode():
            for _ in range(ROLLOUT // block):
                drafter.extend(block)
                found += estimator.estimate(draft)
        assert found == pytest.approx(table[j, : len(found)].tolist(), abs=1e-5)


def test_drafts_beyond_the_rollout_are_refused():
    traces = random_set(1, new_tokens=40, rollout=6)
    with pytest.raises(BenchError, match="--rollout"):
        replay_set(get_method("sd", {"gamma": 7}), traces)
    # A long gamma_max does no harm until a draft grows that long.
    assert replay_set(get_method("entropy", {"gamma_max": 40, "h": 0.01}), traces)[0].new_tokens == 40
    with pytest.raises(BenchError, match="gamma_max to at most 6"):
        replay_set(get_method("entropy", {"gamma_max": 40, "h": 10}), traces)


def test_sampled_traces_are_refused(samples):
    _, stop, trace = samples[0]
    with pytest.raises(BenchError, match="temperature 0"):
        replay(get_method("sd"), dataclasses.replace(trace, acceptance=trace.confidence), stop.max_new_tokens)


# Costs that are straight lines in the tokens verified, where hindsight's step by step choice is the best there is.
LINEAR = dataclasses.replace(flat_costs(0.1), verified=(1, 33), target_s=((1.0, 2.0),), overhead_s=0.05)


@pytest.mark.parametrize("costs", (flat_costs(0.02), flat_costs(0.3), LINEAR), ids=str)
def test_no_policy_beats_the_oracle(costs):
    traces = random_set(5)
    bound = oracle_set(traces, costs)
    by_gamma = [tokens_per_s(replays, costs) for replays in fixed_sets(traces).values()]
    assert by_gamma == [tokens_per_s(replay_set(get_method("sd", {"gamma": g}), traces), costs) for g in range(1, 17)]
    assert tokens_per_s(bound, costs) > max(by_gamma)
    for method in [m for m in VARIED if not m.spec.trained]:
        replays = replay_set(method, traces)
        for trace, ours, best in zip(traces.traces, replays, bound, strict=True):
            assert costs.seconds(best).decode_s <= costs.seconds(ours).decode_s + 1e-9
            rate = dict(zip(best.start, rates(best, trace, costs), strict=True))
            for start, value in zip(ours.start, rates(ours, trace, costs), strict=True):
                assert start not in rate or value <= rate[start] + 1e-9


def rates(replayed, trace, costs) -> list[float]:
    """Progress per cost of each step, the policy's questions free of charge."""
    context = trace.prompt_tokens + torch.tensor(replayed.start).numpy()
    drafted = torch.tensor(replayed.drafted).numpy()
    cost = costs.target(drafted + 1, context) + replayed.draft_forwards * costs.draft(context) + costs.overhead_s
    return (replayed.emitted / cost).tolist()


def test_the_oracle_wastes_nothing_and_ends_with_the_output():
    traces = random_set(3, new_tokens=50)
    for trace, best in zip(traces.traces, oracle_set(traces, flat_costs(0.1)), strict=True):
        assert best.drafted == best.accepted and best.new_tokens == 50
        assert all(k <= trace.accepted[j] for j, k in zip(best.start, best.drafted, strict=True))
        assert all(j + k + 1 == after for (j, after), k in zip(pairwise(best.start), best.drafted, strict=False))
    # Where a draft pass costs as much as the target's, hindsight drafts nothing.
    assert set(oracle(traces.traces[0], flat_costs(1.01), 50).drafted) == {0}


def test_the_table_frames_methods_by_their_bounds():
    sets = {"gsm8k": random_set(5), "mbpp": random_set(4, task="mbpp", seed=1)}
    methods = {"sd": get_method("sd", {"gamma": 3}), "svip": get_method("entropy", {"gamma_max": 16, "h": 0.5})}
    costs = find_costs("paper:deepseek")
    replays = Replays()
    rows = replay_rows(dict.fromkeys(sets, methods), sets, costs, replays)
    assert list(rows.columns) == [column.name for column in REPLAYS]
    table = replay_summary(rows)
    assert list(table.method) == ["ar", "best fixed", "sd", "svip", "oracle"] * 2
    by = table.set_index(["task", "method"])
    for task in sets:
        rows = by.loc[task]
        assert rows.speedup["ar"] == 1 and rows.oracle_share["best fixed"] == 0 and rows.oracle_share["oracle"] == 1
        assert rows.speedup["sd"] <= rows.speedup["best fixed"] < rows.speedup["oracle"]
        assert rows.speedup_low["sd"] <= rows.speedup["sd"] <= rows.speedup_high["sd"]
        assert rows.preverify_share["sd"] == 0 < rows.preverify_share["svip"] < 0.1
        assert (rows.tokens_per_target_forward == rows.new_tokens / rows.target_forwards).all()
        own = replay_rows({task: {}}, {task: sets[task]}, costs, replays).query("kind == 'fixed'")
        speeds = {name: f.new_tokens.sum() / f.decode_s.sum() for name, f in own.groupby("method")}
        assert f"gamma={max(speeds, key=speeds.get).removeprefix('fixed-')}" == rows.settings["best fixed"]
    text, below = render(table, costs.unit), notes(table, costs_info(costs))
    assert "decode tok/s" in text
    assert "prefill is left out" in below and "paper:deepseek" in below and "mbpp 4" in below
    other = dataclasses.replace(costs, about={"pair": "another"})
    assert "measured for the pair another" in notes(table, costs_info(other)) and "measured for" not in below
    with pytest.raises(BenchError, match="oracle"):
        replay_rows({task: {"oracle": methods["sd"]} for task in sets}, sets, costs, replays)
