"""`atmc.compare`: SGD, deep ensemble, SWA, SWAG, MC dropout, last-layer Laplace and ATMC on the same data.

Every method gets as many gradients as the sampler needs (warm start, burn-in and the search for a step size included)
and the same network, batches, prior and rate. All are scored on the same test examples.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atmc.api import sampling
from atmc.api.arguments import examples
from atmc.common.atomic_files import temporary_folder
from atmc.common.errors import InputError
from atmc.common.suggest import nearest
from atmc.comparison import baselines
from atmc.comparison.judgement import Row, scored, verdict
from atmc.comparison.task import Task, anew
from atmc.data import ImageData
from atmc.engine.schedule import make_schedule
from atmc.engine.torch_settings import numerics
from atmc.posterior.metric_entries import Task as Kind
from atmc.posterior.metric_entries import columns
from atmc.recipe.build import build_likelihood
from atmc.recipe.settings import Recipe
from atmc.storage.run_directory import RunDir
from atmc.target.likelihoods import is_law

SAMPLER = "ATMC"
METHODS = (*baselines.METHODS, SAMPLER)
HELD_OUT = 5  # one example of so many, where no test set is given
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """The rows in the order in which they ran, and what they say."""

    rows: tuple[Row, ...]
    verdict: tuple[str, ...]
    task: Kind
    examples: int  # of the test set
    left_out: dict[str, str]  # methods that could not run, with the reason

    def table(self) -> list[dict[str, Any]]:
        """A dictionary for each row: the scores, their intervals and the costs."""
        names = list(self.rows[0].spreads[0]) if self.rows else []
        return [
            {
                "method": row.method,
                **{name: row.score(name) for name in names},
                "intervals": {name: list(row.interval(name)) for name in names},
                "networks": row.networks,
                "gradients": row.gradients,
                "seconds": row.seconds,
                "repeats": len(row.spreads),
                "how": row.how,
            }
            for row in self.rows
        ]

    def __str__(self) -> str:
        heads = ["method", *(metric.heading for metric in columns(self.task)), "gradients", "seconds"]
        lines = [heads]
        for row in self.rows:
            scores = [metric.shown(row.score(metric.name)) for metric in columns(self.task)]
            lines.append([row.method, *scores, f"{row.gradients:,}", f"{row.seconds:.1f}"])
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        text = [f"{line[0]:{widths[0]}}  {_right(line[1:], widths[1:])}" for line in lines]
        return "\n".join([*text, "", *self.verdict])


def _right(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def compare(
    model: nn.Module,
    data: Any,
    *,
    test: Any = None,
    epochs: int | None = None,
    recipe: str | Path | Recipe | None = None,
    methods: Sequence[str] = METHODS,
    prior: Any = None,
    likelihood: Any = None,
    batch_size: int | None = None,
    seed: int = 0,
    repeats: int = 1,
    tell: Tell | None = None,
) -> Comparison:
    """Fit `model` to `data` by each method with the same number of gradients, and say which is ahead by its NLL.

    Args:
        model: as for `atmc.sample`; its weights are where SGD, SWA, dropout and the sampler begin.
        data: as for `atmc.sample`: (inputs, labels), an `ImageData`, the name of a data set, …
        test: what is scored on. Without it a fifth of `data`, drawn by `seed`, is held out.
        epochs: of the sampler, as many as `atmc.sample` takes by default. All others get what these cost.
        recipe: settings of the sampler, instead of those that `atmc.sample` finds.
        methods: some of `atmc.comparison.compare.METHODS`; ATMC is always among them.
        prior: a rule of `atmc.priors`; the baselines' weight decay is the same.
        likelihood: as for `atmc.sample`. Baselines have cross-entropy for classes, and for a regression the same
            likelihood: they learn its noise too, unless it is known (`atmc.likelihoods.Gaussian(scale)`).
        repeats: with more than one, everything is done with so many seeds, and the errors include their luck.
        tell: called with a line before each method.
    """
    chosen = _methods(methods)
    train, held = _data(data, test, seed)
    held = dataclasses.replace(held, mean=train.mean, std=train.std)  # normalised as the training set is
    if is_law(likelihood):
        raise InputError("a comparison needs one of atmc.likelihoods, which all methods can share, not one of your own")
    say = tell or (lambda line: None)
    rows: dict[str, list[tuple[dict[str, Any], int, float, str, int]]] = {}
    left_out: dict[str, str] = {}
    kind: Kind = "classification"
    names = {method: method for method in METHODS}
    for repeat in range(repeats):
        begin = anew(model, seed + repeat) if repeat else model
        own = _Repeat(begin, train, held, epochs, recipe, prior, likelihood, batch_size, seed + repeat)
        say(_line(SAMPLER, repeat, repeats))
        found = {SAMPLER: own.sample()}
        kind = own.kind
        names["SGD"] = own.optimizer
        for method in chosen:
            if method != SAMPLER:
                say(_line(names[method], repeat, repeats))
                try:
                    found[method] = own.fit(method)
                except InputError as error:
                    left_out[method] = str(error)
        for method, fit in found.items():
            spreads = scored(fit.outputs.numpy(), held.labels.numpy(), own.likelihood, kind)
            rows.setdefault(method, []).append((spreads, fit.gradients, fit.seconds, fit.how, len(fit.outputs)))
    made = tuple(_row(name, rows[method]) for method, name in names.items() if method in rows)
    return Comparison(made, verdict(made, SAMPLER, kind, len(held)), kind, len(held), left_out)


def _row(method: str, found: list[tuple[dict[str, Any], int, float, str, int]]) -> Row:
    spreads, gradients, seconds, how, networks = zip(*found, strict=True)
    return Row(method, networks[0], tuple(spreads), sum(gradients), sum(seconds), how[0])


def _line(method: str, repeat: int, repeats: int) -> str:
    return method if repeats == 1 else f"{method}, seed {repeat + 1} of {repeats}"


def _methods(methods: Sequence[str]) -> list[str]:
    known = {name.lower(): name for name in METHODS}
    for name in methods:
        if name.lower() not in known:
            near = nearest(name.lower(), list(known))
            hint = f": did you mean {known[near]!r}?" if near else ""
            raise InputError(f"there is no method {name!r}{hint} (there are {', '.join(METHODS)})")
    return [known[name.lower()] for name in methods]


def _data(data: Any, test: Any, seed: int) -> tuple[ImageData, ImageData]:
    """Training and test examples; without a test set one of HELD_OUT examples is held out."""
    train = examples(data)
    if test is None and isinstance(data, str):
        return train, examples(data, "test", "test")
    if test is not None:
        return train, examples(test, "test", "test")
    if len(train) < 2 * HELD_OUT:
        raise InputError(f"{len(train)} examples are too few to hold some out: pass test=(inputs, labels)")
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    cut = len(train) // HELD_OUT
    return train.subset(order[cut:].sort().values), train.subset(order[:cut].sort().values, "test")


class _Repeat:
    """All methods with one seed."""

    def __init__(
        self,
        model: nn.Module,
        train: ImageData,
        held: ImageData,
        epochs: int | None,
        recipe: Any,
        prior: Any,
        likelihood: Any,
        batch_size: int | None,
        seed: int,
    ) -> None:
        self.model, self.train, self.held, self.seed = model, train, held, seed
        self.call = {"epochs": epochs, "prior": prior, "likelihood": likelihood, "batch_size": batch_size}
        self.recipe = recipe
        self.fits: baselines.Fits | None = None
        self.settings: Recipe
        self.likelihood: Any = None
        self.kind: Kind = "classification"

    def sample(self) -> baselines.Fit:
        """The sampler's run, which sets the budget of all others."""
        with temporary_folder() as folder:
            began = time.perf_counter()
            source = {"recipe": self.recipe} if self.recipe is not None else {"sampler": "atmc"}
            posterior = sampling.sample(
                self.model, self.train, test=self.held, seed=self.seed, out=Path(folder) / "run", progress=None,
                device="cpu", **source, **self.call,
            )  # fmt: skip
            outputs = posterior.sample_probs(self.held.images, device="cpu")
            spent = time.perf_counter() - began
            run = RunDir.open(Path(folder) / "run")
            self.settings, self.likelihood = run.recipe, build_likelihood(run.recipe)
            batch = run.recipe.data.batch_size
            steps = {row["chain"]: int(row["step"]) for row in run.metrics() if "step" in row}
        self.kind = "classification" if self.likelihood.task == "classification" else "regression"
        rule = self.call["prior"] if self.call["prior"] is not None else _rule(self.settings)
        whole = sum(steps.values())
        task = Task(self.model, self.train, self.held, self.likelihood, rule, batch, whole, self.seed)
        planned = make_schedule(self.settings, len(self.train)).steps * self.settings.chains
        with self._threads():
            self.fits = baselines.Fits(task)
        searched = self.fits.search[0] if self.recipe is None else 0  # the same search, done inside
        if self.recipe is not None:  # its speed was given: the baselines' search comes out of their budget
            task.steps = max(1, whole - self.fits.search[0] // batch)
        chains = f"{self.settings.chains} chains, " if self.settings.chains > 1 else ""
        how = f"{chains}{len(outputs)} samples" + ("" if whole >= planned else ", stopped early")
        return baselines.Fit(outputs, whole * batch + searched, spent, how)

    @property
    def optimizer(self) -> str:
        """What trains the baselines: SGD, or Adam where noise is learned."""
        assert self.fits is not None
        return self.fits.task.optimizer

    def fit(self, method: str) -> baselines.Fit:
        """One of the baselines, its outputs as probabilities where they are classes."""
        assert self.fits is not None
        with self._threads():
            fit = self.fits.fit(method)
        if self.kind == "regression":
            return fit
        return dataclasses.replace(fit, outputs=torch.softmax(fit.outputs.double(), -1))

    def _threads(self) -> Any:
        """As many threads as the sampler had."""
        return numerics(self.settings, torch.device("cpu"))


def _rule(settings: Recipe) -> Any:
    from atmc.target import priors

    if settings.target.prior == "none":
        return priors.build("gaussian", 1.0)
    return priors.build(settings.target.prior, settings.target.prior_scale)
