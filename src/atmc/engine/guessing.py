"""What knowing nothing costs: the yardstick for losses and samples, known before the first step.

A classifier that guesses has the NLL log(classes), a regression that always says the mean of the targets has their
variance as its squared error. A chain whose losses are several times the loss of guessing has diverged, and a sample
that is several times worse than guessing is no sample of a posterior, whatever the losses before it said.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atmc.engine.step_stability import FAR

_MANY = 4096  # labels that are enough for a mean
# A stored zero counts as the smallest float32, here and in `atmc evaluate` (posterior/arrays.py): 103 nats.
SMALLEST = 2.0**-149
TRAINING = "training"  # the name of the few training examples among a sample's scores


@dataclass(frozen=True)
class Guess:
    """`loss` is the training loss of guessing, in the likelihood's units; `cost` what a sample is compared with.

    `cost` is the NLL log(classes) of a classification; of a regression it is the squared error of the mean, plus the
    variance of the noise, by which a good sample may well be off.
    """

    loss: float
    cost: float


def guess(likelihood: Any, labels: Tensor, classes: int) -> Guess:
    """What guessing costs under `likelihood` for examples with these labels."""
    few = labels[torch.linspace(0, len(labels) - 1, min(len(labels), _MANY)).round().long()]
    if likelihood.task == "classification":
        cost = math.log(classes) if classes > 1 else 1.0
        loss = float(likelihood.nll(torch.zeros(len(few), max(classes, 1)), few).double().mean())
    else:
        few = few.float()
        outputs = likelihood.guess(few)
        loss = float(likelihood.nll(outputs, few).double().mean())
        error = few - likelihood.predict(outputs).reshape(few.shape)
        cost = float(error.square().mean()) + float(likelihood.noise(outputs).square().mean())
    # Some likelihoods are densities, whose loss may be negative: what is known is then the cost alone.
    floor = cost if likelihood.task == "classification" else 1.0
    return Guess(max(floor, loss) if math.isfinite(loss) else floor, cost)


def best_constant(likelihood: Any, labels: Tensor) -> dict[str, float]:
    """The score of the best answer that is the same for every example: the classes' frequencies, or the mean."""
    if likelihood.task != "classification":
        return {"rmse": float(labels.double().var(0, correction=0).mean().sqrt())}
    share = torch.bincount(labels.flatten().long()).double() / labels.numel()
    return {"accuracy": float(share.max()), "nll": float(torch.special.entr(share).sum())}


def score(likelihood: Any, probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and NLL of probabilities, or the RMSE of a regression's outputs; the numbers of `atmc evaluate`."""
    if likelihood.task != "classification":
        found = likelihood.predict(probs)
        error = (found - labels.to(found.dtype).reshape(found.shape)).double()
        return {"rmse": math.sqrt(float(error.square().mean()))}
    chosen = probs.double().gather(1, labels.reshape(-1, 1).long()).clamp_min(SMALLEST)
    return {
        "accuracy": float((probs.argmax(1) == labels.flatten()).double().mean()),
        "nll": float(-chosen.log().mean()),
    }


def cost_of(found: Mapping[str, float]) -> float:
    """What a sample with these scores costs, to be compared with `Guess.cost`."""
    return found["nll"] if "nll" in found else found["rmse"] ** 2


def verdict(
    scores: Mapping[str, Mapping[str, float]], known: Guess, worst: float, overshoot: float = 0.0
) -> str | None:
    """Why a sample with such scores is not to be kept, in words; None where it may be.

    `scores` has the sample's own on some training examples (`training`) and on every evaluation set. A sample that does
    better than guessing on the training set has not diverged: if it fails elsewhere it overfits. Where the step size is
    far from stable (`overshoot`, see step_stability.py) being no better than guessing is enough.
    """
    costs = {split: cost_of(found) for split, found in scores.items() if found}
    if not all(math.isfinite(cost) for cost in costs.values()):
        return "a sample's predictions are not finite"
    if worst == math.inf or costs.get(TRAINING, math.inf) < known.cost:
        return None
    split = max(costs, key=lambda name: costs[name], default="")
    unstable = overshoot > FAR
    if not split or costs[split] <= (min(1.0, worst) if unstable else worst) * known.cost:
        return None
    what = "NLL" if "nll" in scores[split] else "squared error"
    why = f"a step overshoots {overshoot:.3g} times too far" if unstable else f"run.worst_sample = {worst:g}"
    return f"a sample's {what} on {split} examples is {costs[split]:.3g}, that of guessing {known.cost:.3g} ({why})"
