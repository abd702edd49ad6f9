"""Where the chains of `atmc.sample` begin: at the network's weights or near them, and never what is not sampled."""

from typing import Any

import pytest
import torch
from torch import nn

from atmc import sample
from atmc.common.errors import InputError
from atmc.recipe.build import JITTER, start_weights
from atmc.recipe.settings import ModelSection, Recipe
from atmc.storage.run_directory import RunDir

GIVEN, FRESH = (Recipe(model=ModelSection(name="custom", start=start), chains=3) for start in ("given", "fresh"))


def rings(count: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes that no line separates."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    return x, (x.square().sum(1) > 1.4).long()


def trained() -> nn.Sequential:
    """A network that has learned the rings, with a BatchNorm and a frozen body."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(32, 2))
    x, y = rings()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    body.requires_grad_(False)
    return model.eval()


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("recipe", [GIVEN, FRESH])
@pytest.mark.parametrize("chain", [0, 1, 2])
def test_what_is_not_sampled_is_never_touched(recipe: Recipe, chain: int) -> None:
    model = trained()
    model[1].bias.requires_grad_(False)  # of a layer of which the rest is sampled
    before, after = state(model), state(start_weights(model, recipe, chain))
    touched = {name for name in before if not torch.equal(before[name], after[name])}
    assert touched == (set() if recipe is GIVEN and chain == 0 else {"1.weight"})
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_jitter_is_as_large_as_it_is_said_to_be() -> None:
    torch.manual_seed(0)
    model = nn.Linear(200, 100)
    one, two = (start_weights(model, GIVEN, chain).weight - model.weight for chain in (1, 2))
    size = float(model.weight.square().mean().sqrt())
    for noise in (one, two):
        assert float(noise.std()) == pytest.approx(JITTER * size, rel=0.05)
    assert abs(float((one * two).mean())) < 0.05 * float(one.var()), "chains have noise of their own"
    assert torch.equal(start_weights(model, GIVEN, 1).weight, start_weights(model, GIVEN, 1).weight)


def test_fresh_weights_are_the_layers_own() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 2)
    starts = [start_weights(attention, FRESH, chain) for chain in (0, 1)]
    assert not torch.equal(starts[0].in_proj_weight, starts[1].in_proj_weight)
    assert not torch.equal(starts[0].in_proj_weight, attention.in_proj_weight), "also those of the first chain"
    assert float(starts[1].in_proj_weight.std()) == pytest.approx(float(attention.in_proj_weight.std()), rel=0.2)


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(2))
        self.head = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(x + self.token)
        return out


def test_a_layer_that_cannot_draw_is_named() -> None:
    with pytest.raises(InputError, match=r'start="fresh" cannot draw token anew: Token has no reset_parameters'):
        sample(Token(), rings(), start="fresh", epochs=1, progress=None)
    with pytest.raises(InputError, match=r"start must be .given. .* or .fresh. .*, not 'random'"):
        sample(Token(), rings(), start="random", epochs=1, progress=None)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
def test_chains_of_a_trained_network_are_as_good_as_each_other(tmp_path: Any) -> None:
    """With the frozen body re-drawn the second chain had 41 % where the first had 72 %."""
    model, test = trained(), rings(400, 1)
    posterior = sample(model, rings(), epochs=20, chains=2, out=tmp_path / "run", progress=None)
    for chain in (0, 1):
        found = posterior.chain(chain).evaluate(*test)["predictive"]
        assert found["accuracy"] > 0.9, chain
        for k in range(len(posterior.chain(chain))):
            sampled = posterior.chain(chain)[k].state_dict()
            assert all(torch.equal(sampled[name], model.state_dict()[name]) for name in sampled if name[0] == "0")
    with pytest.raises(InputError, match=r"begun with model\.start = 'given', not 'fresh'"):
        sample(model, rings(), epochs=20, chains=2, start="fresh", out=tmp_path / "run", progress=None)
    assert RunDir.open(tmp_path / "run").recipe.model.start == "given"
