"""Corruptions: deterministic, stronger with severity, and what their names say."""

import pytest
import torch

from atmc.common.errors import InputError
from atmc.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Smooth coloured blobs with an edge, so that every corruption has something to change."""
    at = torch.linspace(-1, 1, 32)
    phase = torch.arange(6).view(6, 1, 1, 1) + torch.arange(3).view(1, 3, 1, 1)
    field = torch.sin(3 * at.view(1, 1, 32, 1) + phase) * torch.cos(4 * at.view(1, 1, 1, 32) - phase)
    field = field + (at.view(1, 1, 1, 32) > 0.2).float()
    return ((field - field.min()) / (field.max() - field.min()) * 200 + 20).to(torch.uint8)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corruption_is_the_same_again_and_stronger_with_severity(kind: str, images: torch.Tensor) -> None:
    found = [corrupt(images, kind, severity) for severity in SEVERITIES]
    assert all(each.shape == images.shape and each.dtype == torch.uint8 for each in found)
    assert torch.equal(found[2], corrupt(images, kind, 3))
    changes = [float((each.float() - images.float()).square().mean().sqrt()) for each in found]
    assert changes == sorted(changes)
    assert 0.5 < changes[0] < 0.75 * changes[-1]
    random = kind in ("noise", "fog")
    assert torch.equal(found[2], corrupt(images, kind, 3, seed=1)) != random


def test_what_each_does(images: torch.Tensor) -> None:
    x = images.float()
    flat = torch.full((200, 1, 20, 20), 128, dtype=torch.uint8)
    assert float(corrupt(flat, "noise", 2).float().std()) == pytest.approx(0.1 * 255, rel=0.02)
    assert torch.equal(corrupt(flat, "blur", 5), flat)
    assert torch.equal(corrupt(flat, "contrast", 5), flat)
    assert torch.equal(corrupt(flat, "pixelate", 5), flat)
    spread = x.std((1, 2, 3))
    torch.testing.assert_close(corrupt(images, "contrast", 5).float().std((1, 2, 3)), 0.1 * spread, rtol=0.05, atol=0.1)
    assert torch.equal(corrupt(images, "brightness", 2), (x + 51).clamp(max=255).to(torch.uint8))
    coarse = corrupt(images, "pixelate", 5)
    assert len(coarse[0, 0, 0].unique_consecutive()) <= 8  # a quarter of 32
    assert float(corrupt(images, "fog", 5).float().mean()) > float(x.mean())
    line = torch.zeros(1, 3, 41, 41, dtype=torch.uint8)
    line[..., 20] = 255
    profile = corrupt(line, "blur", 5)[0, 1, 20].float()
    moment = (profile * (torch.arange(41) - 20).square()).sum() / profile.sum()
    assert float(moment.sqrt()) == pytest.approx(5 * 41 / 80, rel=0.03)


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 3, 9, 16), (1, 1, 1, 1)])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_small_and_oblong_images(shape: tuple[int, ...], kind: str) -> None:
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    for severity in SEVERITIES:
        assert corrupt(images, kind, severity).shape == shape


def test_mistakes_are_named(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match="no corruption 'rain': choose noise, blur"):
        corrupt(images, "rain", 1)
    with pytest.raises(InputError, match="1 to 5, not 6"):
        corrupt(images, "fog", 6)
    with pytest.raises(InputError, match="uint8"):
        corrupt(images.float(), "fog", 1)
    with pytest.raises(InputError, match="one or three channels"):
        corrupt(images[:, :2], "jpeg", 1)
