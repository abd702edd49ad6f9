"""Triton kernel that makes the batch of a step in one launch: gather, crop, flip, normalise.

The plain path of `DeviceStore` needs nine small kernels and gives the same bits. Importing this file imports Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from atmc.data.device_store import DeviceStore

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gather(  # type: ignore[no-untyped-def]
    pixels,
    ring,
    labels,
    table,
    step,
    out,
    out_labels,
    batch_size,
    first,
    slots,
    padded_width,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    slot = (tl.load(step) * batch_size + first + row) % slots
    origin = tl.load(ring + slot * 3)
    stride = tl.load(ring + slot * 3 + 1)
    if tl.program_id(1) == 0:
        tl.store(out_labels + row, tl.load(labels + tl.load(ring + slot * 3 + 2)))
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < HEIGHT * WIDTH * CHANNELS
    channel = element % CHANNELS
    column = (element // CHANNELS) % WIDTH
    line = element // (CHANNELS * WIDTH)
    # `origin` is 64 bits wide and so is all that follows: a large data set has more than 2^31 bytes.
    source = (origin + line * padded_width + stride * column) * CHANNELS + channel
    byte = tl.load(pixels + source, mask=inside, other=0).to(tl.int32)
    value = tl.load(table + channel * 256 + byte, mask=inside, other=0.0)
    tl.store(out + row.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS) + element, value, mask=inside)


def gather(
    store: DeviceStore, ring: Tensor, step: Tensor, batch_size: int, first: int, share: int
) -> tuple[Tensor, Tensor]:
    """The inputs and labels of rows `first` … `first + share` of the global step in the device tensor `step`."""
    assert store.table is not None
    height, width, channels = store.grid
    out = torch.empty(share, height, width, channels, dtype=store.dtype, device=store.device)
    out_labels = torch.empty(share, dtype=store.labels.dtype, device=store.device)
    _gather[(share, -(-out[0].numel() // BLOCK))](
        store.pixels,
        ring,
        store.labels,
        store.table,
        step,
        out,
        out_labels,
        batch_size,
        first,
        len(ring),
        store.pixels.shape[2],
        HEIGHT=height,
        WIDTH=width,
        CHANNELS=channels,
        BLOCK=BLOCK,
    )
    return store.shaped(out), out_labels
