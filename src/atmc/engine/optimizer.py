"""From a recipe to its sampler, or SGD, over the parameters of a network."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atmc.common.errors import InputError
from atmc.engine.optimizer_state import new_sgd
from atmc.recipe.settings import Recipe, SamplerSection


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
    if lr.device.type == "cpu" or section.noise_examples:  # whose step is not the one that skips
        options.setdefault("nonfinite", "ignore")
    kind: Any = samplers.SAMPLERS[section.name]
    options |= {key: getattr(section, key) for key in kind.recipe_keys}
    if kind.has_momentum:
        kept = "integrator", "momentum_init", "noise_rank", "noise_kronecker", "noise_examples"
        options |= {key: getattr(section, key) for key in kept}
    if kind.has_thermostat:
        options |= {"inertia": section.inertia, "thermostat_init": section.thermostat_init}
        options["reference_lr"] = "lr" if section.thermostat_follows_step else None
    try:
        if section.speed is not None and section.momentum is not None:
            limit = math.inf if section.max_speed is None else section.max_speed
            options |= samplers.speed_settings(section.lr, section.speed, limit, section.momentum)
        else:
            options |= {k: v for k in ("mass", "friction", "speed_limit") if (v := getattr(section, k)) is not None}
        if masses is not None:
            options["mass"] = masses
        made = kind(named, section.lr, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"sampler: {error}") from error
    for group in made.param_groups:
        if section.friction_follows_step:
            group["momentum"] = math.exp(-group["friction"] * section.lr)
        group["lr"] = lr
        group["temperature"] = temperature
    optimizer: Optimizer = made
    return optimizer
