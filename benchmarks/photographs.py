"""Made-up photographs for measurements of speed: 1/f noise of 500 × 375 pixels, about as many bytes as ImageNet's."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from atmc.data.shard_writer import Item, write_shards

DISTINCT = 64  # each takes 30 ms to make up


def photographs(count: int, folder: Path) -> Path:
    """Shards of made-up photographs."""
    rng = np.random.default_rng(0)
    scale = 1 / np.maximum(1.0, np.hypot(np.fft.fftfreq(375)[:, None] * 375, np.fft.rfftfreq(500)[None] * 500))

    def picture() -> bytes:
        noise = rng.standard_normal((3, 375, 251)) + 1j * rng.standard_normal((3, 375, 251))
        grey = np.fft.irfft2(noise * scale**1.05, s=(375, 500))
        pixels = 128 + 50 * grey / grey.std() + 6 * rng.standard_normal(grey.shape)
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)).save(buffer, "JPEG", quality=92)
        return buffer.getvalue()

    own = [picture() for _ in range(min(count, DISTINCT))]
    data = [own[i % len(own)] for i in range(count)]  # decoding takes as long the second time
    items = [Item(f"{i}.jpg", i % 10, len(d), lambda d=d: d) for i, d in enumerate(data)]  # type: ignore[misc]
    write_shards(folder, {"train": items}, [str(c) for c in range(10)], 16.0)
    return folder
