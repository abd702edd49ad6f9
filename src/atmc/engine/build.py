"""From a recipe to the objects of a chain: network, prior, likelihood, sampler."""

import copy
import dataclasses
import hashlib
import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atmc.common.errors import InputError
from atmc.engine.optimizer_state import new_sgd
from atmc.recipe.error_messages import must_be_one_of
from atmc.recipe.settings import ModelSection, Recipe, SamplerSection, inertia
from atmc.recipe.unused_keys import taken, unknown_option


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
    from atmc.nn.registry import NETWORKS

    if section.name not in NETWORKS:
        raise InputError(must_be_one_of("model.name", section.name, NETWORKS))
    if section.name == "resnet" and section.norm == "none":
        raise InputError('model.norm = "none" and model.name = "resnet" do not go together: use "bn" or "frn"')
    if section.name == "resnetpp" and section.norm == "bn":
        raise InputError('model.norm = "bn" and model.name = "resnetpp" do not go together: use "none" or "frn"')
    known = [name for name in inspect.signature(NETWORKS[section.name]).parameters if name not in taken("model")]
    for name in section.options:
        if name not in known:
            raise InputError(unknown_option("model.options", name, known))


def start_weights(model: nn.Module, recipe: Recipe, chain: int) -> nn.Module:
    """A copy of a user's network for one chain: the first keeps its weights, the others draw new ones."""
    own = copy.deepcopy(model)
    if chain > 0:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chain_seed(recipe.seed, chain, "weights"))
            for module in own.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
    return own


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


def build_optimizer(
    recipe: Recipe,
    named: list[tuple[str, Tensor]],
    lr: Tensor,
    temperature: Tensor | float,
    seed: int,
    masses: Any = None,
) -> Optimizer:
    """The recipe's sampler, or SGD. `lr` and `temperature` are device tensors that the chain keeps up to date.

    `masses` (one per parameter) stand in for the recipe's common one.
    """
    section = recipe.sampler
    if section.name == "sgd":
        return new_sgd(named, lr, section.momentum or 0.0, section.weight_decay, section.nesterov)
    return _sampler(recipe, named, lr, temperature, seed, masses)


def try_optimizer(recipe: Recipe, model: nn.Module, device: torch.device) -> None:
    """Make the recipe's optimizer once on numbers in place of tensors, for its complaints.

    The real one is made when its phase begins, after a warm start of hours: too late to learn of a wrong setting.
    """
    named = [
        (name, torch.zeros(1, dtype=p.dtype, device=device)) for name, p in model.named_parameters() if p.requires_grad
    ]
    lr, temperature = torch.tensor(recipe.sampler.lr, device=device), torch.tensor(1.0, device=device)
    build_optimizer(recipe, named, lr, temperature, seed=0)


def common_mass(section: SamplerSection) -> float:
    """The mass that a recipe states, as a number or as a speed: m = (speed/lr)^-2."""
    from atmc.samplers import speed_settings

    if section.speed is not None:
        return speed_settings(section.lr, section.speed)["mass"]
    return 1.0 if section.mass is None else section.mass


def _sampler(
    recipe: Recipe,
    named: list[tuple[str, Tensor]],
    lr: Tensor,
    temperature: Tensor | float,
    seed: int,
    masses: Any,
) -> Optimizer:
    from atmc import samplers

    section = recipe.sampler
    # A gradient that is not finite shows in the loss, which the guard reads; on CUDA the step skips it by itself.
    options: dict[str, Any] = {**section.options, "seed": seed, "temperature": section.temperature}
    if lr.device.type == "cpu":
        options.setdefault("nonfinite", "ignore")
    kind: Any = samplers.SAMPLERS[section.name]
    if section.name == "sgld":
        if section.preconditioner != "none":
            options["preconditioner"] = section.preconditioner
    else:
        options |= {"scheme": section.scheme, "friction": section.friction, "momentum_init": section.momentum_init}
    if section.name in ("atmc", "sgnht"):
        options |= {"inertia": inertia(section), "thermostat_init": section.thermostat_init}
        options["reference_lr"] = "lr" if section.thermostat_follows_step else None
    if section.name == "sgnht":
        options["thermostat"] = section.thermostat
    try:
        if section.speed is not None and section.momentum is not None:
            limit = math.inf if section.max_speed is None else section.max_speed
            options |= samplers.speed_settings(section.lr, section.speed, limit, section.momentum)
        else:
            options |= {k: v for k in ("mass", "noise", "speed_limit") if (v := getattr(section, k)) is not None}
        if masses is not None:
            options["mass"] = masses
        made = kind(named, section.lr, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"sampler: {error}") from error
    for group in made.param_groups:
        group["lr"] = lr
        group["temperature"] = temperature
    optimizer: Optimizer = made
    return optimizer
