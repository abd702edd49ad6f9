"""The images with the most and the least confident predictions."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from atmc.report.read_run import pixels
from atmc.report.report_data import ImageCard

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from atmc.engine.run_data import Examples

CARDS = 6
LARGEST = 256  # pixels of an image's height on the page


def cards_of(data: Examples, probs: NDArray[Any]) -> tuple[tuple[ImageCard, ...], tuple[ImageCard, ...]]:
    """The images with the lowest and with the highest entropy."""
    from atmc.posterior.uncertainty import from_probs

    prediction = from_probs(probs)
    entropy = prediction.entropy.numpy()
    order = np.argsort(entropy, kind="stable")
    chosen = [int(i) for i in (*order[:CARDS], *order[::-1][:CARDS])]
    images = pixels(data, chosen)

    def card(i: int, image: Tensor) -> ImageCard:
        p = prediction.probs[i].numpy()
        top = np.argsort(-p, kind="stable")[:3]
        share = float(prediction.epistemic[i]) / entropy[i] if len(probs) > 1 and entropy[i] > 0.05 else None
        return ImageCard(
            png=png_of(image),
            truth=data.classes[int(data.labels[i])],
            bars=tuple((data.classes[c], float(p[c])) for c in top),
            epistemic_share=share,
            small=max(data.shape[1:]) <= 64,
        )

    cards = [card(i, image) for i, image in zip(chosen, images, strict=True)]
    half = len(cards) // 2
    return tuple(cards[:half]), tuple(cards[half:])


def png_of(image: Tensor) -> bytes:
    from PIL import Image

    if not str(image.dtype).endswith("uint8"):  # floats: shown from darkest to brightest
        low, high = image.min(), image.max()
        image = ((image - low) / (high - low).clamp_min(1e-12) * 255).byte()
    array = image.permute(1, 2, 0).numpy()
    array = array[..., :3] if array.shape[2] >= 3 else array[..., 0]
    picture = Image.fromarray(np.ascontiguousarray(array))
    picture.thumbnail((8 * LARGEST, LARGEST))
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return buffer.getvalue()
