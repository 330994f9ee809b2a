"""A trained layer's estimates for every rollout of a trace, computed at once, so that a replay only looks them up."""

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from bench.traces import Trace
from methods.errors import MethodError
from methods.preverifier.layer import PreVerifier, block_causal_mask

if TYPE_CHECKING:
    from bench.replay import RolloutDraft

_ROWS = 64  # rollouts judged in one pass


@torch.inference_mode()
def judge_rollouts(layer: PreVerifier, trace: Trace, block: int) -> np.ndarray:
    """The estimates (P, n) that `layer.estimator(block)` would give for each position's rollout, n its length or the
    longest draft that the layer can judge. float32."""
    length = min(trace.tokens.shape[1], layer.config.positions)
    device, index = layer.center.device, torch.arange(length)
    mask = block_causal_mask(torch.zeros(length, dtype=torch.long), index, block).to(device)
    parts = []
    for i in range(0, len(trace.tokens), _ROWS):
        rows = slice(i, i + _ROWS)
        numbers = torch.stack([trace.confidence[rows, :length], trace.entropy[rows, :length]], -1)
        hidden = torch.from_numpy(trace.hidden[trace.node[rows, :length].numpy()])
        tokens = None
        if "token" in layer.config.inputs:
            tokens = layer.token_embedding[trace.tokens[rows, :length].to(layer.token_embedding.device)]
        shape = (len(hidden), length)
        logits = layer(
            hidden.to(device),
            numbers.to(device),
            tokens,
            index.to(device).expand(shape),
            mask.expand(*shape, length),
        )
        parts.append(torch.sigmoid(logits).float().cpu())
    return torch.cat(parts).numpy()


class TableEstimator:
    """Stands in for a layer's `Estimator`; reads a table (P, n) at the row of the draft's position."""

    def __init__(self, table: np.ndarray, block: int):
        self.table, self.block, self._seen = table, block, 0

    def begin(self) -> None:
        self._seen = 0

    def estimate(self, draft: "RolloutDraft") -> list[float]:
        """Estimates of the tokens added since the last call: whole blocks, as the table was made for them.

        Raises:
            MethodError: a draft longer than those that the layer was trained on.
        """
        start, self._seen = self._seen, draft.length
        if draft.length > self.table.shape[1]:
            raise MethodError(
                f"the pre-verification layer judges drafts of up to {self.table.shape[1]} tokens, not {draft.length}: "
                "lower gamma_max, or collect longer rollouts and train it anew"
            )
        if draft.length % self.block:
            raise ValueError(f"a replay knows estimates of whole blocks of {self.block}, not of {draft.length} tokens")
        draft.read = True
        return self.table[draft.row, start : draft.length].tolist()


class TraceLayer:
    """A trained layer as the replay of one trace sees it: all that policies use of a `PreVerifier`."""

    def __init__(self, layer: PreVerifier, table: Callable[[int], np.ndarray]):
        self.config, self._table = layer.config, table

    def estimator(self, block: int) -> TableEstimator:
        return TableEstimator(self._table(block), block)


class EstimateCache:
    """Estimates by layer, trace and block size, each computed when first asked for. Keeps the traces it has seen."""

    def __init__(self):
        self._traces: dict[int, Trace] = {}
        self._tables: dict[tuple[PreVerifier, int], dict[int, np.ndarray]] = defaultdict(dict)

    def of(self, layer: PreVerifier, trace: Trace) -> TraceLayer:
        # Traces hold tensors and so compare by no value; they are told apart as objects, which must therefore live on.
        self._traces[id(trace)] = trace
        tables = self._tables[layer, id(trace)]

        def table(block: int) -> np.ndarray:
            if block not in tables:
                tables[block] = judge_rollouts(layer, trace, block)
            return tables[block]

        return TraceLayer(layer, table)
