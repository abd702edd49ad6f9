"""SGLD: Langevin dynamics on stochastic gradients (Welling & Teh 2011), optionally pre-conditioned (Li et al. 2016)."""

from __future__ import annotations

from typing import Any, Unpack

from atmc.samplers.backends import Hyper, Move
from atmc.samplers.checks import check_option, choose
from atmc.samplers.flat_state import Shard
from atmc.samplers.sampler import Options, Sampler
from atmc.samplers.tensor_list import sqrt


class SGLD(Sampler):
    """Stochastic-gradient Langevin dynamics.

        dθ = −M G dt + √(2 T M) dW,    stepped by Euler: θ ← θ − h M G + √(2 T h M) η

    With M = 1 it leaves exp(−U(θ)/T) invariant as h → 0; at finite h the bias is of order h, and gradient noise of
    variance V heats it by the factor 1 + h V/(2T).

    Args:
        preconditioner: None for M = 1, or "rmsprop" for M = 1/(ε + √v) with v a running mean of G². The adaptive M
            follows the gradient, and the term for its change is left out as in the original, so its law is approximate.
        decay: of the running mean. epsilon: keeps M finite.

    `lr`, `temperature`, `seed` and the options are those of `ATMC`.
    """

    recipe_keys = ("preconditioner",)
    slots: tuple[str, ...] = ()
    saved = (*Sampler.saved, "decay", "epsilon")

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-5,
        *,
        temperature: Any = 1.0,
        preconditioner: str | None = None,
        decay: float = 0.99,
        epsilon: float = 1e-5,
        **options: Unpack[Options],
    ) -> None:
        choose("preconditioner", preconditioner, (None, "rmsprop"))
        self.preconditioner = preconditioner
        self.decay: float = check_option("decay", decay)
        self.epsilon: float = check_option("epsilon", epsilon)
        if preconditioner:
            self.slots = ("square_avg",)
        if options.get("integrator", "leapfrog") != "leapfrog":
            raise ValueError("SGLD has no momentum to split: leave integrator out")
        super().__init__(params, {"lr": lr, "temperature": temperature}, **options)

    def hyper(self, shard: Shard, index: int, mass: Any, measure: bool) -> Hyper:
        group = shard.groups[index]
        return Hyper(lr=group["lr"], temperature=group["temperature"], measure=measure)

    def advance(self, state: dict[str, Any], grad: Any, eta: list[Any], hyper: Hyper) -> Move:
        if not self.preconditioner:
            return Move({}, eta[0] * sqrt(hyper.lr * 2.0 * hyper.temperature) - grad * hyper.lr)
        square = state["square_avg"] * self.decay + grad * grad * (1.0 - self.decay)
        reach = (1.0 / (sqrt(square) + self.epsilon)) * hyper.lr
        return Move({"square_avg": square}, eta[0] * sqrt(reach * 2.0 * hyper.temperature) - grad * reach)
