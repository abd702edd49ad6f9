"""What a run is, in one object: data, network, target, sampler, schedule, and how to run it.

Plain frozen dataclasses, so that the engine needs nothing but torch; `recipe.load_recipe` reads them from TOML and
lets pydantic check every key and type. Where a number is the paper's it says so; `None` means "not set".
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from atmc.samplers import Sampler

# Read by pydantic where it validates these classes; harmless without it.
_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """Which examples, and how they are shown."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "digits"  # a name that `atmc data list` knows, or folder:PATH, shards:GLOB, synthetic:…
    root: str | None = None  # where data sets are kept; otherwise the ATMC_DATA variable or the cache folder
    batch_size: int = 128  # over all processes of a data-parallel chain
    draw: Literal["auto", "importance"] = "auto"  # importance: those of large gradients more often; auto: all alike
    augment: Literal["none", "crop", "flip", "crop-flip", "resized-crop-flip", "own"] = "none"  # own: a Dataset's
    crop_size: int | None = None  # resized-crop-flip: side of the crops in training; not set: that of the examples
    crop_area: float = 0.08  # resized-crop-flip: least share of the image
    corrupt: Literal["refuse", "skip"] = "refuse"  # a training image that cannot be read, where images stream
    validation: int = 0  # examples held out of the training set, by a rule that does not depend on the seed
    workers: int = 8  # decoding processes, for data that stream


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """Which network. Classes and channels follow from the data."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "resnetpp"  # a name of `atmc.nn.registry.NETWORKS`
    depth: int = 20  # weight layers
    width: int | None = None  # not set: the usual one of that network
    norm: Literal["none", "bn", "frn", "gn-ws", "evonorm-s0"] = "none"  # none: that network's own default
    options: dict[str, Any] = field(default_factory=dict)  # handed to the network as they are
    start: Literal["given", "fresh"] = "given"  # a network of your own: chains begin near its weights, or draw new ones
    only: list[str] = field(default_factory=list)  # a network of your own: names or patterns of what is sampled of it


@dataclass(frozen=True, kw_only=True)
class TargetSection:
    """What is sampled: the likelihood of the labels and the prior of the weights."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    prior: str = "resnetpp"  # a name of `atmc.priors.RULES`; none: SGD without a prior; custom: a rule given in Python
    prior_scale: float | None = None  # b of the group Laplace (the paper has 5), or the prior's scale
    likelihood: str = "categorical"  # of the labels; a name of `atmc.likelihoods.LIKELIHOODS`
    likelihood_options: dict[str, Any] = field(default_factory=dict)  # its numbers, as { alpha_eps = 0.01 }


@dataclass(frozen=True, kw_only=True)
class SamplerSection:
    """How the chain moves. `lr` is the step size h; speeds are per step, as the paper gives them."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "atmc"  # a name of `atmc.samplers.SAMPLERS`, or sgd
    lr: float = 1e-3  # step size h; with speeds it is only the unit of time
    speed: float | None = None  # average speed per step: m = (speed/lr)^-2
    max_speed: float | None = None  # c = max_speed/lr; not set = Gaussian kinetic energy
    momentum: float | None = None  # e^(-D lr) of a sampler; the momentum of SGD
    mass: float | None = None  # m, in place of a speed
    friction: float | None = None  # D, the least friction, in place of a momentum
    friction_follows_step: bool = False  # D rises as the step size falls, so that every step leaves as much momentum
    speed_limit: float | None = None  # c, in place of a max_speed
    temperature: float = 1.0  # T: 1 is the Bayes posterior, 0 is SGD
    inertia: float | None = None  # mu; not set: T/(D/3)^2, at most 1; the paper has 1
    thermostat: Literal["element", "scalar"] = "element"  # SGNHT: one for each number, or one for all
    thermostat_init: float = 0.0  # where the thermostat starts
    thermostat_follows_step: bool = True  # and the temperature, and rests at T = 0; the paper's does not
    thermostat_from_noise: bool = False  # start it at its equilibrium, from the gradient's measured variance
    mass_from: Literal["none", "tensor", "element"] = "none"  # masses from the gradient's measured second moment
    mass_looks: int = 1  # how often masses are measured: first of all, then evenly up to the end of burn-in
    look_batches: int = 64  # batches of such a measurement, during which nothing moves
    noise_rank: int = 0  # directions of the gradient noise that friction balances; batches are then independent
    noise_kronecker: bool = False  # friction for the rest of the noise too, tensor by tensor; needs noise_rank
    noise_examples: bool = False  # friction for all of the noise, from each example's gradient; batches likewise
    momentum_init: Literal["zero", "law"] = "zero"  # law: drawn at temperature T
    integrator: Literal["leapfrog", "strang", "leapfrog-frozen", "strang-frozen"] = "leapfrog"  # of momenta
    preconditioner: Literal["rmsprop"] | None = None  # SGLD
    weight_decay: float = 0.0  # SGD
    nesterov: bool = False  # SGD
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of the sampler


def least_friction(section: SamplerSection) -> float:
    """D of a sampler section: as named, or −log(momentum)/lr as the paper says it; NaN where it says neither."""
    if section.name == "sgd":
        return math.nan
    if section.friction is not None:
        return section.friction
    if section.momentum and 0.0 < section.momentum < 1.0:
        return -math.log(section.momentum) / section.lr
    return math.nan


def inertia(section: SamplerSection) -> float:
    """μ of a sampler section: as given, or the default of the samplers, from D and T."""
    from atmc.samplers.kinetic_energy import light_inertia

    if section.inertia is not None:
        return section.inertia
    return 1.0 if section.thermostat == "scalar" else light_inertia(least_friction(section), section.temperature)


def sampler_class(name: str) -> "type[Sampler] | None":
    """The sampler that a recipe names; None for SGD, which is none."""
    from atmc.samplers import SAMPLERS

    return SAMPLERS.get(name)


@dataclass(frozen=True, kw_only=True)
class ScheduleSection:
    """How long, with which step size and temperature, and when samples are taken."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    epochs: int = 100  # of each chain
    kind: Literal["cyclic", "cosine", "constant", "step"] = "cyclic"  # course of the step size
    cycle_epochs: int | float | None = None  # cyclic: length of a cycle, which may end within an epoch
    burn_in_epochs: int = 0  # samples are taken after this epoch
    sample_every_steps: int | None = None  # otherwise one sample at each cycle's end, or at the run's
    samples_per_cycle: int = 1  # cyclic: the last one at its end, the others before it
    sample_gap_epochs: int = 1  # epochs between the samples of one cycle
    milestones: list[int] = field(default_factory=list)  # step: epochs at which lr is multiplied by `gamma`
    gamma: float = 0.1  # step: see `milestones`
    lr_floor: float = 0.0  # the step size never falls below this fraction of lr
    warmup_epochs: int = 0  # lr rises linearly at the very start
    cycle_warmup_epochs: int = 0  # cyclic: lr rises linearly at the start of each cycle
    hold_fraction: float = 0.0  # cyclic, cosine: lr stays as it is for this part of each cycle, or of the run
    warm_start_epochs: int = 0  # an optimizer on the same target first, in addition to `epochs`
    warm_start_optimizer: Literal["sgd", "adam"] = "sgd"  # which; adam for a regression with learned noise
    warm_start_lr: float = 0.05  # its learning rate, on the mean loss
    warm_start_momentum: float = 0.9  # and its momentum
    temperature_schedule: Literal["constant", "ramp", "explore", "anneal"] = "constant"  # course of T
    temperature_ramp_epochs: int = 0  # ramp: T rises linearly from 0 over these epochs
    explore_fraction: float = 0.0  # explore: T = 0, and no samples, in this first part of each cycle
    temperature_peak: float = 1.0  # anneal: T falls with the step size, from this many times sampler.temperature

    @property
    def settled_epochs(self) -> int:
        """Epochs from the first step to the end of burn-in, warm start included: as rows of metrics count them."""
        return self.warm_start_epochs + self.burn_in_epochs


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """Where and how carefully. Nothing here changes what is sampled."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["float32", "bf16"] = "float32"  # of activations; states are always float32
    threads: int | None = None  # CPU threads; small networks are fastest, and always reproducible, with 1
    compile: bool = False  # torch.compile of the loss, on CUDA
    deterministic: bool = False  # deterministic CUDA kernels only
    parallel: Literal["auto", "chains", "data"] = "auto"  # what torchrun's processes share
    checkpoint_minutes: float = 5.0  # minutes between checkpoints
    log_steps: int = 0  # 0: once an epoch, and at least every 400 steps
    max_rollbacks: int = 3  # divergences after which a run gives up
    rollback_factor: float = 0.5  # what a divergence multiplies the step size with
    explode: float = 4.0  # a smoothed loss above this many times that of guessing is a divergence
    worst_sample: float = 3.0  # a sample with an NLL above this many times log(classes) is not kept; inf keeps all
    evaluate: list[str] = field(default_factory=lambda: ["test"])  # splits that every sample is scored on
    evaluate_batch: int = 500  # images at a time when scoring
    tensorboard: bool = False  # also write TensorBoard files


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole run. Two runs of equal recipes on the same machine are equal."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "run"  # what reports call it
    seed: int = 0  # of weights, batches and noise
    chains: int = 1  # independent chains from different starting weights
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    target: TargetSection = field(default_factory=TargetSection)
    sampler: SamplerSection = field(default_factory=SamplerSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    run: RunSection = field(default_factory=RunSection)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values; the inverse of `recipe_from_dict`."""
        return dataclasses.asdict(self)


SECTIONS: dict[str, type[Any]] = {
    "data": DataSection,
    "model": ModelSection,
    "target": TargetSection,
    "sampler": SamplerSection,
    "schedule": ScheduleSection,
    "run": RunSection,
}


def temperature_before(recipe: Recipe) -> float | None:
    """The temperature at which cycles begin, where that is another than the one at which samples are taken."""
    course = recipe.schedule.temperature_schedule
    if course == "anneal":
        return recipe.sampler.temperature * recipe.schedule.temperature_peak
    return 0.0 if course == "explore" else None


def temperature_said(temperature: float, before: float | None) -> str:
    """What stands beside a number: "0.02"; "0.02 from 0.2" where cycles cool to it; "0.02 after 0" if they explore."""
    if before is None:
        return f"{temperature:g}"
    return f"{temperature:g} from {before:g}" if before > 0 else f"{temperature:g} after 0"


def recipe_from_dict(values: dict[str, Any]) -> Recipe:
    """A recipe from values that are known to be right, such as a run's own resolved recipe."""
    plain = {key: value for key, value in values.items() if key not in SECTIONS}
    parts = {key: kind(**values.get(key, {})) for key, kind in SECTIONS.items()}
    return Recipe(**plain, **parts)


def flat(recipe: Recipe) -> dict[str, Any]:
    """Dotted keys to values, in the order of the classes: what `--set` and error messages speak of."""
    out: dict[str, Any] = {}
    for key, value in recipe.to_dict().items():
        if key in SECTIONS:
            out.update({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            out[key] = value
    return out
