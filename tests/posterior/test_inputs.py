"""Everything that can be predicted arrives as the same batches."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atmc.common.errors import InputError
from atmc.data import ArraySource, EvalBatches, ImageData
from atmc.posterior import Posterior
from atmc.posterior.inputs import OnDisk, as_batches, pick_device
from atmc.target.likelihoods import Gaussian


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


def pooled(channels: int = 3) -> nn.Module:
    """A network that takes pictures of any size, and so cannot tell that one is wrong."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def of_pictures() -> tuple[Posterior, torch.Tensor]:
    data = images(10)
    return Posterior([pooled()], pooled(), mean=data.mean, std=data.std, shape=(3, 4, 4)), data.images


@pytest.mark.parametrize("ask", ["predict", "sample_probs", "evaluate", "regress"])
def test_pixels_that_were_not_normalised_are_not_taken_silently(ask: str) -> None:
    posterior, pixels = of_pictures()
    if ask == "regress":
        posterior = Posterior([pooled()], pooled(), mean=posterior.mean, std=posterior.std, likelihood=Gaussian(1.0))
    labels = (torch.arange(10) % 3,) if ask == "evaluate" else ()
    call = partial(getattr(posterior, ask), device="cpu")
    with pytest.warns(UserWarning, match=r"from 0.* to .*not normalised: pass uint8 pixels") as seen:
        call(pixels.float() / 255, *labels, batch_size=4)
    assert [w.filename for w in seen] == [__file__]  # once, not for each batch, and at the line that is wrong
    for bytes_of_another_type in (pixels.float(), pixels.long(), pixels.half()):
        with pytest.raises(InputError, match=r"to 255, which are taken as they are.*pass uint8 pixels"):
            call(bytes_of_another_type, *labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(pixels, *labels)
        call(posterior.prepare(pixels, torch.device("cpu")), *labels)  # normalised
        call(torch.zeros(10, 3, 4, 4), *labels)  # says nothing of a scale


def of(mean: float, std: float) -> Posterior:
    return Posterior([pooled()], pooled(), mean=(mean,) * 3, std=(std,) * 3, shape=(3, 4, 4))


def as_bytes(low: int, high: int, mean: float, std: float) -> torch.Tensor:
    """One picture of bytes from low to high, normalised."""
    return ((torch.linspace(low, high, 48).round() / 255 - mean) / std).view(1, 3, 4, 4)


@pytest.mark.parametrize(
    ("posterior", "x"),
    [
        (of(0.0, 1.0), torch.rand(2, 3, 4, 4)),  # 0..1 is the normalised form
        (of(0.0, 1 / 255), 255 * torch.rand(2, 3, 4, 4)),
        (of(0.5, 0.25), torch.tensor([0.281, 0.4, 0.589]).view(1, 3, 1, 1).expand(1, 3, 4, 4)),  # one colour
        (of(0.5, 0.25), as_bytes(135, 190, 0.5, 0.25)),  # bright and dull
        (of(0.01, 0.03), as_bytes(4, 255, 0.01, 0.03)),  # a dark sky with a star
    ],
)
def test_pictures_that_were_normalised_are_left_in_peace(posterior: Posterior, x: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(x, device="cpu")


def test_numbers_that_are_no_pictures_are_left_in_peace() -> None:
    flat = nn.Linear(3, 2)
    table = Posterior([flat], flat, mean=(50.0,), std=(10.0,), shape=(3,))
    first = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    pictures = Posterior([first], first, mean=(0.5,) * 3, std=(0.25,) * 3, shape=(3, 4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.predict(torch.tensor([[0.0, 0.5, 0.95]]), device="cpu")
        table.predict(torch.tensor([[0.1, 2.0, 9.5]]), device="cpu")
        assert len(pictures.predict(torch.randn(5, 48), device="cpu")) == 5  # flat as the network makes them


def test_batches_of_arrays_are_batches() -> None:
    posterior, pixels = of_pictures()
    found = posterior.predict([pixels[:4].numpy(), pixels[4:].numpy()], device="cpu")
    torch.testing.assert_close(found.probs, posterior.predict(pixels, device="cpu").probs)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([[1.0, 2.0]], "a batch here holds float; of plain numbers make one with torch.tensor"),
        ([[[1.0, 2.0]]], "a batch here holds list; of plain numbers"),
        ([[]], "a batch here holds list"),
        ([{"x": [1.0, 2.0]}], "a batch here holds list"),
        (None, "not NoneType"),
        (3, "not int"),
    ],
)
def test_what_is_no_tensor_is_told_what_to_be(given: Any, words: str) -> None:
    """Rows of plain numbers ended in "'float' object has no attribute 'ndim'"."""
    flat = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=f"inputs must be a tensor.*{words}"):
        Posterior([flat], flat).predict(given, device="cpu")


def test_what_the_warning_advises_is_what_uint8_gives() -> None:
    posterior, pixels = of_pictures()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (posterior.mean, posterior.std))
    advised = posterior.predict((pixels / 255 - mean) / std, device="cpu")
    torch.testing.assert_close(advised.probs, posterior.predict(pixels, device="cpu").probs)


def test_floats_of_a_posterior_that_normalises_nothing_are_taken_as_they_are() -> None:
    posterior = Posterior([pooled()], pooled(), shape=(3, 4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(torch.rand(2, 3, 4, 4), device="cpu")
        posterior.predict(255 * torch.rand(2, 3, 4, 4), device="cpu")


def test_pictures_of_another_shape_are_told_what_to_do() -> None:
    posterior, pixels = of_pictures()
    for other in (torch.randn(2, 3, 8, 8), torch.zeros(2, 3, 4, 8, dtype=torch.uint8)):
        with pytest.raises(InputError, match=r"\[N, 3, 4, 4\]; resize them first"):
            posterior.predict(other, device="cpu")
    for one in (pixels[0], pixels[0].float()):
        with pytest.raises(
            InputError, match=r"shape \[3, 4, 4\] are one input alone: add a batch dimension: x\[None\]"
        ):
            posterior.predict(one, device="cpu", batch_size=2)
    with pytest.raises(InputError, match=r"for one picture add a batch dimension: x\[None\]"):
        posterior.predict(iter([pixels[0]]), device="cpu")
    with pytest.raises(InputError, match=r"channels come first: x\.permute\(0, 3, 1, 2\)"):
        posterior.predict(pixels.permute(0, 2, 3, 1).numpy(), device="cpu")
    grey = Posterior([pooled(1)], pooled(1), mean=(0.5,), std=(0.25,), shape=(1, 4, 4))
    with pytest.raises(InputError, match=r"add the dimension of channels: x\[:, None\]"):
        grey.predict(pixels[:, 0], device="cpu")
    assert len(grey.predict(pixels[:, :1], device="cpu")) == 10


def test_one_input_alone_is_told_from_a_batch_where_its_shape_is_known() -> None:
    flat = nn.Linear(5, 2)
    with pytest.raises(InputError, match=r"add a batch dimension: x\[None\]"):
        Posterior([flat], flat, shape=(5,)).predict(torch.zeros(5), device="cpu")


def test_bytes_of_one_axis_are_one_channel_as_in_training() -> None:
    raw = torch.randint(0, 256, (12, 5), dtype=torch.uint8)
    data = ImageData.from_tensors(raw, torch.arange(12) % 2)
    flat = nn.Linear(5, 2)
    posterior = Posterior([flat], flat, mean=data.mean, std=data.std, shape=data.shape)
    x, _ = next(iter(EvalBatches(data, 12)))
    torch.testing.assert_close(posterior.prepare(raw, torch.device("cpu")), x)
    assert len(posterior.predict(raw, device="cpu")) == 12


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("something else")


def test_other_failures_of_a_network_are_left_as_they_are() -> None:
    posterior = Posterior([Broken(4, 2)], Broken(4, 2), shape=(4,))
    with pytest.raises(RuntimeError, match=r"^something else$"):
        posterior.predict(torch.zeros(2, 4), device="cpu")
