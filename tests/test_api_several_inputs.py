"""Networks that take several inputs at once: dicts and tuples through `sample`, predictions, saving and loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import atmc
from atmc.common.errors import InputError
from atmc.common.packed_inputs import pack

COUNT = 60
_RNG = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 20, (COUNT, 6), generator=_RNG)
MASK = (torch.rand(COUNT, 6, generator=_RNG) < 0.7).long()
NUMBERS = torch.randn(COUNT, 2, 2, generator=_RNG)
Y = (NUMBERS[:, 0, 0] + (IDS[:, 0] > 9) > 0.5).long()
X = {"numbers": NUMBERS, "input_ids": IDS, "attention_mask": MASK}


class Logits:
    """An output with a field of that name, as large libraries have it."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rest, self.head = nn.Embedding(20, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, numbers: Tensor) -> Any:
        assert attention_mask.dtype == torch.int64
        seen = (self.words(input_ids) * attention_mask[..., None]).sum(1)
        return Logits(self.head(torch.tanh(seen + self.rest(numbers.flatten(1)))))


class Items(Dataset[Any]):
    def __init__(self, named: bool) -> None:
        self.named = named

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> Any:
        if self.named:
            return {"labels": Y[i], **{key: value[i] for key, value in X.items()}}
        return (IDS[i], MASK[i], NUMBERS[i]), Y[i]


def test_packed_inputs_come_apart_as_they_were() -> None:
    parts = {"b": torch.tensor([[True], [False]]), "a": torch.tensor([[1.5, -0.0], [float("inf"), 1e-40]])}
    parts["c"] = torch.tensor([[[-1], [2**31 - 1]], [[3], [4]]])
    packed, layout = pack(parts)
    assert packed.shape == (2, 5)
    args, named = layout.unpack(packed)
    assert args == ()
    assert all(torch.equal(named[key], part) and named[key].dtype == part.dtype for key, part in parts.items())
    with pytest.raises(InputError, match="a holds whole numbers beyond 32 bits"):
        pack({"a": torch.tensor([2**31]), "b": torch.tensor([1])})
    with pytest.raises(InputError, match=r"b has the shape .3., and the first 2 rows"):
        pack({"a": torch.ones(2), "b": torch.ones(3)})


def test_dicts_and_tuples_of_inputs_are_sampled_scored_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, how = Net(), {"epochs": 4, "batch_size": 20, "progress": None, "overrides": ["sampler.noise_rank=0"]}
    named = atmc.sample(model, DataLoader(Items(named=True), batch_size=20), **how)
    placed = atmc.sample(model, Items(named=False), **how)
    assert set(named.state(0)) == set(model.state_dict())
    known = named.predict(X).probs
    assert torch.equal(known, placed.predict((IDS, MASK, NUMBERS)).probs)
    assert torch.equal(known, named.predict(Items(named=True)).probs)
    scores = named.evaluate(X, Y)
    assert scores == named.evaluate(Items(named=True))
    loaded = atmc.Posterior.load(named.save(tmp_path / "p"), Net())
    assert torch.allclose(loaded.predict(X).probs, known)
    with pytest.raises(InputError, match=r"inputs attention_mask .6., input_ids .6., and the network takes"):
        named.predict({"input_ids": IDS, "attention_mask": MASK})
    with pytest.raises(InputError, match="one tensor of inputs, and the network takes"):
        named.predict(IDS)


def test_a_part_of_a_network_with_several_inputs_is_sampled_from_kept_features() -> None:
    found = atmc.sample(Net(), (X, Y), epochs=1, only="head", progress=None)
    assert set(found.state(0)) == {"head.weight", "head.bias"}
    assert found.predict(X).probs.shape == (COUNT, 2)


def test_a_batch_of_three_parts_is_told_how_to_be_given() -> None:
    data = torch.utils.data.TensorDataset(IDS, MASK, Y)
    with pytest.raises(InputError, match="not 3 parts; several inputs come as"):
        atmc.sample(Net(), data, epochs=1)
