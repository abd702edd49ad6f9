"""The samples of a posterior: a bank, a list of state dicts, or a list of networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn


class Likelihood(Protocol):
    """What the posterior needs of a likelihood: outputs of the network to probabilities."""

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities `[N, C]`."""
        ...


class Samples(Protocol):
    """What the posterior needs of a bank: a number of samples, each a mapping from names to tensors."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]: ...


def as_bank(samples: Samples | Sequence[nn.Module]) -> Samples:
    """Networks as copies of their tensors; state dicts as they are, unless all are one network's own tensors."""
    if isinstance(samples, Iterator | nn.ModuleList):
        samples = list(samples)
    if isinstance(samples, Mapping | Tensor | nn.Module):
        kind = "one dict" if isinstance(samples, Mapping) else f"one {type(samples).__name__}"
        raise ValueError(f"samples must be a list of state dicts or of networks, not {kind}")
    if not isinstance(samples, list | tuple):
        return samples  # type: ignore[return-value]
    states: list[Mapping[str, Tensor]] = [
        {n: t.detach().clone() for n, t in s.state_dict().items()} if isinstance(s, nn.Module) else s for s in samples
    ]
    if not states:
        raise ValueError("there are no samples in the list: a posterior takes at least one state dict or network")
    for i, state in enumerate(states):
        if not isinstance(state, Mapping):
            raise ValueError(f"sample {i} must be a state dict or a network, not {type(state).__name__}")
        if (odd := next((n for n, t in state.items() if not isinstance(t, Tensor)), None)) is not None:
            raise ValueError(f"{odd} of sample {i} must be a tensor, not {type(state[odd]).__name__}")
    if len(states) > 1 and states[0].keys() == states[-1].keys():
        ends = [(t, states[-1][n]) for n, t in states[0].items() if t.numel()]
        if ends and all(a.data_ptr() == b.data_ptr() != 0 for a, b in ends):  # what is frozen may be shared
            raise ValueError("samples share memory, so all are the last one: clone the tensors of each state_dict()")
    return states


def check_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Every parameter of the network that is sampled is in the sample with its shape, and nothing foreign is."""
    own = model.state_dict()
    for name, parameter in model.named_parameters():
        if name not in state:
            for prefix in ("module.", "_orig_mod."):
                if prefix + name in state or name.removeprefix(prefix) in state:
                    raise ValueError(
                        f"the names of sample and network differ by the {prefix!r} that DistributedDataParallel or "
                        "torch.compile puts before them: take both from the network inside (.module, ._orig_mod)"
                    )
            if not parameter.requires_grad:  # not sampled: the network's own serves
                continue
            raise ValueError(f"the sample lacks {name}: it was drawn for another network")
        if state[name].shape != parameter.shape:
            have, want = list(state[name].shape), list(parameter.shape)
            raise ValueError(f"{name} has the shape {have} in the sample and {want} in the network")
    if extra := next((name for name in state if name not in own), None):
        raise ValueError(f"the sample has {extra}, which the network lacks: it was drawn for another network")
