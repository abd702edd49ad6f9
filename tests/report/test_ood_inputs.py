"""OOD images are what they are said to be."""

import numpy as np
import pytest
import torch

from atmc.common.errors import InputError
from atmc.data import load
from atmc.report.ood_inputs import ALPHABET, MADE, make


@pytest.fixture(scope="module")
def home():
    return load("digits", "test").images


@pytest.mark.parametrize("kind", MADE)
def test_they_have_the_shape_of_the_test_images_and_are_the_same_each_time(home, kind):
    made = make(kind, home, 60)
    assert made.images.shape == (60, 1, 8, 8)
    assert made.images.dtype == torch.uint8
    assert (make(kind, home, 60).images == made.images).all()
    colour = make(kind, home.expand(-1, 3, -1, -1), 20)
    assert colour.images.shape == (20, 3, 8, 8)


def test_scrambled_images_keep_their_pixels_and_move_every_quarter(home):
    made = make("scrambled", home, 200).images
    same = home[:200]
    assert (made.flatten(1).sort(1).values == same.flatten(1).sort(1).values).all()
    # A quarter may look like the one that took its place (many are black), but nearly every image must have changed.
    changed = (made != same).flatten(1).any(1)
    assert changed.float().mean() > 0.99


def test_noise_has_the_test_sets_pixels_and_no_picture(home):
    made = make("noise", home, 400).images.float()
    assert abs(made.mean() - home.float().mean()) < 3
    right, left = made[..., 1:].flatten().numpy(), made[..., :-1].flatten().numpy()
    assert abs(np.corrcoef(right, left)[0, 1]) < 0.03
    real = home.float()
    assert np.corrcoef(real[..., 1:].flatten().numpy(), real[..., :-1].flatten().numpy())[0, 1] > 0.2


def test_letters_are_as_bright_as_digits_and_no_digits(home):
    made = make("letters", home, 170).images.float()
    assert not set("ODQISZBGL0123456789") & set(ALPHABET)
    assert 0.5 < made.mean() / home.float().mean() < 2
    assert made[:, :, 0].mean() < 60, "the border is dark, as the digits' is"
    # Letters of one kind are alike, letters of two kinds are not.
    groups = [made[i :: len(ALPHABET)].mean(0).flatten() for i in range(len(ALPHABET))]
    between = torch.stack(groups).std(0).mean()
    within = torch.stack([made[i :: len(ALPHABET)].std(0).mean() for i in range(len(ALPHABET))]).mean()
    assert between > 0.5 * within
    ink_on_paper = make("letters", 255 - home, 20).images.float()
    assert ink_on_paper[:, :, 0].mean() > 195


def test_another_data_set_is_brought_to_size(home):
    made = make("synthetic:3x20x14?classes=3&test=30", home, 25)
    assert made.images.shape == (25, 1, 8, 8)
    assert "8 × 8" in made.about


def test_what_is_no_image_has_no_ood_images(home):
    with pytest.raises(InputError, match="not images"):
        make("noise", home.flatten(1))
    with pytest.raises(InputError, match="letterz"):
        make("letterz", home)
