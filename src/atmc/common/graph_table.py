"""Small tables of addresses and numbers on a GPU, filled while a CUDA graph is captured without being part of it.

Fused kernels find their tensors through a table. A graph's gradients have addresses of their own, known only while the
graph is captured, so its table can only be filled then. A copy on the capturing stream would become part of the graph
and be made again at every replay: two of them cost a step of 1.4 ms about 27 µs in a profile on an H200, because the
device changes between its copy engine and its processors and back, and waits for the host's memory. So the copy goes
over a stream of its own. Nothing may be waited for by CUDA's means during a capture; instead the table is copied back
and the host looks until it is the one that was sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

PATIENCE = 10.0  # seconds; it takes some ten microseconds


class GraphTable:
    """Room for one table of int64 words. Make it before the capture: neither kind of memory can be had during one.

    The memory on the device must not come from the graph's own pool, where earlier kernels of the same graph may have
    used it and would write to it again at each replay.
    """

    def __init__(self, shape: Sequence[int], device: torch.device) -> None:
        self.words = torch.empty(tuple(shape), dtype=torch.int64, device=device)
        self._sent = torch.empty(tuple(shape), dtype=torch.int64, device="cpu").pin_memory()
        self._back = torch.empty_like(self._sent).pin_memory()
        self._made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._made.record(torch.cuda.current_stream(device))  # until then the memory may still be in use there

    def fill(self, values: Tensor) -> None:
        """Bring `values` to the device; they are there when this returns. Once for each table."""
        self._sent.copy_(values)
        torch.bitwise_not(self._sent, out=self._back)
        with torch.cuda.stream(_free_stream(self.words.device)):
            torch.cuda.current_stream().wait_event(self._made)
            self.words.copy_(self._sent, non_blocking=True)
            self._back.copy_(self.words, non_blocking=True)
        deadline = time.monotonic() + PATIENCE
        while not torch.equal(self._sent, self._back):
            if time.monotonic() > deadline:
                raise RuntimeError("a table for a captured CUDA graph did not reach the device")


def _free_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream that nothing is being captured on: PyTorch hands out the same 32 again and again."""
    for _ in range(64):
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            if not torch.cuda.is_current_stream_capturing():
                return stream
    raise RuntimeError("every stream of this device is being captured")
