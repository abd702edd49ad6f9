"""Everything that can be predicted arrives as the same batches."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from atmc.data import ArraySource, ImageData
from atmc.errors import InputError
from atmc.posterior import Posterior
from atmc.posterior.inputs import OnDisk, as_batches, pick_device


def images(n: int) -> ImageData:
    pixels = torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageData.from_tensors(pixels, torch.arange(n) % 3)


def test_tensors_are_cut_evenly() -> None:
    batches, count = as_batches(torch.arange(22).view(11, 2), 5)
    parts = list(batches)
    assert count == 3
    assert [len(p) for p in parts] == [4, 4, 3]
    assert torch.equal(torch.cat(parts), torch.arange(22).view(11, 2))
    with pytest.raises(ValueError, match="at least one"):
        as_batches(torch.zeros(5), 2)


@pytest.mark.parametrize("n", [1, 6, 7])
def test_a_data_set_on_disk_reads_in_its_own_order(n: int) -> None:
    data = images(n)
    batches, count = as_batches(ArraySource(data), 3)
    assert isinstance(batches, OnDisk)
    assert count == -(-n // 3)
    for _ in range(2):  # it can be passed through again
        assert torch.equal(torch.cat(list(batches)), data.images)


def test_all_kinds_predict_alike() -> None:
    data = images(10)
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Flatten(), nn.Linear(48, 3)) for _ in range(3)]
    posterior = Posterior(members, members[0], mean=data.mean, std=data.std)
    expected = posterior.predict(data.images, device="cpu").probs
    for other in (data, ArraySource(data), data.images.numpy(), data.images.split(4)):
        for at_once in (None, 2):
            found = posterior.predict(other, batch_size=4, device="cpu", samples_at_once=at_once).probs
            np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(
        posterior.sample_probs(ArraySource(data), device="cpu").double().mean(0), expected, atol=1e-6
    )


def test_the_device_named_is_used() -> None:
    assert pick_device(torch.device("cpu"), "cpu").type == "cpu"
    assert pick_device(torch.device("meta"), None).type == "meta"
    assert pick_device(torch.device("cpu"), None).type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", ["loop", "together", "auto", "sample_probs"])
def test_inputs_of_the_wrong_width_are_told_the_right_one(known: bool, how: str) -> None:
    members = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(3)]
    posterior = Posterior(members, members[0], shape=(4,) if known else None)
    wrong = torch.zeros(20, 5)
    ask = posterior.sample_probs if how == "sample_probs" else partial(posterior.predict, strategy=how)
    with pytest.raises(InputError, match=r"each input has the shape \[5\], but the network takes \[4\]"):
        ask(wrong, device="cpu", batch_size=2)
    assert posterior.predict(torch.zeros(20, 4), device="cpu").probs.shape == (20, 3)


def test_images_of_another_size_are_refused_by_the_network_alone() -> None:
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    posterior = Posterior([pooled], pooled, shape=(3, 8, 8))
    assert posterior.predict(torch.zeros(2, 3, 12, 12), device="cpu").probs.shape == (2, 2)
    with pytest.raises(InputError, match=r"shape \[1, 8, 8\], but the network takes \[3, 8, 8\]"):
        posterior.predict(torch.zeros(2, 1, 8, 8), device="cpu")
    with pytest.raises(InputError, match=r"shape \[1, 8, 8\], but the network takes \[3, 8, 8\]"):
        Posterior([pooled], pooled).predict(torch.zeros(2, 1, 8, 8), device="cpu")


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("something else")


def test_other_failures_of_a_network_are_left_as_they_are() -> None:
    posterior = Posterior([Broken(4, 2)], Broken(4, 2), shape=(4,))
    with pytest.raises(RuntimeError, match=r"^something else$"):
        posterior.predict(torch.zeros(2, 4), device="cpu")
