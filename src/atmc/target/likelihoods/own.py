"""A likelihood of a person's own: any object with `nll(outputs, y)` and, for predictions, `predict(outputs)`.

    class Poisson:
        def nll(self, outputs, y):       # −log p(y | outputs) of each example, [N]
            return outputs[:, 0].exp() - y * outputs[:, 0] + torch.lgamma(y + 1)
        def predict(self, outputs):      # what is averaged over samples: the mean, or probabilities [N, classes]
            return outputs[:, 0].exp()

`noise(outputs)`, the standard deviation of y, is asked for where it is there. `task` may say "classification" or
"regression"; otherwise whole-number labels with a `predict` of probabilities are classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.target.likelihoods.likelihood import Likelihood, wide


@dataclass(frozen=True)
class OwnLikelihood(Likelihood):
    """A person's object as a likelihood; without the object (`law`) all that is known is what it was called."""

    task: str = "regression"  # type: ignore[misc]
    name: str = ""
    law: Any = field(default=None, compare=False)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            found = self._given("nll")(wide(outputs), targets)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
            raise InputError(f"{self.name}.nll failed for {shapes}: {said}") from error
        if not isinstance(found, Tensor) or found.shape != (len(targets),):
            what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"{self.name}.nll must return −log p of each example, [{len(targets)}], not {what}: sum over what "
                "belongs to one example, and do not average over examples"
            )
        return found

    def probs(self, outputs: Tensor) -> Tensor:
        """Probabilities of classes; of anything else the outputs as they are, from which the rest is made."""
        return self.predict(outputs) if self.task == "classification" else wide(outputs)

    def predict(self, outputs: Tensor) -> Tensor:
        """What is averaged over samples."""
        found = self._given("predict")(wide(outputs))
        if not isinstance(found, Tensor) or len(found) != len(outputs):
            raise InputError(f"{self.name}.predict must return a tensor of a row for each example")
        return found

    def noise(self, outputs: Tensor) -> Tensor | None:
        """The standard deviation of the targets, where the object says it."""
        found: Tensor | None = self.law.noise(wide(outputs)) if hasattr(self.law, "noise") else None
        return found

    def check_shapes(self, outputs: Tensor, targets: Tensor) -> None:
        """`nll` checks what it is given; here a few examples are tried, before a run."""
        if len(outputs) <= 2:
            with torch.no_grad():
                self.nll(outputs, targets)

    def check_values(self, outputs: Tensor, targets: Tensor) -> None:
        if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
            raise InputError("the targets hold NaN or infinite values")

    def _given(self, method: str) -> Any:
        if self.law is None:
            raise InputError(
                f"the likelihood was {self.name}, a person's own: pass it, as "
                "atmc.Posterior.from_run(folder, model, likelihood=…) or load(folder, model, likelihood=…)"
            )
        found = getattr(self.law, method, None)
        if not callable(found):
            raise InputError(f"{self.name} has no {method}(outputs), which this needs: give it one")
        return found


def is_law(given: Any) -> bool:
    """Whether an object, not a class, is a likelihood of a person's own."""
    return not isinstance(given, type | Likelihood) and callable(getattr(given, "nll", None))


def own_likelihood(given: Any, outputs: Tensor | None = None, labels: Tensor | None = None) -> OwnLikelihood:
    """An object as a likelihood; outputs and labels tell classes from numbers where it does not say so."""
    name = type(given).__name__
    task = getattr(given, "task", None)
    if task not in (None, "classification", "regression"):
        raise InputError(f'{name}.task must be "classification" or "regression", not {task!r}')
    if task is None:
        task = "regression"
        whole = labels is not None and not labels.is_floating_point() and labels.ndim == 1
        if whole and outputs is not None and callable(getattr(given, "predict", None)):
            found = given.predict(outputs)
            shares = isinstance(found, Tensor) and found.ndim == 2 and found.shape[1] > 1
            if shares and bool(((found.sum(1) - 1).abs() < 1e-3).all()) and bool((found >= 0).all()):
                task = "classification"
    return OwnLikelihood(task, name, given)
