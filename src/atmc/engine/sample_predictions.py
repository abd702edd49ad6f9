"""What a sample says about the evaluation sets, and the average of all samples so far.

Predictions are made from the sample as it is stored, in float32, by a twin of the chain's network: the chain's own may
be compiled for other shapes and is never disturbed.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from atmc.data import eval_batches
from atmc.engine.run_data import Examples

SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


class Evaluator:
    """Runs samples over evaluation sets and keeps the running predictive. The network becomes its own."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Any,
        splits: Mapping[str, Examples],
        device: torch.device,
        batch_size: int,
        workers: int = 0,
    ) -> None:
        self.model = model.to(device).eval()
        self.likelihood = likelihood
        self.device = device
        self.batches = {
            split: eval_batches(data, min(batch_size, len(data)), device, workers=workers)
            for split, data in splits.items()
            if len(data)
        }
        self.labels = {split: splits[split].labels for split in self.batches}
        self.total: dict[str, Tensor] = {}
        self.count = 0

    @torch.no_grad()
    def predict(self, sample: Mapping[str, Tensor], split: str) -> Tensor:
        """Probabilities [examples, classes] of one sample, float32, on the CPU."""
        self.model.load_state_dict(dict(sample), strict=True)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            parts = [self.likelihood.probs(self.model(x)).float() for x, _ in self.batches[split]]
        return torch.cat(parts).cpu()

    def add(self, sample: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Predictions of a new sample for every split, and scores of it alone and of the average so far."""
        found: dict[str, Tensor] = {}
        scores: dict[str, Any] = {}
        self.count += 1
        for split in self.batches:
            probs = self.predict(sample, split)
            found[split] = probs
            known = self.total.get(split)
            self.total[split] = probs.clone() if known is None else known.add_(probs)
            single = self._score(probs, split)
            scores[split] = {"single": single, "predictive": self._score(self.total[split] / self.count, split)}
        return found, scores

    def _score(self, probs: Tensor, split: str) -> dict[str, float]:
        labels = self.labels[split]
        if self.likelihood.task != "classification":
            error = (probs - labels.to(probs.dtype).reshape(probs.shape)).double()
            return {"rmse": math.sqrt(float(error.square().mean()))}
        # As `posterior.metrics` defines them, which the engine may not import. A zero is read as the smallest number
        # that the file of float32 can hold, so that evaluation finds the same NLL.
        chosen = probs.double().gather(1, labels[:, None].long()).clamp_min(SMALLEST)
        return {
            "accuracy": float((probs.argmax(1) == labels).double().mean()),
            "nll": float(-chosen.log().mean()),
        }

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "total": dict(self.total)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self.total = {split: t.clone() for split, t in state["total"].items() if split in self.batches}
