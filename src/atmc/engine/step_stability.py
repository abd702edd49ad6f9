"""Whether a step is stable, known before it is made: its size against the curvature of the potential.

Where U has the curvature λ, the step of every sampler is θ ← θ + a (θ − θ₋) − r λ θ plus noise. It stays bounded for

    r λ < 2 (1 + a)

    with a momentum   r = h² φ(D h)/m,  a = e^(−D h),  φ(x) = (1 − e^(−x))/x
    SGLD              r = h,            a = 0
    SGD               r = h/N,          a its momentum

`overshoot` is r λ over that limit, 1 at the edge. Chains do live beyond the edge: a network finds its way to flatter
weights, a speed limit bounds what a step can do, and digits-atmc's chain is at 1.3. So only one above `FAR` counts.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from atmc.nn.measurements import norm, power_iteration
from atmc.recipe.settings import SamplerSection, sampler_class
from atmc.target import Potential

if TYPE_CHECKING:
    from atmc.engine.sample_predictions import Evaluator

FAR = 20.0  # overshoot from which on a step size is called too large
NEAR = 0.25  # that of the step size that is advised in its place
ROUNDS = 10  # of power iteration, within ten per cent of λ
REACH = 1e-3  # length of a difference, as a share of the weights' own
EVERY = 4  # of the few examples that samples are tried on, one in so many serves: 64
AT_ONCE = 32  # of them in memory
Gradient = Callable[[], list[Tensor]]


def curvature(
    gradient: Gradient, params: list[Tensor], seeded: torch.Generator, rounds: int, scales: Sequence[Any] = ()
) -> float:
    """The largest |λ| of the Hessian H behind `gradient`, by power iteration on its differences; 0 if none is found.

    With `scales` s, one for each parameter, it is that of s H s: m^(−1/2) gives the λ that a sampler of mass m sees.
    """
    here = gradient()
    where = [p.detach().clone() for p in params]
    scales = scales or [1.0] * len(params)
    reach = REACH * max(norm(where), REACH)

    def times(along: list[Tensor]) -> list[Tensor]:
        move = [v * s for v, s in zip(along, scales, strict=True)]
        stretch = reach / max(norm(move), 1e-300)
        with torch.no_grad():
            torch._foreach_add_(params, move, alpha=stretch)
        there = gradient()
        with torch.no_grad():
            torch._foreach_copy_(params, where)
        return [(b - a) * s / stretch for a, b, s in zip(here, there, scales, strict=True)]

    start = [torch.randn(p.shape, generator=seeded).to(p) for p in params]
    found = norm(power_iteration(times, start, rounds)[1])
    return found if 0 < found < math.inf else 0.0


class StepStability:
    """What is known of the stability of a chain's steps: `curvature`, λ of U/m where its sampler began.

    It is None until `measure` was called or a checkpoint had it, and NaN where it does not tell: BatchNorm makes U a
    function of the batch, and rmsprop scales steps as it goes along.
    """

    def __init__(self, section: SamplerSection, largest: float, num_data: int) -> None:
        self.section, self.largest, self.num_data = section, largest, num_data
        self.curvature: float | None = None

    def to_save(self) -> float | None:
        """λ as a checkpoint keeps it: JSON has no NaN."""
        return None if self.curvature is None or math.isnan(self.curvature) else self.curvature

    def measure(self, known: Potential, optimizer: Any, evaluator: "Evaluator") -> None:
        """Find λ at the weights of the potential's network, on a few training examples.

        The network itself is left alone: the evaluator's copy of it is moved about.
        """
        self.curvature = math.nan
        twin = evaluator.model
        if any(isinstance(m, _BatchNorm) for m in twin.modules()) or getattr(optimizer, "preconditioner", None):
            return
        x, y = (torch.cat(parts)[::EVERY].to(evaluator.device) for parts in zip(*evaluator.few_examples(), strict=True))
        twin.load_state_dict(known.model.state_dict())
        potential = Potential(twin, known.num_data, known.prior_set, known.likelihood, improper_ok=True, validate=False)
        params: list[Tensor] = [p for p in twin.parameters() if p.requires_grad]
        mass: Any = optimizer.param_groups[0].get("mass", 1.0)
        masses = mass if isinstance(mass, list | tuple) else [mass] * len(params)

        def gradient() -> list[Tensor]:
            total = [torch.zeros_like(p) for p in params]
            for part, labels in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True):
                with torch.enable_grad():
                    u = potential(part, labels) * (len(labels) / len(y))
                    found = torch.autograd.grad(u, params, allow_unused=True)
                for into, grad in zip(total, found, strict=True):
                    if grad is not None:
                        into.add_(grad)
            return total

        # TF32 has three digits, as few as the differences are long.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            seeded = torch.Generator().manual_seed(0)
            self.curvature = curvature(gradient, params, seeded, ROUNDS, [m**-0.5 for m in masses])

    def overshoot(self, optimizer: Any, scale: float = 1.0) -> float:
        """r λ over its limit 2 (1 + a), for `scale` times the largest step of the schedule; NaN where not known."""
        found = math.nan if self.curvature is None else self.curvature
        lr, group = scale * self.largest, optimizer.param_groups[0]
        kind = sampler_class(self.section.name)
        if kind is None:
            return lr * found / self.num_data / (2 * (1 + float(group["momentum"])))
        if not kind.has_momentum:
            return lr * found / 2
        if "friction" not in group:  # the warm start's own optimizer
            return math.nan
        drag = float(group["friction"]) * lr
        rate = lr * lr * (-math.expm1(-drag) / drag if drag > 0 else 1.0)
        return rate * found / (2 * (1 + math.exp(-drag)))

    def stable_share(self, optimizer: Any) -> float | None:
        """What to multiply sampler.lr and the speeds with, to two digits; None unless they are far from stable."""
        over = self.overshoot(optimizer)
        if not over > FAR:
            return None
        if self.section.speed is not None:  # at the same momentum it goes with the square
            return float(f"{math.sqrt(NEAR / over):.1e}")
        low, high = -700.0, 0.0  # of the share's logarithm
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self.overshoot(optimizer, math.exp(middle)) > NEAR else (middle, high)
        return float(f"{math.exp(low):.1e}")

    def complaint(self, optimizer: Any) -> dict[str, Any] | None:
        """A row of metrics for a run whose step size is far from stable, with one line for a person in `what`."""
        share = self.stable_share(optimizer)
        if share is None:
            return None
        over, key = self.overshoot(optimizer), "lr" if self.section.speed is None else "speed"
        value: float = getattr(self.section, key)
        what = (
            f"the step size is far too large: with sampler.{key} = {value:g} a step overshoots {over:.3g} times as far "
            f"as is stable where the potential is most curved; {share * value:.2g} would be stable there"
        )
        return {"event": "unstable", "overshoot": over, "stable_share": share, "what": what}
