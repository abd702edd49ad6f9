"""Launch the fused kernel: all priors of a model at once, capturable in a CUDA graph.

One table lists the tensors' addresses, a second one, fixed by the shapes, the part of each program. The first is copied
from pinned memory without waiting, and only when an address or a layout changes. New gradients (for autograd) go to one
flat buffer addressed by offset. A captured graph has a table of its own (`graph_table.py`).
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atmc.common.graph_table import GraphTable
from atmc.target.priors.prior import KernelSpec, Prior, has_dense_rows, is_dense, rows_and_width

#: Fresh gradients start at multiples of this many numbers, so that later kernels may vectorise.
_ALIGN = 64
#: Tables kept for eager use: the parameters' own, and those of a few sets of gradient buffers.
_KEEP = 4
#: Tables kept ready for graphs to come. A step with fresh gradients and added ones needs two.
_SPARE = 8


@lru_cache(maxsize=1)
def _kernel() -> ModuleType | None:
    """The kernel's module, or None without Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    from atmc.target.priors import triton_kernel

    return triton_kernel


def _interpreted() -> bool:
    """Triton's interpreter runs the kernel on CPU tensors: that is how it is tested without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@dataclass
class _Table:
    """An uploaded table, and which parameters it leaves to the plain path."""

    words: Tensor
    rest: list[int]
    offsets: list[int]
    total: int


class FusedPriors:
    """Runs the kernel over a fixed list of (prior, shape)."""

    def __init__(self, entries: Sequence[tuple[Prior, tuple[int, ...]]]) -> None:
        self._specs: list[KernelSpec | None] = [prior.kernel(shape) for prior, shape in entries]
        self._shapes = [shape for _, shape in entries]
        self._programs: dict[torch.device, Tensor] = {}
        self._tables: dict[tuple[object, ...], _Table] = {}
        self._captured: list[_Table] = []
        self._spare: dict[torch.device, list[GraphTable]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Addresses on a device are of no use to a copy."""
        return {**vars(self), "_programs": {}, "_tables": {}, "_captured": [], "_spare": {}}

    def takes(self, xs: Sequence[Tensor]) -> bool:
        """Whether the fused path can run on these parameters at all."""
        if not (xs[0].is_cuda or _interpreted()) or _kernel() is None:
            return False
        device = xs[0].device
        return all(x.dtype == torch.float32 and x.device == device for x in xs)

    def energy(self, xs: Sequence[Tensor]) -> tuple[Tensor | None, list[int]]:
        """Σ −log p without constants (float64, 0-dim; None if nothing was fused) and the parameters left over."""
        table = self._table(xs, None)
        return self._launch(table, xs[0], energy=True, grad=0), table.rest

    def add_(
        self, xs: Sequence[Tensor], outs: Sequence[Tensor], alpha: float, want_energy: bool
    ) -> tuple[Tensor | None, list[int]]:
        """Add alpha · ∇(−log p) into `outs`; the energy too if wanted; and the parameters left over."""
        table = self._table(xs, outs)
        return self._launch(table, xs[0], energy=want_energy, grad=1, alpha=alpha), table.rest

    def fresh(self, xs: Sequence[Tensor], scale: Tensor) -> tuple[list[Tensor], list[int]]:
        """scale · ∇(−log p) as views of one new buffer, laid out like the parameters; zeros for those left over."""
        table = self._table(xs, None)
        flat = torch.empty(table.total, dtype=torch.float32, device=xs[0].device)
        self._launch(table, xs[0], energy=False, grad=2, flat=flat, factor=scale.float())
        left = set(table.rest)
        outs = [
            torch.zeros_like(x) if i in left else flat.as_strided(x.shape, x.stride(), table.offsets[i])
            for i, x in enumerate(xs)
        ]
        return outs, table.rest

    def _launch(
        self,
        table: _Table,
        like: Tensor,
        *,
        energy: bool,
        grad: int,
        alpha: float = 1.0,
        flat: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> Tensor | None:
        kernel = _kernel()
        assert kernel is not None
        if len(table.rest) == len(self._specs):
            return None
        programs = self._programs_on(like.device)
        numbers = table.words.view(torch.float32)
        energies = torch.empty(len(programs), dtype=torch.float32, device=like.device) if energy else numbers
        with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
            kernel.run(
                programs,
                table.words,
                numbers,
                energies,
                numbers if flat is None else flat,
                numbers if factor is None else factor,
                alpha=float(alpha),
                energy=energy,
                grad=grad,
                scaled=factor is not None,
            )
        return energies.sum(dtype=torch.float64) if energy else None

    def _table(self, xs: Sequence[Tensor], outs: Sequence[Tensor] | None) -> _Table:
        """The table for these addresses and layouts, from the cache or newly built."""
        tensors = xs if outs is None else (*xs, *outs)
        key: tuple[object, ...] = tuple((t.data_ptr(), t.stride()) for t in tensors)
        capturing = xs[0].is_cuda and torch.cuda.is_current_stream_capturing()
        table = self._tables.get(key)
        if table is not None:
            if capturing and not any(table is kept for kept in self._captured):
                self._captured.append(table)  # the graph holds its address: it must outlive the cache
            return table
        words, rest, offsets, total = self._plan(xs, outs)
        if capturing:
            spare = self._spare.get(xs[0].device)
            if not spare:
                raise RuntimeError("priors: use them once outside before capturing (another) CUDA graph")
            room = spare.pop()
            room.fill(words)
            table = _Table(room.words, rest, offsets, total)
            self._captured.append(table)
            return table
        if xs[0].is_cuda:
            words = words.pin_memory().to(xs[0].device, non_blocking=True)
            spare = self._spare.setdefault(xs[0].device, [])
            spare += [GraphTable(words.shape, xs[0].device) for _ in range(_SPARE - len(spare))]
        while len(self._tables) >= _KEEP:
            self._tables.pop(next(iter(self._tables)))
        table = self._tables[key] = _Table(words, rest, offsets, total)
        return table

    def _programs_on(self, device: torch.device) -> Tensor:
        """Which program takes which row or block of which tensor: int32 [programs, 2], made once for a device."""
        programs = self._programs.get(device)
        if programs is None:
            parts = [(i, self._split(i)[0]) for i, spec in enumerate(self._specs) if spec is not None]
            table = np.concatenate([np.stack([np.full(n, i), np.arange(n)], 1) for i, n in parts])
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("priors: use them once before capturing a CUDA graph")
            programs = self._programs[device] = torch.from_numpy(table.astype(np.int32)).to(device)
        return programs

    def _split(self, i: int) -> tuple[int, int]:
        """Into how many programs tensor i goes, and how many numbers each takes."""
        kernel, spec, shape = _kernel(), self._specs[i], self._shapes[i]
        assert kernel is not None
        assert spec is not None
        return rows_and_width(shape) if spec.rows else (-(-math.prod(shape) // kernel.BLOCK), kernel.BLOCK)

    def _plan(self, xs: Sequence[Tensor], outs: Sequence[Tensor] | None) -> tuple[Tensor, list[int], list[int], int]:
        """The table on the host, the parameters it leaves over, and where fresh gradients lie in the flat buffer."""
        kernel = _kernel()
        assert kernel is not None
        table = np.zeros((len(xs), kernel.WORDS), dtype=np.int64)
        rest: list[int] = []
        offsets: list[int] = []
        total = 0
        for i, (spec, x) in enumerate(zip(self._specs, xs, strict=True)):
            offsets.append(total)
            out = None if outs is None else outs[i]
            if spec is None or not _fits(spec, x, out):
                rest.append(i)
                continue
            where = total if out is None else out.data_ptr()
            table[i, :5] = x.data_ptr(), where, x.numel(), self._split(i)[1], spec.kind
            table[i, 5:7] = np.array(spec.hyper, dtype=np.float32).view(np.int64)
            total += -(-x.numel() // _ALIGN) * _ALIGN
        return torch.from_numpy(table), rest, offsets, total


def _fits(spec: KernelSpec, x: Tensor, out: Tensor | None) -> bool:
    """Whether the kernel can walk x (and its gradient) in memory order."""
    dense = has_dense_rows(x) if spec.rows else is_dense(x.shape, x.stride())
    if not dense or x.numel() == 0:
        return False
    if out is None:  # the fresh gradient copies x's layout
        return True
    if out.dtype != torch.float32 or out.device != x.device:
        return False
    return all(a == b for size, a, b in zip(x.shape, x.stride(), out.stride(), strict=True) if size > 1)
