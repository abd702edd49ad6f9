"""Find the layers of a network that cannot be sampled.

A posterior needs a likelihood that is a function of the parameters and one example. Dropout draws its own noise and
BatchNorm in training mode depends on the other examples of a batch; with a sampler's noise they underfit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

Kind = Literal["batch-statistics", "dropout", "noise", "hidden-state", "uninitialised"]

# Layers of other libraries that cannot be imported here, known by the name of their class.
NOISY_NAMES = {"StochasticDepth", "DropPath", "DropBlock2d", "GaussianNoise", "DropBlock"}
CURE = "pass atmc.nn.convert(model), the same network without it"
_RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


@dataclass(frozen=True)
class Finding:
    """One layer (or the whole network, name "") that cannot be sampled as it is."""

    name: str
    kind: Kind
    message: str

    def __str__(self) -> str:
        return f"{self.name or '(the network)'}: {self.message}"


def check(model: nn.Module, example: Tensor | None = None) -> list[Finding]:
    """Every layer that cannot be sampled; empty for a network that can.

    Layers are recognised by type. With an `example` batch (two or more examples) a copy of the network is also run,
    which finds randomness, examples that affect each other, and buffers that change.
    """
    findings = [finding for name, module in model.named_modules() for finding in _inspect(name, module)]
    if example is not None:
        findings += _observe(model, example, findings)
    return findings


def refusal(findings: Sequence[Finding]) -> str:
    """One line for a network that has findings: the first, and how many more."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return f"this network cannot be sampled: {findings[0]}{more}"


def uninitialised(module: nn.Module) -> bool:
    """Whether a lazy layer has not seen its first input."""
    return any(is_lazy(parameter) for parameter in module.parameters(recurse=False))


def _inspect(name: str, module: nn.Module) -> Iterator[Finding]:
    kind = type(module).__name__
    if uninitialised(module):
        yield Finding(name, "uninitialised", f"{kind} has no parameters yet; run one batch through the network first")
    elif isinstance(module, _BatchNorm) or ("BatchNorm" in kind and "Frozen" not in kind):
        without_stats = isinstance(module, _BatchNorm) and module.running_mean is None
        if module.training or without_stats:
            why = "has no running statistics and" if without_stats else "in training mode"
            yield Finding(
                name,
                "batch-statistics",
                f"{kind} {why} mixes the examples of a batch; use atmc.nn.convert(model) to fold it into "
                "weight-normalised layers, or convert(model, to='gn-ws') and fine-tune",
            )
    elif isinstance(module, _InstanceNorm) and module.track_running_stats:
        yield Finding(
            name, "batch-statistics", f"{kind} tracks running statistics of its batches; set track_running_stats=False"
        )
    elif isinstance(module, _DropoutNd):
        if module.p > 0 and module.training:
            yield Finding(name, "dropout", f"{kind}(p={module.p:g}) adds its own noise; {CURE}")
    elif isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0 and module.training:
        said = f"{kind} has dropout={module.dropout:g}, which adds its own noise; {CURE}"
        yield Finding(name, "dropout", said)
    elif isinstance(module, _RANDOM) or (kind in NOISY_NAMES and _rate(module) != 0):
        yield Finding(name, "noise", f"{kind} draws random numbers while training; replace it or set its rate to 0")


def _rate(module: nn.Module) -> float | None:
    """The dropout rate of a layer of another library, if it has a known name."""
    found = getattr(module, "drop_prob", getattr(module, "p", None))
    return float(found) if isinstance(found, int | float) else None


def _observe(model: nn.Module, example: Tensor, known: list[Finding]) -> Iterator[Finding]:
    """Run a copy and compare; kinds that a named layer already explains are left out."""
    explained = {finding.kind for finding in known}
    if "uninitialised" in explained:
        return
    if example.ndim < 1 or len(example) < 2:
        raise ValueError("check needs an example batch of two or more examples")
    probe = copy.deepcopy(model)
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    devices = [example.device] if example.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        first = probe(example)
        if not isinstance(first, Tensor):
            raise ValueError(f"check: the network must return one tensor, not {type(first).__name__}")
        changed = [name for name, buffer in probe.named_buffers() if not torch.equal(buffer, before[name])]
        probe = copy.deepcopy(model)
        again = probe(example)
        other = example.clone()
        other[1:] = example[1:].flip(0) if len(example) > 2 else example[1:] * 0.5
        other[-1] = 0
        mixed = copy.deepcopy(model)(other)
    scale = float(first.abs().max()) + 1e-12
    random = float((first - again).abs().max()) / scale
    if random > 1e-4 and not explained & {"dropout", "noise"}:
        yield Finding("", "noise", "two passes over the same batch differ; remove the noise (functional dropout?)")
    coupled = random <= 1e-4 and float((first[0] - mixed[0]).abs().max()) / scale > 1e-3
    if coupled and "batch-statistics" not in explained:
        yield Finding("", "batch-statistics", "an example's output depends on the rest of its batch")
    if changed and "batch-statistics" not in explained:
        names = ", ".join(changed[:3])
        yield Finding("", "hidden-state", f"a forward pass changes buffers ({names}); freeze them before sampling")
