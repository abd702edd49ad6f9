"""Keys without effect are refused by name, and so is whatever a sampler or network would not take."""

from pathlib import Path
from typing import Any

import pytest

from atmc.common.errors import InputError
from atmc.recipe.settings import Recipe, flat
from atmc.recipe.toml_files import load_recipe, recipe_from_values
from atmc.recipe.unused_keys import idle_keys, sampler_options

SPEEDS = {"speed": 3e-4, "max_speed": 1e-3, "momentum": 0.9}
CYCLES = {"epochs": 20, "cycle_epochs": 5}


def recipe(sampler: dict[str, Any], **sections: dict[str, Any]) -> Recipe:
    name = sampler.get("name", "atmc")
    moves = {**(SPEEDS if name in ("atmc", "sgnht", "sghmc") else {}), **sampler}
    target = {"prior": "none"} if name == "sgd" else {}
    return recipe_from_values({"sampler": moves, "schedule": CYCLES, "target": target, **sections})


@pytest.mark.parametrize("name", ["atmc", "sgnht", "sghmc", "sgld", "sgd"])
def test_what_a_sampler_reads_is_allowed(name: str) -> None:
    used: dict[str, dict[str, Any]] = {
        "atmc": {"inertia": 0.01, "thermostat_init": 1.0, "integrator": "strang-frozen"},
        "sgnht": {"thermostat": "scalar", "thermostat_from_noise": True, "look_batches": 8, "momentum_init": "law"},
        "sghmc": {"mass_from": "tensor", "options": {"noise_estimate": 1.0, "measure_every": 5}},
        "sgld": {"preconditioner": "rmsprop", "options": {"decay": 0.9}},
        "sgd": {"momentum": 0.0, "weight_decay": 1e-4},
    }
    assert recipe({"name": name, **used[name]}).sampler.name == name


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        ({"name": "atmc", "thermostat": "scalar"}, ["sampler.thermostat", '"atmc"', '"sgnht"']),
        ({"name": "sghmc", "thermostat": "scalar"}, ["sampler.thermostat", '"sghmc"', '"sgnht"']),
        ({"name": "sgld", "integrator": "strang"}, ["sampler.integrator", '"sgld"']),
        ({"name": "sgld", "friction": 3.0}, ["sampler.friction", '"sgld"']),
        ({"name": "sgld", "momentum_init": "law"}, ["sampler.momentum_init", '"sgld"']),
        ({"name": "sgld", "momentum": 0.9}, ["sampler.momentum", '"sgld"']),
        ({"name": "sgld", "mass_from": "tensor"}, ["sampler.mass_from", '"sgld"']),
        ({"name": "sghmc", "inertia": 0.5}, ["sampler.inertia = 0.5", '"sghmc"', "leave it out"]),
        ({"name": "sghmc", "thermostat_init": 2.0}, ["sampler.thermostat_init", '"sghmc"']),
        ({"name": "sghmc", "thermostat_from_noise": True}, ["sampler.thermostat_from_noise", '"sghmc"']),
        ({"name": "sgd", "inertia": 0.5}, ["sampler.inertia", '"sgd"']),
        ({"name": "sgd", "temperature": 0.5}, ["sampler.temperature", '"sgd"']),
        ({"name": "sgd", "options": {"dampening": 0.1}}, ["sampler.options", '"sgd"']),
        ({"name": "atmc", "preconditioner": "rmsprop"}, ["sampler.preconditioner", '"sgld"']),
        ({"name": "atmc", "look_batches": 8}, ["sampler.look_batches", "sampler.mass_from"]),
        (
            {"name": "atmc", "max_speed": None, "integrator": "strang-frozen"},
            ["sampler.integrator", "sampler.max_speed"],
        ),
        ({"name": "atmc", "thermostat_from_noise": True, "thermostat_init": 1.0}, ["sampler.thermostat_init", "twice"]),
        ({"name": "atmc", "thermostat_from_noise": True, "temperature": 0.0}, ["sampler.thermostat_from_noise"]),
        ({"name": "sghmc", "thermostat_follows_step": False}, ["sampler.thermostat_follows_step", '"sghmc"']),
        ({"name": "atmc", "momentum": 0.0}, ["sampler.momentum = 0.0", "above 0"]),
        ({"name": "sgd", "momentum": 1.0}, ["sampler.momentum = 1.0", "below 1"]),
        ({"name": "atmc", "options": {"seed": 5}}, ["sampler.options.seed", "another for each chain"]),
        ({"name": "atmc", "options": {"params": 5}}, ["sampler.options.params"]),
        ({"name": "atmc", "options": {"lr": 5}}, ["sampler.options.lr", "say it as sampler.lr"]),
        ({"name": "atmc", "options": {"temperature": 5}}, ["sampler.options.temperature", "sampler.temperature"]),
        (
            {"name": "atmc", "options": {"integrator": "strang"}},
            ["sampler.options.integrator", "as sampler.integrator"],
        ),
        ({"name": "atmc", "options": {"mesure_every": 5}}, ["sampler.options.mesure_every", "options.measure_every?"]),
        ({"name": "atmc", "options": {"foo": 5}}, ["sampler.options.foo", "measure_every"]),
        ({"name": "sgld", "options": {"decay": 0.9}}, ["sampler.options.decay", "sampler.preconditioner"]),
    ],
)
def test_a_sampler_key_without_effect_is_one_line(sampler: dict[str, Any], words: list[str]) -> None:
    sampler = {key: value for key, value in {**SPEEDS, **sampler}.items() if value is not None}
    if sampler["name"] in ("sgld", "sgd"):
        sampler = {key: value for key, value in sampler.items() if key not in ("speed", "max_speed")}
        if "momentum" not in words[0]:
            sampler.pop("momentum")
    target = {"prior": "none"} if sampler["name"] == "sgd" else {}
    refused({"sampler": sampler, "schedule": CYCLES, "target": target}, words)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"schedule": {"temperature_ramp_epochs": 2}}, ["schedule.temperature_ramp_epochs", '"ramp"']),
        ({"schedule": {"explore_fraction": 0.5}}, ["schedule.explore_fraction", '"explore"']),
        ({"schedule": {"temperature_schedule": "explore", "explore_fraction": 0.5},
          "sampler": {"thermostat_follows_step": False}},
         ['schedule.temperature_schedule = "explore"', "thermostat_follows_step"]),
        ({"schedule": {"temperature_peak": 4.0}}, ["schedule.temperature_peak", '"anneal"']),
        ({"schedule": {"temperature_schedule": "anneal", "temperature_peak": 4.0, "sample_every_steps": 5}},
         ["schedule.sample_every_steps", "other temperatures"]),
        ({"schedule": {"kind": "constant", "cycle_epochs": None, "hold_fraction": 0.5}}, ["schedule.hold_fraction"]),
        ({"schedule": {"sample_gap_epochs": 2}}, ["schedule.sample_gap_epochs", "schedule.samples_per_cycle"]),
        ({"schedule": {"kind": "constant", "cycle_epochs": None, "samples_per_cycle": 2}},
         ["schedule.samples_per_cycle", '"cyclic"']),
        ({"schedule": {"samples_per_cycle": 2, "sample_every_steps": 5}}, ["schedule.samples_per_cycle", "twice"]),
        ({"schedule": {"temperature_schedule": "anneal", "temperature_peak": 4.0, "samples_per_cycle": 2}},
         ["schedule.samples_per_cycle", "other temperatures"]),
        ({"schedule": {"temperature_schedule": "explore", "explore_fraction": 0.9, "samples_per_cycle": 2}},
         ["schedule.samples_per_cycle = 2", "schedule.explore_fraction = 0.9"]),
        ({"schedule": {"samples_per_cycle": 99}}, ["schedule.samples_per_cycle = 99", "of which there are no more"]),
        ({"schedule": {"samples_per_cycle": 2, "sample_gap_epochs": 3, "cycle_epochs": 4, "cycle_warmup_epochs": 2}},
         ["schedule.samples_per_cycle = 2", "first 2 warm up (schedule.cycle_warmup_epochs)"]),
        ({"schedule": {"gamma": 0.5}}, ["schedule.gamma", '"step"']),
        ({"schedule": {"milestones": [3]}}, ["schedule.milestones", '"step"']),
        ({"schedule": {"warm_start_lr": 0.1}}, ["schedule.warm_start_lr", "schedule.warm_start_epochs"]),
        ({"schedule": {"warm_start_momentum": 0.5}}, ["schedule.warm_start_momentum", "schedule.warm_start_epochs"]),
        ({"schedule": {"kind": "constant", "cycle_epochs": None, "lr_floor": 0.5}}, ["schedule.lr_floor", "constant"]),
        ({"schedule": {"kind": "cosine", "cycle_epochs": None, "burn_in_epochs": 5}}, ["schedule.burn_in_epochs"]),
        ({"sampler": {"name": "sgd"}, "target": {"prior": "none", "prior_scale": 5.0}}, ["target.prior_scale"]),
        ({"sampler": {"name": "sgld", "temperature": 0.0}, "schedule": {"temperature_schedule": "ramp"}},
         ["schedule.temperature_schedule", "sampler.temperature = 0"]),
        ({"model": {"name": "mlp", "norm": "frn"}}, ["model.norm", "mlp"]),
        ({"model": {"options": {"depth": 8}}}, ["model.options.depth", "model.depth"]),
        ({"model": {"options": {"classes": 8}}}, ["model.options.classes", "data"]),
    ],
)  # fmt: skip
def test_other_keys_without_effect_are_one_line(sections: dict[str, dict[str, Any]], words: list[str]) -> None:
    plan = {key: value for key, value in {**CYCLES, **sections.get("schedule", {})}.items() if value is not None}
    refused({"sampler": {"name": "sgld"}, **sections, "schedule": plan}, words)


def refused(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        recipe_from_values(values)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(words[0]) or said.startswith(f"unknown key {words[0]}"), said
    for word in words:
        assert word in said, said


def test_momentum_1_is_what_the_sampler_allows() -> None:
    assert recipe({"name": "sghmc", "momentum": 1.0}).sampler.momentum == 1.0


def test_options_are_those_that_the_samplers_take_and_a_recipe_does_not_name() -> None:
    keys = {key.rpartition(".")[2] for key in flat(Recipe()) if key.startswith("sampler.")}
    common = {"backend", "measure_every", "nonfinite"}
    own: dict[str, set[str]] = {
        "atmc": set(),
        "sgnht": set(),
        "sghmc": {"noise_estimate"},
        "sgld": {"decay", "epsilon"},
    }
    for name, more in own.items():
        assert set(sampler_options(name)) >= common | more
        assert not set(sampler_options(name)) & (keys | {"seed", "params"})


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_a_resolved_recipe_is_read_back_without_complaint(file: Path, tmp_path: Path) -> None:
    from atmc.recipe.toml_files import recipe_to_toml

    found = load_recipe(file)
    assert idle_keys(found) == {}
    (tmp_path / "resolved.toml").write_text(recipe_to_toml(found))
    assert load_recipe(tmp_path / "resolved.toml") == found
