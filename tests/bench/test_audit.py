"""The audit finds nothing in lossless outputs, and every planted fault."""

import dataclasses

import pytest
import torch

import methods.decode
import methods.verification
from bench.config import MethodEntry, RunConfig
from bench.pairs import find_pair, place
from bench.run import run
from methods import Engine
from methods.sampling import draw
from methods.verification import Verdict, count_leading, verify
from run_bench import main

METHODS = (MethodEntry("ar", "ar"), MethodEntry("sd", "sd", {"gamma": 2}), MethodEntry("entropy", "entropy"))


def config(pair, **changes) -> RunConfig:
    target, draft = map(str, pair)
    base = RunConfig(
        pairs=(find_pair(None, target, draft),),
        tasks=("gsm8k",),
        methods=METHODS,
        placement=place("cpu", "float32"),
        limit=4,
        max_new_tokens=48,
        audit=4,
        data_dir="builtin",
    )
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("options", ({}, {"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9, "top_k": 20}))
def test_lossless_outputs_pass(llama_pair, tmp_path, capsys, dtype, options):
    own = (*METHODS, MethodEntry("ouroboros", "ouroboros"))
    folder = run(config(llama_pair, placement=place("cpu", dtype), methods=own, **options), tmp_path)
    (found,) = folder.info()["audit"].values()
    assert found["lossless"], found
    assert found["samples"] == 4 and sum(method["outputs"] for method in found["methods"]) == 16
    if dtype == "float32":
        assert all(method["same"] == 4 for method in found["methods"])
    assert main(["audit", str(folder.path), "--limit", "1"]) == 0
    assert "Nothing wrong" in capsys.readouterr().out


def accepts_second_best(monkeypatch):
    def lossy(logits, draft, sampling, generator):
        verdict, k = verify(logits, draft, sampling, generator), draft.length if draft else 0
        close = (logits[:k].topk(2).indices == torch.tensor(verdict.tokens).reshape(k, 1)).any(-1)
        accepted = count_leading(close).item() if k else 0
        if accepted == verdict.accepted:
            return verdict
        return Verdict(verdict.tokens, accepted, logits[accepted].argmax().item(), draws=verdict.draws)

    monkeypatch.setattr(methods.decode, "verify", lossy)


def skips_the_residual(monkeypatch):
    right = methods.verification._rejection

    def lossy(p, draft, tokens, generator):
        accepted, token, numbers = right(p, draft, tokens, generator)
        if not draft or not draft.length:
            return accepted, token, numbers
        token = draw(p[accepted], generator)
        q = draft.distribution(accepted, p.shape[1])
        return accepted, token, torch.cat([numbers[:-2], p[accepted[0], token], q[token]])

    monkeypatch.setattr(methods.verification, "_rejection", lossy)


def rolls_back_one_too_few(monkeypatch):
    right = Engine.rollback
    monkeypatch.setattr(Engine, "rollback", lambda self, n: right(self, max(0, n - 1)))


def misplaces_after_full_acceptance(monkeypatch):
    right_settle, right_run = methods.decode.Decoder._settle, Engine._run

    def settle(self, verdict, drafted, candidates):
        right_settle(self, verdict, drafted, candidates)
        if drafted and verdict.accepted == drafted:
            self.target.shifted = getattr(self.target, "shifted", 0) + 1

    def shifted(self, tokens, keep, **extra):
        if not self.length:
            self.shifted = 0
        if off := getattr(self, "shifted", 0):
            extra["position_ids"] = torch.arange(len(tokens))[None] + self.length + off
        return right_run(self, tokens, keep, **extra)

    monkeypatch.setattr(methods.decode.Decoder, "_settle", settle)
    monkeypatch.setattr(Engine, "_run", shifted)


def misreads_several_tokens(monkeypatch):
    """A fault of the engine itself, which the audit's own passes share."""
    right = Engine._run

    def wrong(self, tokens, keep, **extra):
        if 1 < len(tokens) < 8 and self.length:
            extra["position_ids"] = torch.arange(len(tokens))[None] + self.length + 1
        return right(self, tokens, keep, **extra)

    monkeypatch.setattr(Engine, "_run", wrong)


GREEDY = (accepts_second_best, rolls_back_one_too_few, misplaces_after_full_acceptance, misreads_several_tokens)
SAMPLING = (skips_the_residual, rolls_back_one_too_few, misplaces_after_full_acceptance, misreads_several_tokens)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize(
    "plant, temperature", [*((plant, 0.0) for plant in GREEDY), *((plant, 1.0) for plant in SAMPLING)]
)
def test_a_planted_fault_is_found(llama_pair, tmp_path, capsys, monkeypatch, dtype, plant, temperature):
    plant(monkeypatch)
    folder = run(config(llama_pair, placement=place("cpu", dtype), temperature=temperature), tmp_path)
    (found,) = folder.info()["audit"].values()
    by_method = {method["method"]: method for method in found["methods"]}
    assert not found["lossless"]
    assert by_method["sd"]["wrong"] or by_method["sd"]["fault"]
    assert not by_method["ar"]["wrong"] and not by_method["ar"]["fault"]
    assert main(["--resume", folder.run_id, "--out", str(tmp_path)]) == 1  # finished: says again what was found
    assert "Not lossless: " in capsys.readouterr().out


def test_the_audit_can_be_left_out_and_made_up_for(llama_pair, tmp_path, capsys):
    folder = run(config(llama_pair, audit=0, limit=1, max_new_tokens=8), tmp_path)
    assert "audit" not in folder.info()
    assert main(["audit", str(folder.path)]) == 0
    assert main(["audit", str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err
