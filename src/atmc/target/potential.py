"""The potential U(θ) = N · mean nll − log prior, as a callable.

    potential = atmc.Potential(model, num_data=50_000, prior=atmc.priors.resnetpp())
    sampler.zero_grad(); potential(x, y).backward(); sampler.step()

On a mini-batch U and its gradient are unbiased estimates; averaged over the equal batches of a partition they are the
full-batch values.
"""

from __future__ import annotations

import math
import operator
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from atmc.common.errors import InputError
from atmc.target.example_gradients import example_gradients, store_gradients
from atmc.target.likelihoods import Categorical, Likelihood, is_law, own_likelihood
from atmc.target.priors import Flat, Prior, PriorRule, PriorSet, on
from atmc.target.priors.rules import owners


class Potential:
    """U(θ) of a model, a data set's size, a prior and a likelihood.

    Args:
        model: called on x; its outputs go to the likelihood, in float32 even where the activations are bf16.
        num_data: N, the examples of the whole training set (not of a batch).
        prior: a rule (`priors.resnetpp()`), a ready `PriorSet`, or one `Prior` for every parameter. None,
            with improper_ok=True, is no prior at all: maximum likelihood, for optimizers.
        temper: power on the likelihood, U = temper · N · mean nll − log prior. 1 is Bayes. (A sampler's temperature T
            cools the prior too; temper = 1/T cools the likelihood alone.)
        improper_ok: let improper priors (`priors.Flat`) through.
        validate: check labels' range and NaN inputs, which reads values back from the device: True always, False never,
            None (default) at every call on a CPU and at the first call on a CUDA device. Never while a CUDA graph is
            being captured. Shapes and dtypes are always checked.

    A network that cannot be sampled as it is (BatchNorm or dropout in training mode, see `atmc.nn.check`) gives one
    warning.

    After a call `.nll` (mean over the batch) and `.log_prior` are 0-dim tensors, detached, on the model's device.
    """

    def __init__(
        self,
        model: nn.Module,
        num_data: int,
        prior: PriorRule | PriorSet | Prior | None,
        likelihood: Any = None,
        *,
        temper: float = 1.0,
        improper_ok: bool | None = None,
        validate: bool | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if is_law(likelihood):
            likelihood = own_likelihood(likelihood)
        if likelihood is not None and not isinstance(likelihood, Likelihood):
            given = likelihood.__name__ if isinstance(likelihood, type) else type(likelihood).__name__
            raise InputError(
                "likelihood must be one of atmc.likelihoods, as Categorical() or Gaussian(scale), an object with "
                f"nll(outputs, y), or None for Categorical(), not {given}"
            )
        self.model = model
        self.num_data = _count(num_data)
        self.likelihood = Categorical() if likelihood is None else likelihood
        self.temper = _power(temper)
        self.prior_set = _assigned(prior, model, improper_ok)
        self.validate = validate
        self.nll: Tensor | None = None
        self.log_prior: Tensor | None = None
        # Owner and own name rather than the parameter itself: a load with assign=True puts new parameters in place.
        self._owners = {name: (owner, own_name) for name, owner, own_name in owners(model)}
        unknown = [name for name in self.prior_set.names if name not in self._owners]
        missing = [name for name in self._owners if name not in self.prior_set.priors]
        if unknown or missing:
            raise InputError(
                "the prior set was made for another model: "
                + (f"it has no prior for {', '.join(missing[:8])}" if missing else f"no {', '.join(unknown[:8])} here")
            )
        self._checked = False
        self._looked: set[bool] = set()  # the modes (training or not) in which the layers have been looked at

    @property
    def data_weight(self) -> float:
        """What multiplies the mean nll in U: temper · N."""
        return self.temper * self.num_data

    @property
    def has_prior(self) -> bool:
        """Whether any parameter has a prior that is not flat, and so a gradient to add."""
        return any(not isinstance(self.prior_set[name], Flat) for name in self.prior_set.names)

    def parameters(self) -> list[Tensor]:
        """The sampled parameters, in the order of `prior_set.names`."""
        found = (self._owners[name] for name in self.prior_set.names)
        return [getattr(owner, own_name) for owner, own_name in found]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """U(θ) estimated on the batch, a 0-dim tensor."""
        self._look()  # here and in `nll_mean`, so that the warning points to whoever called
        mean = self.nll_mean(x, y)
        log_prior = self.prior_set.log_prob(self.parameters())
        self.log_prior = log_prior.detach()
        return self.data_weight * mean - log_prior.to(mean.dtype)

    def nll_mean(self, x: Tensor, y: Tensor) -> Tensor:
        """The likelihood's part alone, mean nll over the batch, with autograd; sets `.nll`.

        For loops that backpropagate `data_weight` · this and then call `add_prior_grad_` (one fused pass).
        """
        self._look()
        self._check_batch(x, y)
        read = self._should_read(x)
        if read:
            self._check_parameters()
            _check_finite(x)
        outputs = self.model(x)
        if not isinstance(outputs, Tensor):
            raise InputError(f"the model must return one tensor, not {type(outputs).__name__}")
        self.likelihood.check_shapes(outputs, y)
        if read:
            self.likelihood.check_values(outputs, y)
            self._checked = True
        mean = self.nll_of(outputs, y)
        self.nll = mean.detach()
        return mean

    def backward_each(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Leave ∇U in `p.grad`, and what each example adds to it in `p.grad_sample`; returns the mean nll.

        With `weights`, for examples drawn by importance, their weighted sum is the mean. The sampler's step takes
        `p.grad_sample` away again.

        For samplers with `noise_examples`, in place of `potential(x, y).backward()`. The network must give each
        example an answer of its own (no batch statistics), and its code must be one that `torch.func` understands.
        """
        self._look()
        self._check_batch(x, y)
        if len(x) == self.num_data and weights is None:
            warnings.warn(
                "backward_each: a batch of all the data has no noise, and noise_examples would cool the chain below T; "
                "use potential(x, y).backward() without it, unless examples were drawn with replacement",
                stacklevel=2,
            )
        read = self._should_read(x)
        if read:
            self._check_parameters()
            _check_finite(x)
        if not self._checked:  # before torch.func, whose errors would hide these
            with torch.no_grad():
                first = self.model(x)
            if isinstance(first, Tensor):
                self.likelihood.check_shapes(first, y)
                if read:
                    self.likelihood.check_values(first, y)
            self._checked = True
        share: float | Tensor = 1 / len(x) if weights is None else weights
        each, outputs, gradients = example_gradients(self.model, self.likelihood, x, y, self.data_weight * share)
        self.likelihood.check_shapes(outputs, y)
        if read:
            self.likelihood.check_values(outputs, y)
        store_gradients(self.model, gradients)
        self.add_prior_grad_()
        self.nll = (each.detach() * share).sum()
        return self.nll

    def nll_of(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean nll of outputs that the model has made, unchecked: for steps that are compiled or recorded.

        With `weights` it is their weighted sum, for batches drawn by importance.
        """
        each = self.likelihood.nll(outputs, y)
        return each.mean() if weights is None else (each * weights).sum()

    def add_prior_grad_(self, alpha: float = 1.0) -> Tensor:
        """Add the prior's gradient to every parameter's `.grad`, in place; sets `.log_prior` and returns it."""
        parameters = self.parameters()
        grads: list[Tensor] = []
        for name, parameter in zip(self.prior_set.names, parameters, strict=True):
            if parameter.grad is None:
                raise InputError(f"{name} has no gradient yet: call backward on the likelihood's part first")
            grads.append(parameter.grad)
        self.log_prior = self.prior_set.add_grad_and_log_prob_(parameters, grads, alpha)
        return self.log_prior

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check_batch(self, x: Tensor, y: Tensor) -> None:
        """From shapes alone, so it may run inside a captured step."""
        for what, value in (("inputs", x), ("targets", y)):
            if not isinstance(value, Tensor):
                raise InputError(f"{what} must be a tensor, not {type(value).__name__}")
        if x.ndim == 0 or x.shape[0] == 0:
            raise InputError(f"inputs must be a non-empty batch, not a tensor of shape {list(x.shape)}")
        if y.ndim == 0 or y.shape[0] != x.shape[0]:
            raise InputError(f"{x.shape[0]} inputs but targets of shape {list(y.shape)}: one target per input")
        if x.shape[0] > self.num_data:
            raise InputError(
                f"num_data={self.num_data} is smaller than a batch of {x.shape[0]}: "
                "it must be the size of the whole training set"
            )

    def _check_parameters(self) -> None:
        """A layer thawed or added since would be sampled under no prior at all."""
        known = {id(parameter) for parameter in self.parameters()}
        new = [n for n, p in self.model.named_parameters() if p.requires_grad and id(p) not in known]
        if new:
            raise InputError(
                f"{', '.join(new[:8])} has no prior: frozen, or not there, when this Potential was made; make a new one"
            )

    def _look(self) -> None:
        """Warn once of layers that make U more than a function of the parameters, once for each mode."""
        if self.model.training in self._looked or torch.compiler.is_compiling():
            return
        from atmc.nn.check import check, refusal

        self._looked.add(self.model.training)
        findings = [f for f in check(self.model) if _acts(self.model.get_submodule(f.name))]
        if findings:
            self._looked = {True, False}
            warnings.warn(refusal(findings), stacklevel=3)

    def _should_read(self, x: Tensor) -> bool:
        """Whether values may and should be read back now."""
        if self.validate is False or torch.compiler.is_compiling():
            return False
        if not x.is_cuda:
            return True
        if torch.cuda.is_current_stream_capturing():
            return False
        return self.validate is True or not self._checked


def _count(num_data: int) -> int:
    """num_data as a positive int, also from numpy; refuses floats and booleans."""
    try:
        count = 0 if isinstance(num_data, bool) else operator.index(num_data)
    except TypeError:
        count = 0
    if count < 1:
        raise InputError(f"num_data must be the number of training examples, a positive integer, not {num_data!r}")
    return count


def _power(temper: Any) -> float:
    """temper as a positive float."""
    try:
        power = 0.0 if isinstance(temper, bool | str) else float(temper)
    except (TypeError, ValueError):
        power = 0.0
    if not 0 < power < math.inf:
        raise InputError(f"temper must be a positive, finite number, not {temper!r}")
    return power


def _acts(layer: nn.Module) -> bool:
    """Whether a layer that `check` names is active: in evaluation mode dropout is not."""
    return layer.training or (isinstance(layer, _BatchNorm) and layer.running_mean is None)


def _check_finite(x: Tensor) -> None:
    """One clear error for NaN or infinite inputs; reads a flag back from the device."""
    if not x.is_floating_point():
        return
    fine = torch.isfinite(x).flatten(1).all(1) if x.ndim > 1 else torch.isfinite(x)
    if not bool(fine.all()):
        raise InputError(f"the inputs hold NaN or infinite values, first in example {int(fine.int().argmin())}")


def _assigned(prior: PriorRule | PriorSet | Prior | None, model: nn.Module, improper_ok: bool | None) -> PriorSet:
    if isinstance(prior, PriorSet):
        improper = [name for name in prior.names if not prior[name].proper]
        if improper and improper_ok is False:
            raise InputError(f"improper prior on {', '.join(improper[:8])}: choose a proper one")
        return prior
    if prior is None and improper_ok:
        prior = Flat()
    if isinstance(prior, Prior):
        prior = PriorRule([on(prior)], name=type(prior).__name__)
    if not isinstance(prior, PriorRule):
        raise InputError(
            f"prior must be a rule, as atmc.priors.gaussian(1.0), a PriorSet or a Prior, not {type(prior).__name__}"
        )
    return prior.assign(model, improper_ok=improper_ok)
