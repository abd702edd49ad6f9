"""The loss of a batch as one function, compiled as a whole where that is asked for and possible.

Networks with `compile_blocks` compile one residual block and reuse it, which starts faster; all others go through
`torch.compile` with the likelihood, forward and backward. What cannot be compiled runs as it is, and says so; likewise
what cannot be recorded in a CUDA graph, because it reads values back to the host.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from atmc.target import Potential

LossFunction = Callable[[Tensor, Tensor], Tensor]
Weighted = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class BatchLoss:
    """(inputs, labels) → mean negative log-likelihood. Made once for a chain: a new phase must not compile again."""

    def __init__(self, potential: Potential, autocast: torch.dtype | None, compiled: bool) -> None:
        self.potential, self.model, self.autocast = potential, potential.model, autocast
        self._compile_blocks: Any = getattr(self.model, "compile_blocks", None) if compiled else None
        if self._compile_blocks is not None:
            self._compile_blocks()
        self._wanted = compiled and self._compile_blocks is None
        self._run: LossFunction = self.plain
        self._run_weighted: Weighted = self.plain_weighted
        self._recordable: bool | None = None  # not looked at yet

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        return self.potential.nll_of(self._outputs(x), y)

    def plain_weighted(self, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self._outputs(x)
        return self.potential.nll_of(outputs, y, weights), outputs.detach()

    def _outputs(self, x: Tensor) -> Tensor:
        with nullcontext() if self.autocast is None else torch.autocast(x.device.type, self.autocast):
            outputs: Tensor = self.model(x)
        return outputs

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self._run(x, y)

    def weighted(self, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Σ weights · nll, and the network's outputs, detached."""
        return self._run_weighted(x, y, weights)

    def compile(self, x: Tensor, y: Tensor, params: Sequence[Tensor], weights: Tensor | None = None) -> None:
        """Compile for batches like this one, forward and backward; or note why that is not possible, and do without.

        Call it before a step is recorded. The network is run; its buffers are put back.
        """
        if not self._wanted:
            return
        self._wanted = False
        batch = (x, y) if weights is None else (x, y, weights)
        plain: Callable[..., Any] = self.plain if weights is None else self.plain_weighted
        run: Callable[..., Any] = torch.compile(plain, dynamic=False)
        try:
            self._try(run, batch, params)
        except Exception as error:
            # The user's own mistakes must look like what they are: they fail here again, without the compiler.
            self._try(plain, batch, params)
            why = str(error).strip().splitlines() or [type(error).__name__]
            warnings.warn(
                f"run.compile: torch.compile cannot compile {type(self.model).__name__}, which runs uncompiled and "
                f"slower ({type(error).__name__}: {why[0][:200]})",
                stacklevel=2,
            )
        else:
            if weights is None:
                self._run = run
            else:
                self._run_weighted = run

    def recordable(self, x: Tensor, y: Tensor, params: Sequence[Tensor], weights: Tensor | None = None) -> bool:
        """Whether a CUDA graph can hold this loss; if not, a note says so. Our own networks always can."""
        if self._recordable is None:
            batch, run = ((x, y), self._run) if weights is None else ((x, y, weights), self._run_weighted)
            self._recordable = self._is_ours() or not self._reads_back(run, batch, params)
            if not self._recordable:
                warnings.warn(
                    f"{type(self.model).__name__} reads values back from the GPU in its forward pass, as .item() "
                    "and `if` on a tensor do: its steps cannot be recorded in a CUDA graph and run slower",
                    stacklevel=2,
                )
        return self._recordable

    def _is_ours(self) -> bool:
        return type(self.model).__module__.startswith("atmc.nn")

    def _reads_back(self, run: Callable[..., Any], batch: Sequence[Tensor], params: Sequence[Tensor]) -> bool:
        self._try(run, batch, params)  # what only a first call does (tables, a choice of kernels) may wait
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            self._try(run, batch, params)
        except RuntimeError as error:
            if "synchronizing CUDA operation" not in str(error):
                raise
            return True
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return False

    def _try(self, run: Callable[..., Any], batch: Sequence[Tensor], params: Sequence[Tensor]) -> None:
        """Forward and backward once. The network's buffers are put back."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            found = run(*batch)
            torch.autograd.grad(found if isinstance(found, Tensor) else found[0], list(params), allow_unused=True)
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
