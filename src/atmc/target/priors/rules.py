"""Assign priors to parameters by rules on modules and names; the first matching clause wins.

rule = atmc.priors.resnetpp()                                             # the paper's
rule = atmc.priors.resnetpp().override(Horseshoe(0.1), name="scale")      # ... with sparse scales
rule = PriorRule([on(Normal(0.1), module=nn.Linear, name="weight"), on(Normal(1.0))])
print(rule.assign(model).describe())
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from atmc.common.errors import InputError
from atmc.common.suggest import did_you_mean
from atmc.target.priors.elementwise import Horseshoe, Laplace, Normal, StudentT
from atmc.target.priors.prior import Prior
from atmc.target.priors.prior_set import PriorSet
from atmc.target.priors.rowwise import Direction, GroupLaplace

#: A prior, or a function of (name, parameter) that makes one, for scales that depend on the shape.
PriorOrMaker = Prior | Callable[[str, Tensor], Prior]


@dataclass(frozen=True)
class Clause:
    """One line of a rule: a prior and what it applies to (everything, where neither name nor module is given)."""

    prior: PriorOrMaker
    name: str | None = None
    module: type[nn.Module] | tuple[type[nn.Module], ...] | str | None = None
    min_ndim: int = 0

    def fits(self, full_name: str, owner: nn.Module, parameter: Tensor) -> bool:
        if parameter.ndim < self.min_ndim:
            return False
        if self.name is not None:
            # A pattern with a dot speaks of the whole dotted name, one without of the parameter's own name.
            subject = full_name if "." in self.name else full_name.rpartition(".")[2]
            if not fnmatchcase(subject, self.name):
                return False
        if self.module is None:
            return True
        if isinstance(self.module, str):
            return any(fnmatchcase(kind.__name__, self.module) for kind in type(owner).__mro__)
        return isinstance(owner, self.module)

    def make(self, full_name: str, parameter: Tensor) -> Prior:
        return self.prior if isinstance(self.prior, Prior) else self.prior(full_name, parameter)


def on(
    prior: PriorOrMaker,
    *,
    name: str | None = None,
    module: type[nn.Module] | tuple[type[nn.Module], ...] | str | None = None,
    min_ndim: int = 0,
) -> Clause:
    """A clause: `prior` for parameters whose name fits the pattern, of modules of the type (or class-name pattern)."""
    return Clause(prior, name, module, min_ndim)


def owners(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """(full name, owning module, own name) of every trainable parameter, shared ones once, in the model's order."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for own_name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen and parameter.requires_grad:
                seen.add(id(parameter))
                yield (f"{prefix}.{own_name}" if prefix else own_name), module, own_name


class PriorRule:
    """An ordered list of clauses that `assign` turns into one prior per trainable parameter of a model.

    Frozen parameters (requires_grad=False) are not sampled and get none. A module's own `prior_scales` (that of the
    noise of a regression, `atmc.nn.WithNoise`) win over every clause that does not name the parameter.
    """

    def __init__(self, clauses: Iterable[Clause], *, name: str = "rule", improper_ok: bool = False) -> None:
        self.clauses = tuple(clauses)
        self.name = name
        self.improper_ok = improper_ok

    def override(
        self,
        prior: PriorOrMaker,
        *,
        name: str | None = None,
        module: type[nn.Module] | tuple[type[nn.Module], ...] | str | None = None,
    ) -> PriorRule:
        """This rule with one more clause in front, so that it wins over the present ones."""
        return PriorRule(
            (on(prior, name=name, module=module), *self.clauses), name=self.name, improper_ok=self.improper_ok
        )

    def assign(self, model: nn.Module, *, improper_ok: bool | None = None) -> PriorSet:
        """One prior for every trainable parameter; an error names those without one, and improper ones."""
        allowed = self.improper_ok if improper_ok is None else improper_ok
        entries: dict[str, tuple[Prior, tuple[int, ...]]] = {}
        missing: list[str] = []
        for full_name, owner, own_name in owners(model):
            parameter = getattr(owner, own_name)
            clause = next((c for c in self.clauses if c.fits(full_name, owner, parameter)), None)
            own_scale = getattr(owner, "prior_scales", {}).get(own_name)
            if own_scale is not None and (clause is None or clause.name not in (own_name, full_name)):
                clause = on(Normal(own_scale))
            if clause is None:
                missing.append(full_name)
            else:
                entries[full_name] = (clause.make(full_name, parameter), tuple(parameter.shape))
        if missing:
            raise InputError(
                f"no prior for {_listed(missing)}: add a clause to the rule {self.name!r}, "
                "for example .override(Normal(1.0), name=...)"
            )
        improper = [name for name, (prior, _) in entries.items() if not prior.proper]
        if improper and not allowed:
            raise InputError(f"improper prior on {_listed(improper)}: choose a proper one, or pass improper_ok=True")
        if not entries:
            raise InputError(f"{type(model).__name__} has no trainable parameter: nothing to sample")
        return PriorSet(entries)

    def __repr__(self) -> str:
        return f"PriorRule({self.name!r}, {len(self.clauses)} clauses)"


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


LIMIT = 4.0  # of `limited`: inputs up to 16 have Normal(1)
_HEADS = ("head", "fc", "classifier")


def _fan_in_normal(gain: float) -> Callable[[str, Tensor], Prior]:
    """Normal(gain/√fan-in): features of unit variance from inputs of unit variance, at gain 1."""
    return lambda _name, parameter: Normal(gain / math.sqrt(max(1, math.prod(parameter.shape[1:]))))


def resnetpp(
    b: float = 5.0, *, scales: Prior | None = None, bias_scale: float = 1.0, gain_scale: float = 1.0
) -> PriorRule:
    """The paper's rule for weight-normalised networks (Sect. 4.3 and 5): b = 5 is the paper's value for ResNet++.

    directions: Direction(); scales: GroupLaplace(b) (or `scales`, e.g. Horseshoe(0.1) for structural sparsity).
    The paper does not name priors for the rest; here biases are Normal(bias_scale), plain weight matrices and filters
    Normal(1/√fan-in), and any other gain or offset (filter response normalisation, scalar gains) Normal(gain_scale).
    """
    return PriorRule(
        [
            on(Direction(), name="direction"),
            on(scales if scales is not None else GroupLaplace(b), name="scale"),
            on(Normal(bias_scale), name="*bias*"),
            on(_fan_in_normal(1.0), name="*weight*", min_ndim=2),
            on(Normal(gain_scale)),
        ],
        name="resnetpp",
    )


def normalised(
    scale: float = 1.0, *, head: float = 4.0, gain_scale: float = 1.0, filter_gain_scale: float = 2.0
) -> PriorRule:
    """For networks with normalisation layers: GroupNorm with weight standardisation, EvoNorm, FRN.

    weights: Normal(scale · √(2/fan-in)), the law they start from. Under standardisation, or before a normaliser, the
        loss does not change with a filter's length, so this prior does not shrink the function. It holds the length
        near scale · √(2T) and so sets the effective step size of the direction, which goes with 1/length².
    head (the last linear layer, named head, fc or classifier): Normal(head/√fan-in): confident logits are likely.
    gains of standardised filters: Normal(filter_gain_scale). All else (gains, biases, thresholds): Normal(gain_scale).

    SGD with weight decay w on the mean loss of N examples has the prior Normal(1/√(N w)) instead, the same for every
    weight: `gaussian(1 / math.sqrt(N * w), rest=1.0)` if gains and biases do not decay.
    """
    heads = [on(_fan_in_normal(head), name=f"{prefix}{n}.weight", min_ndim=2) for n in _HEADS for prefix in ("", "*.")]
    return PriorRule(
        [
            *heads,
            on(_fan_in_normal(scale * math.sqrt(2)), min_ndim=2),
            on(Normal(filter_gain_scale), module="WSConv2d", name="gain"),
            on(Normal(gain_scale)),
        ],
        name="normalised",
    )


def gaussian(scale: float = 1.0, *, fan_in: bool = False, rest: float | None = None) -> PriorRule:
    """Normal(scale) on every parameter; with `fan_in`, Normal(scale/√fan-in) on weight matrices and filters.

    With `rest`, gains and biases (vectors and numbers) have Normal(rest) instead: SGD with weight decay w on weights
    alone has the prior `gaussian(1 / math.sqrt(N * w), rest=1.0)`, up to a decay of 1/N on the rest.
    """
    clauses = [on(_fan_in_normal(scale) if fan_in else Normal(scale), min_ndim=2)]
    return PriorRule([*clauses, on(Normal(scale if rest is None else rest))], name="gaussian")


def limited(gain: float = LIMIT) -> PriorRule:
    """Normal(1), but at most Normal(gain/√fan-in) on weight matrices and filters: outputs of wide layers stay moderate.

    Normal(1) on 1,568 inputs of a last layer makes logits of about 40, which no few examples bring down.
    """

    def prior(_name: str, parameter: Tensor) -> Prior:
        return Normal(min(1.0, gain / math.sqrt(max(1, math.prod(parameter.shape[1:])))))

    return PriorRule([on(prior, min_ndim=2), on(Normal(1.0))], name="gaussian-limited")


#: Rules by the names that recipes use, each with the scale it has where a recipe gives none.
RULES: dict[str, tuple[Callable[[float], PriorRule], float]] = {
    "resnetpp": (resnetpp, 5.0),
    "normalised": (normalised, 1.0),
    "gaussian": (gaussian, 1.0),
    "gaussian-weights": (lambda scale: gaussian(scale, rest=1.0), 1.0),
    "gaussian-fan-in": (lambda scale: gaussian(scale, fan_in=True), 1.0),
    "gaussian-limited": (limited, LIMIT),
    "laplace": (lambda scale: PriorRule([on(Laplace(scale))], name="laplace"), 1.0),
    "student-t": (lambda scale: PriorRule([on(StudentT(4.0, scale))], name="student-t"), 1.0),
    "horseshoe": (lambda scale: resnetpp(scales=Horseshoe(scale)), 1.0),
}


def build(name: str, scale: float | None = None) -> PriorRule:
    """The rule a recipe names, with its scale (None: that rule's own default)."""
    if name not in RULES:
        raise InputError(f"unknown prior {name!r}; {did_you_mean(name, RULES)}")
    make, usual = RULES[name]
    return make(usual if scale is None else scale)
