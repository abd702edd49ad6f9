"""From a recipe to what it names: network, prior, likelihood, and the seeds of its chains."""

import copy
import dataclasses
import hashlib
import inspect
import math
from typing import Any

import torch
from torch import nn

from atmc.common.errors import InputError
from atmc.recipe.error_messages import either, must_be_one_of
from atmc.recipe.settings import ModelSection, Recipe
from atmc.recipe.unused_keys import taken, unknown_option

JITTER = 0.1  # of a tensor's size: noise on the first weights of every chain of a given network but the first


def chain_seed(seed: int, chain: int, purpose: str) -> int:
    """A seed for one purpose of one chain. Hashed, so that equal or neighbouring seeds never share a stream."""
    digest = hashlib.sha256(f"atmc {seed} {chain} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 2


def build_model(recipe: Recipe, shape: tuple[int, ...], classes: int, chain: int = 0) -> nn.Module:
    """The recipe's network for examples of `shape`, with the first weights of chain `chain`."""
    import atmc.nn

    section = recipe.model
    _check_network(section)
    options: dict[str, Any] = {"depth": section.depth, "width": section.width, "classes": classes, **section.options}
    if section.name == "mlp":
        options.setdefault("in_features", math.prod(shape))
    else:
        options |= {"in_channels": shape[0], "norm": None if section.norm == "none" else section.norm}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chain_seed(recipe.seed, chain, "weights"))
        model: nn.Module = atmc.nn.build(section.name, **options)
    return model


def _check_network(section: ModelSection) -> None:
    """One line with the key where the network's name, normalisation or options do not exist."""
    from atmc.nn.registry import NETWORKS, NORMS

    if section.name not in NETWORKS:
        raise InputError(must_be_one_of("model.name", section.name, NETWORKS))
    choices = NORMS.get(section.name, (section.norm,))
    if section.norm not in choices:
        raise InputError(
            f'model.norm = "{section.norm}" and model.name = "{section.name}" do not go together: use {either(choices)}'
        )
    known = [name for name in inspect.signature(NETWORKS[section.name]).parameters if name not in taken("model")]
    for name in section.options:
        if name not in known:
            raise InputError(unknown_option("model.options", name, known))


def start_weights(model: nn.Module, recipe: Recipe, chain: int) -> nn.Module:
    """A copy of a user's network with the first weights of one chain.

    `model.start = "given"`: chain 0 begins at the weights that the network has; those of the others have independent
    Gaussian noise, of standard deviation JITTER times the root mean square of each tensor, so that chains begin further
    apart than they end. "fresh": every chain draws new weights, by the layers' own `reset_parameters`. What is not
    sampled (`requires_grad=False`) and buffers stay as they are.
    """
    own = copy.deepcopy(model)
    if recipe.model.start == "given" and chain == 0:
        return own
    kept = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    sampled = {name: p for name, p in own.named_parameters() if p.requires_grad}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(chain_seed(recipe.seed, chain, "weights"))
        if recipe.model.start == "fresh":
            _draw(own, sampled)
            for name, tensor in own.state_dict().items():
                if name not in sampled:
                    tensor.copy_(kept[name])
            return own
        for p in sampled.values():
            noise = torch.randn(p.shape).to(p)  # drawn on the CPU: the same on every device
            p.add_(noise * (JITTER * p.square().mean().sqrt()))
    return own


def _draw(model: nn.Module, sampled: dict[str, nn.Parameter]) -> None:
    """New weights for every layer; one line where a layer has no way to draw its own."""
    drawn: set[int] = set()
    for module in model.modules():
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset):
            reset()
            drawn |= {id(p) for p in module.parameters(recurse=False)}
    for name, p in sampled.items():
        if id(p) not in drawn:
            owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
            raise InputError(f'start="fresh" cannot draw {name} anew: {owner} has no reset_parameters; leave start out')


def build_prior(recipe: Recipe, model: nn.Module, rule: Any = None) -> Any:
    """The prior of every parameter (a `PriorSet`), or None for `prior = "none"`; `rule` is the user's own."""
    from atmc.target import priors

    if recipe.target.prior == "none":
        return None
    if rule is not None:
        return rule.assign(model)
    if recipe.target.prior == "custom":
        raise InputError('target.prior = "custom" needs the rule itself: pass it to atmc.sample as prior=')
    return priors.build(recipe.target.prior, recipe.target.prior_scale).assign(model)


def build_likelihood(recipe: Recipe) -> Any:
    """The likelihood of the labels."""
    from atmc.target import likelihoods

    section = recipe.target
    made = likelihoods.build(section.likelihood)
    known = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]
    for name in section.likelihood_options:
        if name not in known:
            raise InputError(unknown_option("target.likelihood_options", name, known))
    return likelihoods.build(section.likelihood, **section.likelihood_options)
