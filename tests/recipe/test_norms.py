"""A normalisation that a network does not have, or that cannot be sampled, is one line with what to use instead."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atmc.common.errors import InputError
from atmc.nn.registry import NETWORKS, NORMS
from atmc.recipe.build import build_model
from atmc.recipe.error_messages import either
from atmc.recipe.settings import ModelSection, Recipe, SamplerSection, ScheduleSection, TargetSection
from atmc.recipe.validation import check_recipe

DEPTHS = {"wide-resnet": 10}
SHAPE = (3, 8, 8)


def recipe(**model: Any) -> Recipe:
    depth = DEPTHS.get(str(model["name"]), 8)
    return Recipe(model=ModelSection(depth=depth, width=4, **model), target=TargetSection(prior="gaussian"))


@pytest.mark.parametrize(("name", "norm"), [(name, norm) for name, norms in NORMS.items() for norm in norms])
def test_every_norm_of_the_table_can_be_built(name: str, norm: str) -> None:
    assert name in NETWORKS
    build_model(recipe(name=name, norm=norm), SHAPE, 3)


@pytest.mark.parametrize(
    ("name", "norm", "cure"),
    [
        ("resnetpp", "gn-ws", 'use "none" or "frn"'),
        ("resnet", "none", 'use "bn" or "frn"'),
        ("resnet", "evonorm-s0", 'use "bn" or "frn"'),
    ],
)
def test_a_norm_that_the_network_does_not_have(name: str, norm: str, cure: str) -> None:
    with pytest.raises(InputError) as caught:
        build_model(recipe(name=name, norm=norm), SHAPE, 3)
    assert str(caught.value) == f'model.norm = "{norm}" and model.name = "{name}" do not go together: {cure}'


@pytest.mark.parametrize(("name", "cure"), [("wide-resnet", '"gn-ws", "evonorm-s0" or "frn"'), ("resnet", '"frn"')])
def test_batchnorm_cannot_be_sampled(name: str, cure: str) -> None:
    sampler = SamplerSection(name="atmc", speed=1e-3, momentum=0.9)
    schedule = ScheduleSection(cycle_epochs=1)
    wrong = Recipe(model=ModelSection(name=name, depth=10, norm="bn"), sampler=sampler, schedule=schedule)
    with pytest.raises(InputError, match="BatchNorm makes the likelihood depend on the batch") as caught:
        check_recipe(wrong)
    assert str(caught.value).endswith(f"use {cure}")


def test_a_network_without_a_choice_of_norm() -> None:
    with pytest.raises(InputError) as caught:
        check_recipe(recipe(name="resnet-frn", norm="gn-ws"))
    assert 'model.norm = "gn-ws" has no meaning with model.name = "resnet-frn"' in str(caught.value)


def test_choices_in_words() -> None:
    assert either(["a"]) == '"a"'
    assert either(["a", "b", "c"]) == '"a", "b" or "c"'


def test_on_the_command_line_a_warning_is_one_line(tmp_path: Path) -> None:
    """Groups that do not divide the channels: the command says which are used instead, and runs."""
    (tmp_path / "r.toml").write_text(
        """
        data = { name = "synthetic:3x8x8?classes=3&train=32&test=8", batch_size = 16 }
        model = { name = "resnet-v2", depth = 8, width = 20 }
        target = { prior = "normalised" }
        sampler = { name = "atmc", speed = 1e-3, momentum = 0.9 }
        schedule = { epochs = 1, cycle_epochs = 1 }
        run = { device = "cpu" }
        """
    )
    command = [sys.executable, "-m", "atmc", "sample", "r.toml", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said = [line for line in done.stderr.splitlines() if "channels" in line]
    assert said == [
        "atmc: 20 channels cannot be normalised in groups of 16: groups of 20 are used",
        "atmc: 40 channels cannot be normalised in groups of 16: groups of 20 are used",
    ]
    assert "UserWarning" not in done.stderr
