"""AdamW on float32 master weights of a model that computes in a lower precision.

On a processor with bfloat16 matrix units a training step in bfloat16 is several times faster than in float32, but
updates smaller than bfloat16's spacing would be lost; so the optimiser works on a float32 copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MasterWeights:
    """Keeps float32 copies of `parameters`, updates them by AdamW and writes them back after every step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], weight_decay: float, betas: tuple[float, float]):
        self.working = dict(parameters)
        self.masters = {n: nn.Parameter(p.detach().float().clone()) for n, p in self.working.items()}
        decayed = [p for p in self.masters.values() if p.ndim > 1]
        others = [p for p in self.masters.values() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=betas, fused=True)

    def step(self, learning_rate: float, max_norm: float) -> float:
        """One update from the working copy's gradients, which are cleared; returns their norm before clipping."""
        for name, parameter in self.working.items():
            self.masters[name].grad = parameter.grad.float()
            parameter.grad = None
        norm = nn.utils.clip_grad_norm_(self.masters.values(), max_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self._write_back()
        return float(norm)

    @torch.no_grad()
    def _write_back(self) -> None:
        for name, master in self.masters.items():
            self.working[name].copy_(master)

    def state(self) -> dict[str, Tensor]:
        """All tensors needed to go on: weights and AdamW's moments."""
        tensors = {f"weight.{n}": p.detach() for n, p in self.masters.items()}
        for name, master in self.masters.items():
            for key, value in self.optimizer.state.get(master, {}).items():
                tensors[f"adamw.{key}.{name}"] = torch.as_tensor(value)
        return tensors

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores what `state` returned. Raises ValueError when it belongs to another student."""
        names = {n.removeprefix("weight.") for n in tensors if n.startswith("weight.")}
        if names != set(self.masters):
            raise ValueError("the checkpoint belongs to a student of another shape: use another --out folder")
        for name, master in self.masters.items():
            master.copy_(tensors[f"weight.{name}"])
            moments = {
                k: tensors[f"adamw.{k}.{name}"]
                for k in ("step", "exp_avg", "exp_avg_sq")
                if f"adamw.{k}.{name}" in tensors
            }
            if moments:
                self.optimizer.state[master] = {k: v.clone() for k, v in moments.items()}
        self._write_back()
