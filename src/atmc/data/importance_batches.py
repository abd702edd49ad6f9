"""Mini-batches drawn by importance: examples with a large gradient more often, each class in its share.

Example i is drawn with the probability

    p_i = (1 − λ) s_i/Σs + λ/N,   λ = 0.6,   s_i = ‖∂nll_i/∂outputs‖ when i was last drawn (its score),

and weighted with 1/(b N p_i): the weighted sum over a batch of b estimates the mean nll without bias. Scores come from
earlier steps alone, so this holds given the past, and the noise of different steps is uncorrelated. λ bounds weights by
1/(λb), however old a score is.

A batch is stratified: draw k is where the cumulative p reaches (k + U_k)/b, U_k uniform, along the data sorted by
class. Without `strata` draws are independent, as `noise_examples` needs them: where it reaches the U_k in their order.

The host makes U as a pure function of (seed, epoch); everything else is on the device, where nothing is read back. An
"epoch" is as many draws as there are examples. `batch(step)` depends on the seed, the step and the scores.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from atmc.data import epoch_order
from atmc.data.dataset import ImageData
from atmc.data.device_batches import DeviceBatches
from atmc.data.training_batches import Batches

# λ. At 0.3 an example with a small score that has become hard weighs so much that on a logistic regression the variance
# in the stiffest direction is 1.1 times too large, with noise_rank = 16; at 0.6 it is right (docs/minibatches.md).
UNIFORM = 0.6
UNSEEN = -1.0  # score of an example that was not drawn yet: it counts as much as the mean of the others
# Probabilities are whole numbers of this unit. Their sum is then exact in any order; sums of floats are not on a GPU,
# and a resumed run would draw others.
UNIT = 2.0**-44


class ImportanceBatches(DeviceBatches):
    """Batches of an in-memory data set drawn by importance, capturable in a CUDA graph.

    After `batch`, `weights` are those of its examples. `note` gives these examples their new scores; nothing else
    changes `scores`. They are part of a chain's state, and `with_seed` begins with none. Where a batch is all of the
    data there is nothing to draw: `weights` stay None.
    """

    scores: Tensor  # [N], in the order of the strata

    def __init__(
        self,
        data: ImageData,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        strata: bool = True,
    ) -> None:
        super().__init__(data, batch_size, device, dtype, seed=seed, kernel="plain")
        self.strata = strata
        labels = data.labels
        classes = labels.ndim == 1 and not labels.is_floating_point() and not labels.is_complex()
        order = torch.argsort(labels, stable=True) if classes else torch.arange(len(data))
        self._order = order.to(self.device)

    def _allocate_ring(self) -> None:
        super()._allocate_ring()
        self._ring = torch.zeros(2 * self.num_data, dtype=torch.float64, device=self.device)
        self.scores = torch.full((self.num_data,), UNSEEN, device=self.device)
        self.weights = None
        self._drawn: Tensor | None = None

    def for_readings(self, seed: int) -> Batches:
        """Other draws with the scores of this chain, which are seen and not changed."""
        other = self.with_seed(seed)
        other.scores = self.scores
        return other

    def _addresses(self, epoch: int) -> Tensor:
        return torch.from_numpy(epoch_order.uniforms(self.seed, epoch, self.num_data))

    def _take(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The examples that the uniform numbers U of a batch choose."""
        units = self._units()
        reached = units.cumsum(0)
        total = reached[-1]
        where = (self._lane + slots) / self.batch_size if self.strata else slots.sort().values
        target = torch.minimum((where * total).long(), total - 1)  # (b − 1 + U)/b may be rounded to 1
        drawn = torch.searchsorted(reached, target, right=True)
        self.weights = (total / (units[drawn].double() * (self.batch_size * self.num_data))).float()
        self._drawn = drawn
        return self.store.examples(self._order[drawn])

    def _units(self) -> Tensor:
        """p in whole units of about UNIT: each example's share of their sum is its exact probability."""
        seen = self.scores >= 0
        scores = torch.where(seen, self.scores, 0.0).double()
        scores = torch.where(seen, scores, scores.sum() / seen.sum().clamp_min(1))
        share = scores / scores.sum().clamp_min(1e-300)  # without any score all are drawn alike
        return ((share * (1 - UNIFORM) + UNIFORM / self.num_data) / UNIT).long()

    def note(self, sizes: Tensor) -> None:
        """Make `sizes` the scores of the examples drawn last. One that is not finite leaves the score as it was."""
        assert self._drawn is not None
        drawn = self._drawn
        # Draws rise, so the same example twice stands side by side: all take the first one's size, or which of two
        # that differ in rounding is written last would be up to the device.
        sizes = sizes.detach()[torch.searchsorted(drawn, drawn)].to(self.scores)
        sizes = torch.where(torch.isfinite(sizes), sizes, self.scores[drawn])
        self.scores.index_copy_(0, drawn, sizes)

    def epoch_batches(self, epoch: int, start: int = 0, drop_last: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch for plain loops: every example once and without weights."""
        order = torch.from_numpy(epoch_order.order(self.seed, epoch, self.num_data)).to(self.device)
        for at in range(start * self.batch_size, self.num_data, self.batch_size):
            if not (drop_last and at + self.batch_size > self.num_data):
                yield self.store.examples(order[at : at + self.batch_size])
