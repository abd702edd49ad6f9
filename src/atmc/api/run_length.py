"""How long a run of classes is where nobody says: as many steps as a fixed amount of work allows.

A hundred epochs of 1,000 examples are 1,600 steps, too few for a chain to get from where SGD leads it to the posterior.
So small data have their length in steps. Where work allows WHOLE_STEPS of them every step uses all data, and there is
one chain: no mini-batch noise bends its law. Elsewhere there are up to CHAINS chains of mini-batches, which a fit by
Adam leads to modes of their own. One chain would not get from mode to mode: mini-batch noise leaves it small steps, and
all data few. 1,000 images of Fashion-MNIST (three splits, scored on other training images) have an NLL of .505, .513
and .507 with ten chains and a T chosen by pilots; five networks of .507, .517 and .502. One chain of 1,500 steps with
all data takes as long, and has .51 to .55 on the first and .49 to .53 on the last split, depending on T and step size.

A run is never shorter than the 100 epochs that it has otherwise. On one core it takes about a minute.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from atmc.api.arguments import work
from atmc.api.defaults import LONG, QUICK, WHOLE, learns_noise, mini_batch, steps_an_epoch
from atmc.data import ImageData, OwnData
from atmc.nn.untrained import untrained
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir

EPOCHS = 100  # of other runs
WORK = 1.2e12  # operations of forward passes: about a minute on one core
STEP = 4e7  # what a step costs whatever its batch, in the same unit
WHOLE_STEPS = 5000  # with all data, at least; of few examples less is better than mini-batches
CHAINS = 10  # at most
SAMPLES = 120  # of one chain with all data
# Epochs of Adam first, with mini-batches, then of sampling, and of both at least. 60 of Adam overfit 1,000 images.
WARM_EPOCHS, SAMPLED_EPOCHS, LEAST_EPOCHS = 20, 20, 30
WARM_LR = 0.003
PILOT = 8  # the part of a run's steps that a pilot has
PILOT_CHAINS = 2  # to know what an average over several has


@dataclass(frozen=True)
class Length:
    """A batch, the epochs of a chain after its first fit, and the number of chains."""

    batch: int
    epochs: int
    chains: int = 1
    warm: int | None = None  # epochs of Adam first, where a step uses a mini-batch

    @property
    def overrides(self) -> list[str]:
        """What differs from the defaults of a sampler, as settings of a recipe."""
        if self.warm is None:
            return [f"schedule.sample_every_steps={max(1, 2 * self.epochs // 3 // SAMPLES)}"]
        adam = {"warm_start_optimizer": "adam", "warm_start_lr": WARM_LR, "warm_start_epochs": self.warm}
        return [f"schedule.{key}={value}" for key, value in adam.items()]

    @property
    def pilot(self) -> "Length":
        """That of a pilot: a part of the steps with all data, or a few of the chains."""
        if self.warm is None:
            return Length(self.batch, max(1, self.epochs // PILOT))
        return Length(self.batch, self.epochs, PILOT_CHAINS, self.warm)


def class_length(each: float, num_data: int) -> Length | None:
    """The length of a run whose forward pass has `each` operations an example; None where other rules are as long."""
    if each * num_data <= QUICK:
        return None
    usual = EPOCHS * steps_an_epoch(num_data)
    steps = min(LONG, int(WORK / (STEP + each * num_data)))
    if steps >= (usual if num_data <= WHOLE else max(usual, WHOLE_STEPS)):
        return Length(num_data, steps)
    batch = mini_batch(num_data)
    epochs = int(WORK / (STEP + each * batch)) * batch // num_data
    if num_data <= WHOLE or epochs <= EPOCHS:
        return None
    chains = min(CHAINS, epochs // LEAST_EPOCHS)
    warm = min(WARM_EPOCHS, epochs // chains // 2)
    return Length(batch, min(SAMPLED_EPOCHS, epochs // chains - warm), chains, warm)


def length_of(
    source: Any, model: nn.Module, train: ImageData, likelihood: Any, out: str | Path | None, overrides: Sequence[str]
) -> Length | None:
    """That length, for classes and a sampler by its name, unless someone says something of it.

    A run that was begun with another one keeps it.
    """
    if not isinstance(source, str) or source == "sgd" or isinstance(train, OwnData) or not train.classes:
        return None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return None
    if learns_noise(likelihood, train) or any(word.startswith(("schedule.", "data.batch_size")) for word in overrides):
        return None
    found = class_length(work(model, train), len(train))
    if found is None or out is None or not Manifest.exists(Path(out)):
        return found
    past = RunDir.open(out).recipe
    return found if (past.data.batch_size, past.schedule.epochs) == (found.batch, found.epochs) else None


def own_starts(plan: Length | None, model: nn.Module, *said: Any) -> bool:
    """Whether chains begin at weights of their own, which finds more modes: of an untrained network, if nobody says."""
    return plan is not None and plan.chains > 1 and all(word is None for word in said) and untrained(model)
