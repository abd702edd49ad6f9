"""In bf16 every network computes in bf16: ours by its inputs, others by autocast, however they came into the run."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atmc.engine.precision import Precision, precision_for
from atmc.engine.run_data import load_data
from atmc.engine.runner import run
from atmc.nn import build
from atmc.recipe.settings import ModelSection

HALF, FULL = torch.bfloat16, torch.float32


def wide(norm: str = "gn-ws") -> nn.Module:
    return build("wide-resnet", depth=10, width=1, classes=4, norm=norm)


class Wrapped(nn.Module):
    """A user's network around one of ours."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits


def kinds_seen(layer: nn.Module) -> set[tuple[torch.dtype, torch.dtype]]:
    """The precisions of (inputs, outputs) that the layer will have in training."""
    seen: set[tuple[torch.dtype, torch.dtype]] = set()

    def look(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        if out.requires_grad and module.training:  # the curvature is measured in float32, on a copy that evaluates
            seen.add((given[0].dtype, out.dtype))

    layer.register_forward_hook(look)
    return seen


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_our_network_in_a_users_run(tiny: Any, change: Any, tmp_path: Path, precision: str, wrapped: bool) -> None:
    inner: Any = wide()
    model: nn.Module = Wrapped(inner) if wrapped else inner
    stem, last = kinds_seen(inner.stem), kinds_seen(inner.blocks[-1].convs[-1])
    recipe = change(
        tiny,
        data={"name": "synthetic:3x8x8?classes=4&train=64&test=8", "batch_size": 16},
        model=ModelSection(name="custom"),
        schedule={"epochs": 1, "cycle_epochs": 1},
        run={"precision": precision},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(recipe, tmp_path / "run", progress=None, model=model, data=load_data(recipe))
    want = HALF if precision == "bf16" else FULL
    assert stem == last == {(want, want)}


def test_who_decides(tiny: Any, change: Any) -> None:
    half, custom = change(tiny, run={"precision": "bf16"}), ModelSection(name="custom")
    for recipe in (half, change(half, model=custom)):
        assert precision_for(recipe, wide()) == Precision(HALF, None)
        assert precision_for(recipe, Wrapped(wide())) == Precision(FULL, HALF)
    assert precision_for(change(tiny, model=custom), wide()) == Precision(FULL, None)


@pytest.mark.parametrize("make", [wide, lambda: build("resnet-frn", depth=8, width=4, classes=4)])
def test_autocast_is_bf16_inputs(make: Any) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 3, 16, 16)
    plain = model(x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(x)
    torch.testing.assert_close(cast.float(), plain.float(), rtol=0.02, atol=0.02)
    assert not torch.equal(plain, model(x))
