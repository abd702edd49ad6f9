"""The effective weights of a whole network in one Triton launch, and their gradients in another.

One program per output feature ("row"). A row finds its layer in a table; the layer's geometry and the addresses of
its tensors come from small device tables, so the number of layers does not show in the number of launches.

- Parameters are contiguous in their usual order (O, I, kh, kw), so everything else may treat them as ordinary
  tensors. Effective weights are written in the order (O, kh, kw, I), channels_last, which the convolutions read
  without a transpose; the permutation within a row happens on the way. It gathers on the reading side and writes
  contiguously: a row fits the first-level cache, scattered writes would not merge.
- All outputs of a call are views of one allocation, and so are all gradients, each layer's part aligned to 256 bytes.
- Addresses reach the device as scalar arguments of a kernel (`_foreach_add_` on zeros), never by a copy from host
  memory: nothing synchronises and a CUDA graph can be captured. The tables that describe shapes are uploaded when a
  network is first seen, which therefore must not be during a capture.
- Nothing is saved for the backward pass but the parameters: it reads the direction anyway and recomputes its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # Rows of a CIFAR ResNet have 288 to 1152 elements.
WARPS = 4
ALIGN = 64  # elements: 256 bytes of float32, 128 of bf16; cuDNN's tensor-core kernels ask for 16
MAX_POINTER_TABLES = 64
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(rows, geometry, offsets, pointers, out, layers, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    layer = tl.load(rows + 2 * row)
    index = tl.load(rows + 2 * row + 1).to(tl.int64)
    length = tl.load(geometry + 3 * layer)
    channels = tl.load(geometry + 3 * layer + 1)
    taps = tl.load(geometry + 3 * layer + 2)
    direction = tl.load(pointers + layer).to(tl.pointer_type(tl.float32)) + index * length
    scale_address = tl.load(pointers + layers + layer)
    normalised = scale_address != 0
    scale = tl.load(scale_address.to(tl.pointer_type(tl.float32)) + index, mask=normalised, other=1.0)
    target = out + tl.load(offsets + layer) + index * length

    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)
        d = tl.load(direction + j, mask=j < length, other=0.0)
        square += d * d
    factor = tl.where(normalised, scale / tl.sqrt_rn(tl.sum(square)), 1.0)

    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)  # position in (kh, kw, I)
        source = (j % channels) * taps + j // channels  # the same element in (I, kh, kw)
        d = tl.load(direction + source, mask=j < length, other=0.0)
        tl.store(target + j, (d * factor).to(out.dtype.element_ty), mask=j < length)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    rows, geometry, offsets, pointers, grads, out, out_scale, layers, GRAD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    layer = tl.load(rows + 2 * row)
    index = tl.load(rows + 2 * row + 1).to(tl.int64)
    length = tl.load(geometry + 3 * layer)
    channels = tl.load(geometry + 3 * layer + 1)
    taps = tl.load(geometry + 3 * layer + 2)
    direction = tl.load(pointers + layer).to(tl.pointer_type(tl.float32)) + index * length
    scale_address = tl.load(pointers + layers + layer)
    normalised = scale_address != 0
    scale = tl.load(scale_address.to(tl.pointer_type(tl.float32)) + index, mask=normalised, other=1.0)
    grad = tl.load(grads + layer).to(tl.pointer_type(GRAD)) + index * length
    target = out + tl.load(offsets + layer) + index * length

    square = tl.zeros([BLOCK], tl.float32)
    product = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)  # position in (I, kh, kw)
        source = (j % taps) * channels + j // taps  # the same element in (kh, kw, I)
        d = tl.load(direction + j, mask=j < length, other=0.0)
        g = tl.load(grad + source, mask=j < length, other=0.0).to(tl.float32)
        square += d * d
        product += d * g
    norm = tl.sqrt_rn(tl.sum(square))
    along = tl.sum(product) / norm  # the gradient along the unit vector, which is the scale's
    tl.store(out_scale + row, along)
    factor = tl.where(normalised, scale / norm, 1.0)
    inward = tl.where(normalised, along / norm, 0.0)

    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)
        source = (j % taps) * channels + j // taps
        d = tl.load(direction + j, mask=j < length, other=0.0)
        g = tl.load(grad + source, mask=j < length, other=0.0).to(tl.float32)
        tl.store(target + j, factor * (g - inward * d), mask=j < length)


class Plan:
    """What is fixed for one list of weight shapes on one device: the tables, and where each layer's part lies."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        self.shapes = [tuple(shape) for shape in shapes]
        self.device = device
        geometry: list[tuple[int, int, int]] = []
        offsets: list[int] = []
        total = 0
        for shape in self.shapes:
            taps = math.prod(shape[2:])
            geometry.append((shape[1] * taps, shape[1], taps))
            offsets.append(total)
            total += -(-math.prod(shape) // ALIGN) * ALIGN
        counts = torch.tensor([shape[0] for shape in self.shapes])
        layer = torch.repeat_interleave(torch.arange(len(self.shapes)), counts)
        first = torch.cumsum(counts, 0) - counts
        self.offsets, self.first_row, self.total, self.rows = offsets, first.tolist(), total, int(counts.sum())
        rows = torch.stack([layer, torch.arange(self.rows) - first[layer]], 1)
        self._rows = rows.to(torch.int32).to(device)
        self._geometry = torch.tensor(geometry, dtype=torch.int32).to(device)
        self._offsets = torch.tensor(offsets, dtype=torch.int64).to(device)
        self._pointers: dict[tuple[int, ...], Tensor] = {}
        self._captured: list[Tensor] = []  # Tables that a CUDA graph may read as long as it lives.

    def forward(
        self, directions: Sequence[Tensor], scales: Sequence[Tensor | None], dtype: torch.dtype
    ) -> list[Tensor]:
        """Every effective weight in `dtype`, convolutions channels_last, in one launch."""
        flat = torch.empty(self.total, dtype=dtype, device=self.device)
        pointers = self._parameter_pointers(directions, scales)
        with _on(self.device):
            _forward_kernel[(self.rows,)](
                self._rows,
                self._geometry,
                self._offsets,
                pointers,
                flat,
                len(self.shapes),
                BLOCK=BLOCK,
                num_warps=WARPS,
            )
        return [
            flat.as_strided(shape, _channels_last(shape), offset)
            for shape, offset in zip(self.shapes, self.offsets, strict=True)
        ]

    def backward(
        self, directions: Sequence[Tensor], scales: Sequence[Tensor | None], grads: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The gradients of every direction and scale, in one launch (and one that hands over the addresses)."""
        dense = [
            grad.contiguous(memory_format=torch.channels_last if grad.ndim == 4 else torch.contiguous_format)
            for grad in grads
        ]
        flat = torch.empty(self.total, device=self.device)
        flat_scale = torch.empty(self.rows, device=self.device)
        pointers = self._parameter_pointers(directions, scales)
        addresses = pointer_table([grad.data_ptr() for grad in dense], self.device)
        with _on(self.device):
            _backward_kernel[(self.rows,)](
                self._rows,
                self._geometry,
                self._offsets,
                pointers,
                addresses,
                flat,
                flat_scale,
                len(self.shapes),
                GRAD=_DTYPES[dense[0].dtype],
                BLOCK=BLOCK,
                num_warps=WARPS,
            )
        layers = list(zip(self.shapes, self.offsets, self.first_row, scales, strict=True))
        return (
            [flat[offset : offset + math.prod(shape)].view(shape) for shape, offset, _, _ in layers],
            [None if scale is None else flat_scale[row : row + shape[0]] for shape, _, row, scale in layers],
        )

    def _parameter_pointers(self, directions: Sequence[Tensor], scales: Sequence[Tensor | None]) -> Tensor:
        """Addresses of all directions, then of all scales (0: none). Kept, since parameters rarely move."""
        key = tuple(0 if tensor is None else tensor.data_ptr() for tensor in (*directions, *scales))
        capturing = _capturing(self.device)
        table = self._pointers.get(key)
        if table is None:
            table = pointer_table(key, self.device)
            if capturing:  # Filled at replay, by the graph that holds it; nobody else may count on its contents.
                return table
            if self.device.type == "cuda":  # Another stream may be the next to read it.
                torch.cuda.current_stream(self.device).synchronize()
            if len(self._pointers) >= MAX_POINTER_TABLES:
                torch.cuda.synchronize(self.device)
                self._pointers.clear()
            self._pointers[key] = table
        elif capturing and not any(table is held for held in self._captured):
            self._captured.append(table)
        return table


_plans: dict[tuple[torch.device, tuple[torch.Size, ...]], Plan] = {}


def plan_for(directions: Sequence[Tensor]) -> Plan:
    """The plan for these shapes on their device, made when first asked for."""
    device = directions[0].device
    key = (device, tuple(direction.shape for direction in directions))
    plan = _plans.get(key)
    if plan is None:
        if _capturing(device):
            raise RuntimeError("effective weights: run one forward pass before capturing a CUDA graph")
        plan = _plans[key] = Plan([tuple(direction.shape) for direction in directions], device)
    return plan


def pointer_table(addresses: Sequence[int], device: torch.device) -> Tensor:
    """Addresses as an int64 tensor on the device, carried there as kernel arguments: capturable, no synchronisation."""
    table = torch.zeros(len(addresses), dtype=torch.int64, device=device)
    torch._foreach_add_(list(table.unbind()), list(addresses))
    return table


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of (O, kh, kw, I) memory for a tensor of logical shape (O, I, kh, kw); of (O, I) for a linear layer."""
    if len(shape) == 2:
        return shape[1], 1
    _, channels, height, width = shape
    return channels * height * width, 1, width * channels, channels


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _on(device: torch.device) -> torch.cuda.device:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
