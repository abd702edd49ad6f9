"""The posterior: samples of a network's weights that together make one predictor.

    posterior = Posterior.from_run("runs/mine")
    prediction = posterior.predict(x)            # probabilities and their uncertainty
    posterior[3], posterior[:10], posterior.thin(2), Posterior.concat([chain_a, chain_b])

A posterior is immutable: selecting, weighting and joining return new ones that share the samples (tensors in memory, or
files that are read when needed).
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atmc.common.errors import InputError
from atmc.common.packed_inputs import are_several, pack
from atmc.common.text import plural
from atmc.data.own_data import LABELS
from atmc.nn.parts import Tail, features_of, last_module
from atmc.nn.several_inputs import layout_of, taking
from atmc.nn.with_noise import WithNoise
from atmc.posterior.arrays import Floats, check_weights, positions
from atmc.posterior.batched_forward import Forward
from atmc.posterior.inputs import Pixels, looks_up, precision_of, with_labels
from atmc.posterior.predict import predict, sample_probs
from atmc.posterior.samples import Likelihood, Samples, as_bank, check_state
from atmc.posterior.uncertainty import Prediction
from atmc.target.likelihoods import OwnLikelihood, is_law, own_likelihood

if TYPE_CHECKING:
    from atmc.posterior.distill import Distilled
    from atmc.posterior.regression import Estimate


def _is_own(likelihood: Any) -> bool:
    """Whether a likelihood is an object that has no `probs`, which is all that the others are asked for."""
    return is_law(likelihood) and not hasattr(likelihood, "probs")


class Posterior:
    """Samples of one network's weights. `samples` is a bank, a list of state dicts, or a list of networks."""

    def __init__(
        self,
        samples: Samples | Sequence[nn.Module],
        model: nn.Module,
        *,
        weights: Any = None,
        chains: Sequence[int] | None = None,
        likelihood: Likelihood | None = None,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        classes: Sequence[str] | None = None,
        shape: Sequence[int] | None = None,
        example: Tensor | None = None,
        crop: float = 1.0,
    ) -> None:
        if not 0 < crop <= 1:
            raise ValueError(f"crop is the share of an image's middle that is used, above 0 and up to 1, not {crop}")
        bank = as_bank(samples)
        self._refs = [(bank, i) for i in range(len(bank))]
        chain_of = getattr(samples, "chain_of", lambda i: 0)
        self.chains = tuple(chains) if chains is not None else tuple(int(chain_of(i)) for i in range(len(bank)))
        self.weights: Floats = check_weights(weights, len(bank)) if len(bank) else np.zeros(0)
        self.model = model
        self.likelihood: Any = own_likelihood(likelihood) if _is_own(likelihood) else likelihood
        self.mean, self.std = tuple(mean), tuple(std)
        self.classes = tuple(classes) if classes else None
        self.example = example  # a few real inputs, for checking what is exported
        self.crop = float(crop)  # of image files: the share of the middle that is used, as in training
        known = shape if shape is not None else None if example is None else example.shape[1:]
        self.shape = None if known is None else tuple(int(n) for n in known)  # of one input, where known
        self._pixels = Pixels(self.mean, self.std, self.shape)
        self.pilots: tuple[dict[str, Any], ...] = ()  # that chose the temperature of its run, the best first
        self.held: tuple[Any, Forward] | None = None
        self._bodies: dict[str, nn.Module] = {}
        self._place: str | None = None  # of the last module, where nothing else was sampled; "" where it is not so
        if len(self.chains) != len(self._refs):
            raise ValueError(f"{len(self._refs)} samples but {len(self.chains)} chain numbers")
        for i in range(len(bank) if isinstance(bank, list) else min(len(bank), 1)):  # files are read when needed
            check_state(model, self.state(i))

    def __len__(self) -> int:
        return len(self._refs)

    def __repr__(self) -> str:
        chains = len(set(self.chains))
        kind = type(self.model.network if isinstance(self.model, WithNoise) else self.model).__name__
        return f"Posterior({plural(len(self), 'sample')} of {kind}, {plural(chains, 'chain')})"

    def state(self, index: int) -> Mapping[str, Tensor]:
        """The tensors of one sample, as its bank gives them."""
        bank, i = self._refs[index]
        return bank[i]

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Tensor | npt.NDArray[Any]) -> Posterior: ...
    def __getitem__(self, index: int | slice | Sequence[int] | Tensor | npt.NDArray[Any]) -> nn.Module | Posterior:
        """`posterior[i]` is a network with sample i's weights, ready to call; slices, lists, masks are posteriors."""
        if isinstance(index, slice):
            return self._select(range(len(self))[index])
        if isinstance(index, Sequence) or np.ndim(index):
            return self._select(positions(index, len(self)))
        (at,) = positions([operator.index(index)], len(self))
        own = copy.deepcopy(self.model)
        state = self.state(at)
        check_state(own, state)
        own.load_state_dict(dict(state), strict=False)
        return own.eval()

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[i] for i in range(len(self)))

    def _select(self, index: Sequence[int], weights: Any = None) -> Posterior:
        new = copy.copy(self)
        new._refs = [self._refs[i] for i in index]
        new.chains = tuple(self.chains[i] for i in index)
        chosen = self.weights[list(index)] if weights is None else weights
        new.weights = check_weights(chosen, len(new._refs)) if new._refs else np.zeros(0)
        new.held = None
        return new

    def thin(self, step: int) -> Posterior:
        """Every `step`-th sample, counted back from the last."""
        if step < 1:
            raise ValueError(f"step must be at least 1, not {step}")
        return self._select(range(len(self))[::-1][::step][::-1])

    def weighted(self, weights: Any) -> Posterior:
        """The same samples with other non-negative weights, which are divided by their sum."""
        return self._select(range(len(self)), weights=weights)

    def chain(self, number: int) -> Posterior:
        """The samples of one chain."""
        return self._select([i for i, c in enumerate(self.chains) if c == number])

    @staticmethod
    def concat(posteriors: Sequence[Posterior]) -> Posterior:
        """Several posteriors of one network as one, each keeping its share of samples; chains are numbered anew."""
        if not posteriors:
            raise ValueError("there is nothing to concatenate")
        first = posteriors[0]
        refs: list[tuple[Samples, int]] = []
        chains: list[int] = []
        for p in posteriors:
            if len(p):
                check_state(first.model, p.state(0))
                fixed = [n for n, _ in first.model.named_parameters() if n not in p.state(0)]
                if any(not torch.equal(first.model.get_parameter(n), p.model.get_parameter(n)) for n in fixed):
                    raise ValueError(f"posteriors of networks that differ in {fixed[0]} (not sampled) cannot be joined")
            if (p.mean, p.std, p.classes) != (first.mean, first.std, first.classes):
                raise ValueError("posteriors of different inputs or classes cannot be joined")
            numbers = {c: i for i, c in enumerate(dict.fromkeys(p.chains), start=max(chains, default=-1) + 1)}
            refs += p._refs
            chains += [numbers[c] for c in p.chains]
        new = copy.copy(first)
        new._refs, new.chains, new.held = refs, tuple(chains), None
        # Weights sum to one within a posterior; here each posterior counts by its number of samples.
        joined = np.concatenate([p.weights * len(p) for p in posteriors])
        new.weights = check_weights(joined, len(refs)) if refs else np.zeros(0)
        return new

    @property
    def bytes_each(self) -> int:
        """Memory of one sample."""
        return sum(t.numel() * t.element_size() for t in self.state(0).values()) if len(self) else 0

    def prepare(
        self, raw: Tensor, device: torch.device, dtype: torch.dtype | None = None, check_scale: bool = False
    ) -> Tensor:
        """Inputs as the network takes them; see `inputs.Pixels`. `check_scale` reads their range, too.

        Whole numbers are left to a network that looks them up; anything else gets `dtype`, or that of the parameters.
        """
        if not raw.is_floating_point() and raw.dtype != torch.uint8 and looks_up(self.model):
            return raw.to(device)
        x = self._pixels(raw, device, dtype or precision_of(self.model))
        if check_scale:
            self._pixels.check_scale(raw)
        return x

    def packed(self, x: Any) -> Any:
        """Several inputs at once, a dict or (where the network takes them by position) a tuple, as one tensor."""
        known = layout_of(self.model)
        if known is not None and isinstance(x, Tensor) and x.dtype != torch.int32:
            raise InputError(f"one tensor of inputs, and the network takes {known}: pass them as in training")
        if isinstance(x, Mapping):
            x = {key: part for key, part in x.items() if key not in LABELS}
        elif known is None or known.names or not isinstance(x, tuple):
            return x
        if not are_several(x):
            return x
        packed, layout = pack(x)
        if known is None and self.shape not in (None, tuple(packed.shape[1:])):
            raise InputError(f"inputs {layout}, and the network takes one tensor of shape {list(self.shape or ())}")
        if known is None:  # a posterior that was loaded: what its network takes shows now
            self.release()
            self.model = taking(self.model, layout)
        elif layout != known:
            raise InputError(f"inputs {layout}, and the network takes {known}")
        return packed

    def release(self) -> None:
        """Free the memory that a prediction keeps for the next one (samples on the device, a graph)."""
        self.held = None
        self._bodies.clear()

    def to_probs(self, outputs: Tensor) -> Tensor:
        """The network's outputs as float64 probabilities; softmax without a likelihood."""
        if self.likelihood is None and (outputs.ndim < 2 or outputs.shape[-1] == 1):
            raise InputError(
                "the network has one output, which is no probability of classes: for a regression make the posterior "
                "with likelihood=atmc.likelihoods.Gaussian(scale) and use regress; two classes take two outputs"
            )
        wide = outputs.double()
        return (torch.softmax(wide, dim=-1) if self.likelihood is None else self.likelihood.probs(wide)).double()

    def on(self, device: torch.device, state: Mapping[str, Tensor] | None = None) -> nn.Module:
        """The network on a device, in evaluation mode, made once per device; with `state` its weights are set."""
        key = str(device)
        if key not in self._bodies:
            self._bodies[key] = copy.deepcopy(self.model).to(device).eval().requires_grad_(False)
        body = self._bodies[key]
        if state is not None:
            check_state(body, state)
            body.load_state_dict(dict(state), strict=False)
        return body

    def split(self, x: Tensor, device: torch.device) -> tuple[nn.Module, Tensor]:
        """The network on a device and its inputs `x`, or the part that differs from sample to sample and its inputs.

        Where only the last module was sampled, what comes before it is computed here, once for all samples.
        """
        body = self.on(device)
        if self._place is None:
            state = self.state(0)
            fixed = any(name not in state for name, _ in body.named_parameters())
            self._place = (last_module(body, state, x[:2]) if fixed else None) or ""
        if not self._place:
            return body, x
        key = f"{device} {self._place}"
        if key not in self._bodies:
            self._bodies[key] = Tail(body, self._place)
        return self._bodies[key], next(features_of(body, self._place, [x]))

    def predict(
        self,
        x: Tensor | Iterable[Any],
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        strategy: str = "auto",
        samples_at_once: int | None = None,
    ) -> Prediction:
        """The predictive p̄ = Σ_k w_k p_k for each input, with its uncertainty (see `Prediction`).

        Args:
            x: a tensor, array or table `[N, ...]`, a `Dataset` or `DataLoader` (taken in the data set's order), a data
                set of `atmc.data`, or an iterable of batches; results are on its device. uint8 images `[N, C, H, W]`
                are normalised as (x/255 − `.mean`)/`.std`. Floats must be normalised already: those from 0 to 1 give a
                warning, those from 0 to 255 an error, as do images of another size than `.shape`.
            device: by default the inputs' accelerator, or CUDA if available.
            dtype: of the activations, by default that of the parameters; averages are float64.
            strategy: `loop`, `together`, `graph`, or `auto`, which measures.
            samples_at_once: the most samples on the device at a time.
        """
        self.need_classes("predict gives probabilities of classes")
        x = self.packed(x)
        return predict(self, x, batch_size, device, dtype, strategy, samples_at_once)

    @property
    def is_regression(self) -> bool:
        """Whether the likelihood is a regression's."""
        return bool(getattr(self.likelihood, "task", "classification") != "classification")

    def need_classes(self, what: str, cure: str = "use posterior.regress(x), which has .mean and .std") -> None:
        """Raise for a regression, with what to do instead."""
        if self.is_regression:
            raise InputError(f"{what}, and this posterior is of a regression: {cure}")

    def regress(self, x: Any, **how: Any) -> Estimate:
        """Mean and variance of the predictive of a regression; see `atmc.posterior.regression`."""
        from atmc.posterior import own_scores
        from atmc.posterior.regression import regress

        x = self.packed(x)
        if isinstance(self.likelihood, OwnLikelihood) and self.is_regression:
            return own_scores.estimate(self, self.likelihood, x, **how)
        return regress(self, x, **how)

    def sample_probs(self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """Each sample's probabilities `[K, N, C]`, float32 on the CPU; its outputs `[K, N, ...]` for a regression."""
        return sample_probs(self, self.packed(x), batch_size, device)

    def evaluate(self, x: Any, labels: Any = None, **how: Any) -> dict[str, Any]:
        """Scores of the last sample (`single`) and of all samples (`predictive`).

        `x` may be a `Dataset`, a `DataLoader` or a data set of `atmc.data`, which bring their labels.

        Classification: accuracy, NLL, Brier, ECE (`metrics.summary`). Regression: RMSE, NLL of the predictive density
        and coverage of the central 90 % interval (`regression.summary`).
        """
        from atmc.posterior import metrics, regression

        if labels is None:
            x, labels = with_labels(x)
        x = self.packed(x)
        if isinstance(self.likelihood, OwnLikelihood) and self.is_regression:
            from atmc.posterior import own_scores

            return own_scores.scores(self, self.likelihood, x, labels, **how)
        law = regression.law_of(self.likelihood)
        if law is not None:
            return regression.summary(self.sample_probs(x, **how), labels, law, self.weights)
        self.need_classes("without the noise of the targets evaluate scores probabilities of classes")
        return metrics.summary(self.sample_probs(x, **how), labels, self.weights)

    def save(self, folder: str | Path) -> Path:
        """Write the samples as safetensors and the rest as one JSON file; returns the folder."""
        from atmc.posterior.save_load import save

        return save(self, Path(folder))

    @staticmethod
    def load(folder: str | Path, model: nn.Module | None = None, likelihood: Any = None) -> Posterior:
        """Open what `save` or `export` wrote; a network or likelihood of one's own must be given."""
        from atmc.posterior.save_load import load

        return load(Path(folder), model, likelihood)

    @staticmethod
    def from_run(folder: Any, model: nn.Module | None = None, likelihood: Any = None) -> Posterior:
        """The samples of a run directory, all chains together; `model` and `likelihood` as for `load`."""
        from atmc.posterior.save_load import from_run

        return from_run(folder, model, likelihood)

    def distill(self, x: Any, **how: Any) -> Distilled:
        """One network that matches the predictive; see `atmc.posterior.distill.distill`."""
        from atmc.posterior.distill import distill

        return distill(self, x, **how)

    def export(self, folder: str | Path, onnx: bool = True, inputs: Tensor | None = None, **how: Any) -> Path:
        """`save`, and with `onnx` one ONNX file that averages the samples, checked; see `atmc.posterior.export`."""
        from atmc.posterior.export import export

        return export(self, Path(folder), onnx=onnx, inputs=inputs, **how)
