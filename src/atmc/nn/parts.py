"""A part of a network that is sampled while the rest stays as it is.

`choose` turns what a person names (modules, names, patterns) into parameters. Where they are all in the network's last
module, what comes before it is the same for every sample: `Tail` is that module alone, and `features_of` computes its
inputs once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from atmc.common.errors import InputError
from atmc.common.suggest import nearest

Only = str | nn.Module | Sequence[str | nn.Module]


def names_of(model: nn.Module, only: Only) -> list[str]:
    """What `only` names, as text: modules by their names, names and patterns as they are, checked to match."""
    asked = [only] if isinstance(only, str | nn.Module) else list(only) if isinstance(only, Iterable) else []
    if not asked:
        raise InputError(f"only must name layers or parameters of the network, as only='head', not {only!r}")
    places = {id(module): name for name, module in model.named_modules()}
    found = []
    for one in asked:
        if isinstance(one, nn.Module):
            if id(one) not in places:
                raise InputError(f"only: this {type(one).__name__} is no part of the network: pass one of its modules")
            found.append(places[id(one)])
        elif isinstance(one, str):
            found.append(one)
        else:
            raise InputError(f"only takes names, patterns and modules, not {type(one).__name__}")
    choose(model, found)
    return found


def choose(model: nn.Module, names: Sequence[str]) -> set[str]:
    """The parameters that `names` stand for: each is one's own name, that of a module around it, or a pattern."""
    parameters = [name for name, _ in model.named_parameters()]
    if not parameters:
        raise InputError("the network has no parameters")
    found: set[str] = set()
    for one in names:
        own = {p for p in parameters if one == "" or _is(p, one)}
        if not own:
            near = nearest(one, [*(name for name, _ in model.named_modules() if name), *parameters])
            there = ", ".join(dict.fromkeys(name.split(".")[0] for name in parameters))
            hint = f"did you mean {near!r}?" if near else f"it has {there}"
            raise InputError(f"only={one!r} matches no parameter of the network: {hint}")
        found |= own
    return found


def _is(parameter: str, asked: str) -> bool:
    parts = parameter.split(".")
    return any(fnmatchcase(".".join(parts[:k]), asked) for k in range(1, len(parts) + 1))


def with_only(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """A copy in evaluation mode of which only the named parameters are sampled: dropout is off, BatchNorm fixed."""
    own = copy.deepcopy(model).eval()
    chosen = choose(own, names)
    for name, parameter in own.named_parameters():
        parameter.requires_grad_(name in chosen)
    return own


def fixed_part(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network that are not sampled, on the CPU; empty where all parameters are sampled."""
    sampled = {name for name, p in model.named_parameters() if p.requires_grad}
    if len(sampled) == len(list(model.named_parameters())):
        return {}
    return {n: t.detach().to("cpu", copy=True) for n, t in model.state_dict().items() if n not in sampled}


def load_fixed_(model: nn.Module, fixed: dict[str, Tensor]) -> nn.Module:
    """Put the fixed tensors in place and mark them as not sampled."""
    own = dict(model.named_parameters())
    for name, tensor in fixed.items():
        there = model.state_dict().get(name)
        if there is None or there.shape != tensor.shape:
            what = (
                "lacks" if there is None else f"has in another shape, {list(there.shape)} and not {list(tensor.shape)},"
            )
            raise InputError(f"the network {what} {name}, a part that was not sampled: it is another network")
    model.load_state_dict(fixed, strict=False)
    for name in fixed.keys() & own.keys():
        own[name].requires_grad_(False)
    return model


class Tail(nn.Module):
    """The module `place` of a network alone, its parameters called as in the network; called on the module's inputs."""

    def __init__(self, model: nn.Module, place: str) -> None:
        super().__init__()
        self.place = place
        self.whole = f"{type(model).__module__}.{type(model).__qualname__}"  # what it is a part of
        *above, leaf = place.split(".")
        home: nn.Module = self
        for name in above:
            home.add_module(name, nn.Module())
            home = home.get_submodule(name)
        home.add_module(leaf, model.get_submodule(place))
        self.train(model.training)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.get_submodule(self.place)(features)
        return out


def last_module(model: nn.Module, names: Iterable[str], example: Tensor) -> str | None:
    """The module that holds all the parameters `names`, if it is the network's last: its output is the network's own.

    None where there is no such module, or it takes anything but one tensor of a row for each example.
    """
    sampled = [name.split(".")[:-1] for name in names]
    shared: list[str] = []
    for parts in zip(*sampled, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    place = ".".join(shared)
    if not place or "place" in shared[:1]:
        return None
    seen: list[tuple[Any, Any, Any]] = []
    handle = model.get_submodule(place).register_forward_hook(
        lambda _, args, kwargs, out: seen.append((args, kwargs, out)), with_kwargs=True
    )
    try:
        with torch.no_grad():
            outputs = model(example)
    finally:
        handle.remove()
    if len(seen) != 1:
        return None
    args, kwargs, out = seen[0]
    plain = not kwargs and len(args) == 1 and isinstance(args[0], Tensor) and args[0].is_floating_point()
    if not plain or out is not outputs or args[0].ndim < 2 or len(args[0]) != len(example):
        return None
    return place


def features_of(model: nn.Module, place: str, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """What the module `place` is given for each batch, on the batch's device."""

    class Reached(Exception):
        """The rest need not be computed."""

    def stop(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        kept.append(args[0])
        raise Reached

    kept: list[Tensor] = []
    handle = model.get_submodule(place).register_forward_pre_hook(stop)
    try:
        for x in batches:
            with torch.no_grad():
                try:
                    model(x)
                except Reached:
                    yield kept.pop()
    finally:
        handle.remove()
