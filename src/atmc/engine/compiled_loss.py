"""The loss of a batch as one function, compiled as a whole where that is asked for and possible.

Networks with `compile_blocks` compile one residual block and reuse it, which starts faster; all others go through
`torch.compile` with the likelihood, forward and backward. What cannot be compiled, as a whole or at all, runs as it is,
and says so; likewise what cannot be recorded in a CUDA graph, because it reads values back to the host.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.engine.precision import is_ours
from atmc.nn.resnet import raise_recompile_limit
from atmc.nn.with_noise import WithNoise
from atmc.target import Potential
from atmc.target.example_gradients import example_gradients
from atmc.target.likelihoods import OwnLikelihood

NOT_HERE = "run.compile is for CUDA: on a CPU the network runs uncompiled"
LossFunction = Callable[[Tensor, Tensor], Tensor]
Weighted = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class BatchLoss:
    """(inputs, labels) → mean negative log-likelihood. Made once for a chain: a new phase must not compile again."""

    def __init__(self, potential: Potential, autocast: torch.dtype | None, compiled: bool) -> None:
        self.potential, self.model, self.autocast = potential, potential.model, autocast
        self._wanted, self._in_blocks = compiled, compiled and hasattr(self.model, "compile_blocks")
        if self._in_blocks:  # already here: some of their kernels are made in the background
            self.model.compile_blocks()  # type: ignore[operator]
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

    def each(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(nll of each example; outputs; the gradients of `weight` times the nll, by name), never compiled."""
        with nullcontext() if self.autocast is None else torch.autocast(x.device.type, self.autocast):
            return example_gradients(self.model, self.potential.likelihood, x, y, weight)

    def compile(self, x: Tensor, y: Tensor, params: Sequence[Tensor], weights: Tensor | None = None) -> None:
        """Compile for batches like this one, forward and backward; or note why that is not possible, and do without.

        Call it before a step is recorded. The network is run; its buffers are put back.
        """
        if not self._wanted:
            return
        self._wanted = False
        batch = (x, y) if weights is None else (x, y, weights)
        plain: Callable[..., Any] = self.plain if weights is None else self.plain_weighted
        if self._in_blocks:
            self._compile_blocks(plain, batch, params)
        elif weights is None:
            self._run = self._compiled(plain, batch, params)
        else:
            self._run_weighted = self._compiled(plain, batch, params)

    def _compiled(
        self, plain: Callable[..., Any], batch: Sequence[Tensor], params: Sequence[Tensor]
    ) -> Callable[..., Any]:
        """The loss compiled as a whole, or in parts, or as it is; with a note where it is not the whole.

        Without `fullgraph` torch.compile leaves out what it does not understand, be it the whole network, in silence.
        """
        raise_recompile_limit()  # one for every network of this process
        run: Callable[..., Any] = torch.compile(plain, dynamic=False)
        whole: Exception | None = None
        try:
            try:
                self._try(torch.compile(plain, dynamic=False, fullgraph=True), batch, params)
            except Exception as error:
                whole = error
                self._try(run, batch, params)
        except Exception as error:
            return self._left_out(plain, batch, params, error)
        if whole is not None:
            self._note(f"{self._name()} as a whole; what it leaves out", whole)
        return run  # compiled code is the same for both; what comes later in another shape must not be refused

    def _compile_blocks(self, plain: Callable[..., Any], batch: Sequence[Tensor], params: Sequence[Tensor]) -> None:
        try:
            self._try(plain, batch, params)
        except Exception as error:
            self.model.uncompile_blocks()  # type: ignore[operator]
            self._left_out(plain, batch, params, error)

    def _left_out(
        self, plain: Callable[..., Any], batch: Sequence[Tensor], params: Sequence[Tensor], error: Exception
    ) -> Callable[..., Any]:
        # The user's own mistakes must look like what they are: they fail here again, without the compiler.
        self._try(plain, batch, params)
        self._note(f"{self._name()}, which", error)
        return plain

    def _note(self, what: str, error: Exception) -> None:
        why = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(
            f"run.compile: torch.compile cannot compile {what} runs uncompiled and slower "
            f"({type(error).__name__}: {why[0][:200]})",
            stacklevel=2,
        )

    def _name(self) -> str:
        return type(self.model.network if isinstance(self.model, WithNoise) else self.model).__name__

    def recordable(self, x: Tensor, y: Tensor, params: Sequence[Tensor], weights: Tensor | None = None) -> bool:
        """Whether a CUDA graph can hold this loss; if not, a note says so. With code of our own alone it always can."""
        if self._recordable is None:
            batch, run = ((x, y), self._run) if weights is None else ((x, y, weights), self._run_weighted)
            self._recordable = self._all_ours() or not self._reads_back(run, batch, params)
            if not self._recordable:
                own = isinstance(self.potential.likelihood, OwnLikelihood)
                where = "its forward pass or the likelihood" if own else "its forward pass"
                warnings.warn(
                    f"{self._name()} reads values back from the GPU in {where}, as .item() "
                    "and `if` on a tensor do: its steps cannot be recorded in a CUDA graph and run slower",
                    stacklevel=2,
                )
        return self._recordable

    def _all_ours(self) -> bool:
        known = all(type(part).__module__.startswith(("atmc.nn.", "torch.nn.")) for part in self.model.modules())
        return is_ours(self.model) and known and not isinstance(self.potential.likelihood, OwnLikelihood)

    def _reads_back(self, run: Callable[..., Any], batch: Sequence[Tensor], params: Sequence[Tensor]) -> bool:
        self._try(run, batch, params)  # what only a first call does (tables, a choice of kernels) may wait
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            self._try(run, batch, params)
        except (RuntimeError, InputError) as error:  # an own likelihood says it as an InputError
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
