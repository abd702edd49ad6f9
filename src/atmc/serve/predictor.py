"""Answers for one posterior: bytes of an image or a row of numbers in, plain values out.

All samples are in memory, and one request is decoded and predicted at a time, so that memory does not grow with the
number of visitors. No file is ever opened on behalf of a request.
"""

from __future__ import annotations

import base64
import math
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atmc.common.errors import InputError, RunError
from atmc.data.image_decoding import View, as_example, decode
from atmc.posterior import Posterior
from atmc.posterior.uncertainty import Prediction, from_probs
from atmc.report.example_images import png_of
from atmc.report.read_run import Reading, pixels

EXAMPLES = 8  # test images offered to try
REFUSED = 0.1  # of the test examples: the least confident share, whose confidence is the threshold
UNUSUAL = 0.99  # quantile of the test examples' epistemic uncertainty above which an input is called unusual
LEAST = 50  # test examples for such a rule
MOST_NUMBERS = 100_000


@dataclass(frozen=True)
class Rule:
    """When to refuse: below a confidence, as the test examples showed it."""

    confidence: float
    epistemic: float
    examples: int


class Predictor:
    """One posterior, ready to answer."""

    def __init__(
        self,
        posterior: Posterior,
        name: str,
        view: View | None = None,
        rule: Rule | None = None,
        examples: Sequence[tuple[bytes, str]] = (),
    ) -> None:
        states = [{key: tensor.clone() for key, tensor in posterior.state(k).items()} for k in range(len(posterior))]
        self.posterior = Posterior(
            states,
            posterior.model,
            weights=posterior.weights,
            chains=posterior.chains,
            likelihood=posterior.likelihood,
            mean=posterior.mean,
            std=posterior.std,
            classes=posterior.classes,
            shape=posterior.shape,
            crop=posterior.crop,
        )
        self.name, self.view, self.rule, self.examples = name, view, rule, tuple(examples)
        self._one = threading.Lock()

    @property
    def about(self) -> dict[str, Any]:
        """What a page needs to know."""
        shape = self.posterior.shape
        return {
            "name": self.name,
            "takes": "image" if self.view is not None else "row",
            "task": "regression" if self.posterior.is_regression else "classification",
            "samples": len(self.posterior),
            "classes": list(self.posterior.classes or ()),
            "numbers": None if self.view is not None or shape is None else math.prod(shape),
            "size": None if self.view is None else [self.view.width, self.view.height],
            "refuses_below": None if self.rule is None else self.rule.confidence,
            "examples": [
                {"png": base64.b64encode(png).decode("ascii"), "label": label} for png, label in self.examples
            ],
        }

    def image(self, data: bytes) -> dict[str, Any]:
        """The answer for an image file; `InputError` says in one line why there is none."""
        if self.view is None:
            raise InputError("this model takes rows of numbers, not images")
        notes: list[str] = []
        with self._one, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of what is odd about a file and can be read
            try:
                x = as_example(decode(data, self.view, notes=notes))[None]
            except MemoryError:
                raise InputError("there is not enough memory to decode it") from None
            return self._answer(x) | {"notes": notes}

    def row(self, numbers: Any) -> dict[str, Any]:
        """The answer for a row of numbers."""
        if self.view is not None:
            raise InputError("this model takes images, not rows of numbers")
        if not isinstance(numbers, list) or not numbers or len(numbers) > MOST_NUMBERS:
            raise InputError("a row is a list of numbers, as [1.5, 2, 0.3]")
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
            raise InputError("a row holds numbers alone")
        wanted = self.about["numbers"]
        if wanted is not None and len(numbers) != wanted:
            raise InputError(f"the row has {len(numbers)} numbers, the model takes {wanted}")
        try:
            x = torch.tensor([numbers], dtype=torch.float32)
        except (ValueError, RuntimeError, OverflowError):
            raise InputError("a number is too large") from None
        if not bool(torch.isfinite(x).all()):
            raise InputError("a number is too large, or none")
        with self._one:
            shape = self.posterior.shape
            return self._answer(x if shape is None else x.reshape(1, *shape)) | {"notes": []}

    def _answer(self, x: Tensor) -> dict[str, Any]:
        try:
            if self.posterior.is_regression:
                return self._number(x)
            return self._class(self.posterior.sample_probs(x, device="cpu"))
        except (ValueError, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError("the model cannot take this input") from error

    def _class(self, probs: Tensor) -> dict[str, Any]:
        found: Prediction = from_probs(probs, self.posterior.weights)
        mean = found.probs[0]
        names = self.posterior.classes or tuple(str(c) for c in range(len(mean)))
        order = mean.argsort(descending=True).tolist()
        best = order[0]
        confidence, epistemic = float(mean[best]), float(found.epistemic[0])
        return {
            "label": names[best],
            "confidence": confidence,
            "bars": [{"label": names[c], "probability": float(mean[c])} for c in order[:10]],
            "entropy": float(found.entropy[0]),
            "aleatoric": float(found.aleatoric[0]),
            "epistemic": epistemic,
            "samples": [
                {"label": names[int(one.argmax())], "probability": float(one.max()), "of_answer": float(one[best])}
                for one in probs[:, 0]
            ],
            "agreement": float(found.agreement[0]),
            **self._refusal(confidence, epistemic),
        }

    def _refusal(self, confidence: float, epistemic: float) -> dict[str, Any]:
        if self.rule is None:
            return {"refuse": None, "why": "There are no test examples to set a level of confidence by."}
        level = f"{100 * self.rule.confidence:.0f} %"
        if epistemic > self.rule.epistemic:
            rest = f"all but {100 * (1 - UNUSUAL):.0f} % of the test examples"
            return {"refuse": True, "why": f"The samples disagree more than on {rest}: it may be of another kind."}
        if confidence < self.rule.confidence:
            return {"refuse": True, "why": f"Its confidence is below {level}, as on a tenth of the test examples."}
        return {"refuse": False, "why": f"Its confidence is at least {level}, as on nine tenths of the test examples."}

    def _number(self, x: Tensor) -> dict[str, Any]:
        estimate = self.posterior.regress(x, device="cpu")
        outputs = self.posterior.sample_probs(x, device="cpu")
        likelihood: Any = self.posterior.likelihood
        each = likelihood.predict(outputs)[:, 0].flatten(1)  # without what the network says about the noise
        parts = [t[0].flatten().tolist() for t in (estimate.mean, estimate.std, estimate.aleatoric, estimate.epistemic)]
        mean, std, aleatoric, epistemic = parts
        return {
            "mean": mean,
            "std": std,
            "aleatoric": [math.sqrt(v) for v in aleatoric],
            "epistemic": [math.sqrt(v) for v in epistemic],
            "samples": [[float(v) for v in one] for one in each],
            "refuse": None,
            "why": "",
        }


def open_predictor(path: Path) -> Predictor:
    """The posterior of a run or a saved one; whatever it takes."""
    if not path.is_dir():
        raise InputError(f"there is no run directory {path}; make one with atmc sample RECIPE --out {path}")
    if (path / "posterior.json").is_file():
        posterior = Posterior.load(path)
        return Predictor(posterior, path.resolve().name, _view(posterior))
    reading = Reading(path)
    posterior = reading.posterior
    view = _view(posterior)
    return Predictor(posterior, reading.recipe.name, view, _rule(reading, posterior), _examples(reading, view))


def _view(posterior: Posterior) -> View | None:
    shape = posterior.shape
    if shape is None or len(shape) != 3 or shape[0] not in (1, 3) or not posterior.mean:
        return None
    return View.of(shape, posterior.crop)


def _rule(reading: Reading, posterior: Posterior) -> Rule | None:
    """From the predictions that the run stored for its test set."""
    if posterior.is_regression or "test" not in reading.run.splits:
        return None
    try:
        found = from_probs(reading.run.predictions("test"))
    except (InputError, RunError, ValueError):
        return None
    if len(found) < LEAST:
        return None
    confidence = float(np.quantile(found.confidence.numpy(), REFUSED))
    return Rule(confidence, float(np.quantile(found.epistemic.numpy(), UNUSUAL)), len(found))


def _examples(reading: Reading, view: View | None) -> list[tuple[bytes, str]]:
    """A few test images, where they can be read."""
    if view is None:
        return []
    try:
        data = reading.examples("test")
        some = range(min(EXAMPLES, len(data)))
        return [
            (png_of(image), data.classes[int(data.labels[i])])
            for i, image in zip(some, pixels(data, some), strict=True)
        ]
    except (InputError, RunError, OSError):
        return []
