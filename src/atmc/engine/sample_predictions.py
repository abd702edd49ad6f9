"""What a sample says about the evaluation sets, and the average of all samples so far.

Predictions are made from the sample as it is stored, in float32, by a twin of the chain's network: the chain's own may
be compiled for other shapes and is never disturbed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from atmc.data import eval_batches
from atmc.engine.guessing import TRAINING, best_constant, score
from atmc.engine.run_data import Examples
from atmc.storage.prediction_files import from_file, to_file

_PROBE = 256  # training examples that every sample has to stand: decoded once, and kept


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
        probe: Examples | None = None,
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
        self._probe_of, self._probe_batch = probe, batch_size
        self._probe: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def predict(self, sample: Mapping[str, Tensor], split: str) -> Tensor:
        """Probabilities [examples, classes] of one sample, float32, on the CPU."""
        self._put(sample)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            parts = [self.likelihood.probs(self.model(x)).float() for x, _ in self.batches[split]]
        return torch.cat(parts).cpu()

    @torch.no_grad()
    def try_out(self, sample: Mapping[str, Tensor]) -> dict[str, float]:
        """Scores of one sample on a few training examples, as they are (not augmented)."""
        probs, labels = self._on_probe(sample)
        return {} if labels is None else score(self.likelihood, probs, labels)

    def few_examples(self) -> list[tuple[Tensor, Tensor]]:
        """Batches of a few training examples, as they are (not augmented), with labels on the CPU."""
        if self._probe_of is not None and not self._probe:
            count = len(self._probe_of)
            index = torch.linspace(0, count - 1, min(count, _PROBE)).round().long()
            few = self._probe_of.subset(index, "train")
            size = min(self._probe_batch, len(index))
            self._probe = [(x.clone(), y.cpu()) for x, y in eval_batches(few, size, self.device, workers=0)]
        return self._probe

    def _on_probe(self, sample: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """What a sample says about these training examples, and their labels; None where there are none."""
        probe = self.few_examples()
        if not probe:
            return torch.empty(0), None
        self._put(sample)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            parts = [self.likelihood.probs(self.model(x)).float().cpu() for x, _ in probe]
        return torch.cat(parts), torch.cat([y for _, y in probe])

    @torch.no_grad()
    def training(self, sample: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
        """Scores on these training examples, of the sample just added, of all so far, and of the best constant answer.

        Samples of a posterior that has collapsed are no better than that constant, whatever the network could learn.
        """
        probs, labels = self._on_probe(sample)
        if labels is None:
            return {}
        found = {"single": score(self.likelihood, probs, labels), "guess": best_constant(self.likelihood, labels)}
        known = self.total.get(TRAINING)
        if known is not None or self.count == 1:  # a checkpoint of an older version has none
            self.total[TRAINING] = whole = probs if known is None else known + probs
            found["predictive"] = score(self.likelihood, whole / self.count, labels)
        return found

    def _put(self, sample: Mapping[str, Tensor]) -> None:
        """A sample's weights into the twin, which has those that are not sampled already."""
        lacking, odd = self.model.load_state_dict(dict(sample), strict=False)
        fixed = {name for name, p in self.model.named_parameters() if not p.requires_grad}
        fixed |= {name for name, _ in self.model.named_buffers()} if fixed else set()
        if odd or set(lacking) - fixed:
            raise ValueError(f"a sample of another network: {', '.join([*odd, *lacking][:4])}")

    def add(self, sample: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Predictions of a new sample for every split, and scores of it alone and of the average so far.

        Scores are of what the file will hold, so that `atmc evaluate`, which reads it, finds the same.
        """
        found: dict[str, Tensor] = {}
        scores: dict[str, Any] = {}
        self.count += 1
        for split in self.batches:
            probs = self.predict(sample, split)
            found[split] = probs
            kept = from_file(to_file(probs, self.likelihood.task != "classification"))
            known = self.total.get(split)
            self.total[split] = kept.clone() if known is None else known.add_(kept)
            single = self._score(kept, split)
            scores[split] = {"single": single, "predictive": self._score(self.total[split] / self.count, split)}
        return found, scores

    def _score(self, probs: Tensor, split: str) -> dict[str, float]:
        return score(self.likelihood, probs, self.labels[split])

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "total": dict(self.total)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self.total = {split: t.clone() for split, t in state["total"].items() if split in (*self.batches, TRAINING)}
