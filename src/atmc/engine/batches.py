"""Batches for a recorded step: read on the device where the data live there, else handed over by the host."""

import torch
from torch import Tensor, nn

from atmc.common.errors import InputError
from atmc.data import Batches, ImageData, OwnData, train_batches
from atmc.engine.precision import precision_for
from atmc.engine.processes import World
from atmc.engine.run_data import Examples, RunData
from atmc.recipe.settings import Recipe


class HostBatches:
    """A stream of batches at a fixed address, so that a recorded step can read them: `fetch` before each replay."""

    weights: Tensor | None = None  # all examples weigh the same: none is drawn by importance from a stream
    scores: Tensor | None = None

    def __init__(self, source: Batches) -> None:
        self.source = source
        self.num_data = source.num_data
        self._held: tuple[Tensor, Tensor] | None = None

    def start(self, step: int = 0) -> None:
        self.source.start(step)

    def ensure(self, step: int, count: int = 1) -> None:
        self.source.ensure(step, count)
        if self._held is None:
            self.fetch(step)
            self.source.start(step)

    def fetch(self, step: int) -> None:
        """Bring the batch of a step to where the recorded step looks for it; ordered on the current stream."""
        x, y = self.source.batch(step)
        if self._held is None:
            self._held = (x.clone(memory_format=torch.preserve_format), y.clone())
        else:
            self._held[0].copy_(x, non_blocking=True)
            self._held[1].copy_(y, non_blocking=True)

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(step, int) or self._held is None:
            raise ValueError("fetch the batch first")
        return self._held

    def note(self, sizes: Tensor) -> None:
        """Nothing to do: examples have no scores."""

    def close(self) -> None:
        self.source.close()


def make_feed(
    recipe: Recipe, data: RunData, model: nn.Module, device: torch.device, world: World, seed: int
) -> Batches:
    """The batches of the first chain, in the precision that `model` wants.

    Other chains take `with_seed` of them, so that data on the device are held once.
    """
    _check_augment(recipe.data.augment, data.train)
    if recipe.sampler.noise_examples and recipe.data.augment == "none" and recipe.data.batch_size >= len(data.train):
        raise InputError(
            f"sampler.noise_examples is friction for the noise of mini-batches, and data.batch_size = "
            f"{recipe.data.batch_size} takes all {len(data.train)} examples: leave it out"
        )
    return train_batches(
        data.train,
        recipe.data.batch_size,
        device,
        precision_for(recipe, model).inputs,
        recipe.data.augment,
        seed,
        rank=world.data_rank,
        world=world.data_size,
        workers=recipe.data.workers,
        independent=recipe.sampler.noise_rank > 0 or recipe.sampler.noise_examples,
        importance=recipe.data.draw == "importance",
        strata=not recipe.sampler.noise_examples,
        side=recipe.data.crop_size,
        least=recipe.data.crop_area,
        corrupt=recipe.data.corrupt,
    )


def _check_augment(augment: str, train: Examples) -> None:
    """One line with the key where these examples cannot be augmented so; names are checked with the recipe."""
    own = isinstance(train, OwnData)
    if (augment == "own") != own:
        what = "draws at random by its own transform" if own else "has no transform of its own that draws at random"
        raise InputError(f'data.augment = "{augment}", and {train.name} {what}: use "{"own" if own else "none"}"')
    if own:
        return
    if augment == "resized-crop-flip" and isinstance(train, ImageData) and train.images.dtype != torch.uint8:
        raise InputError(
            f'data.augment = "{augment}" is for images in bytes, and those of {train.name} are {train.images.dtype}: '
            'use "crop-flip"'
        )
    if augment != "none" and len(train.shape) != 3:
        raise InputError(
            f'data.augment = "{augment}" is for images, and an example of {train.name} has shape {list(train.shape)}: '
            'use "none"'
        )
