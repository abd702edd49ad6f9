"""The loss of a batch as one function, compiled as a whole where that is asked for and possible.

Networks with `compile_blocks` compile one residual block and reuse it, which starts faster; all others go through
`torch.compile` with the likelihood, forward and backward. What cannot be compiled runs as it is, and says so.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from atmc.target import Potential

LossFunction = Callable[[Tensor, Tensor], Tensor]


class BatchLoss:
    """(inputs, labels) → mean negative log-likelihood. Made once for a chain: a new phase must not compile again."""

    def __init__(self, potential: Potential, autocast: torch.dtype | None, compiled: bool) -> None:
        self.potential, self.model, self.autocast = potential, potential.model, autocast
        self._compile_blocks: Any = getattr(self.model, "compile_blocks", None) if compiled else None
        if self._compile_blocks is not None:
            self._compile_blocks()
        self._wanted = compiled and self._compile_blocks is None
        self._run: LossFunction = self.plain

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        with nullcontext() if self.autocast is None else torch.autocast(x.device.type, self.autocast):
            outputs = self.model(x)
        return self.potential.nll_of(outputs, y)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self._run(x, y)

    def compile(self, x: Tensor, y: Tensor, params: Sequence[Tensor]) -> None:
        """Compile for batches like this one, forward and backward; or note why that is not possible, and do without.

        Call it before a step is recorded. The network is run; its buffers are put back.
        """
        if not self._wanted:
            return
        self._wanted = False
        run: LossFunction = torch.compile(self.plain, dynamic=False)
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            torch.autograd.grad(run(x, y), list(params), allow_unused=True)
        except Exception as error:
            # The user's own mistakes must look like what they are: they fail here again, without the compiler.
            torch.autograd.grad(self.plain(x, y), list(params), allow_unused=True)
            why = str(error).strip().splitlines() or [type(error).__name__]
            warnings.warn(
                f"run.compile: torch.compile cannot compile {type(self.model).__name__}, which runs uncompiled and "
                f"slower ({type(error).__name__}: {why[0][:200]})",
                stacklevel=2,
            )
        else:
            self._run = run
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
