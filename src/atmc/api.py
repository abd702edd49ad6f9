"""Three lines for everyone else: `posterior = atmc.sample(model, (x, y), recipe="atmc", epochs=100, out="mine")`."""

import dataclasses
import math
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from atmc.chain.examples import RunData
from atmc.chain.manifest import Manifest
from atmc.chain.pace import Pace, find_pace
from atmc.chain.progress import Progress
from atmc.chain.recipe_rules import check_recipe
from atmc.chain.rundir import RunDir
from atmc.chain.runner import run
from atmc.chain.settings import (
    DataSection,
    ModelSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
)
from atmc.data import ImageData
from atmc.errors import InputError, RunError
from atmc.nn import check

if TYPE_CHECKING:
    from atmc.posterior import Posterior
    from atmc.target.priors import PriorRule

RATE = 0.1  # most, of the SGD with momentum 0.9 that a sampler would be without its noise; see `default_recipe`
SAMPLERS = ("atmc", "sgnht", "sghmc", "sgld", "sgd")
Pair = tuple[Any, Any]


def sample(
    model: nn.Module,
    data: Pair | ImageData | str,
    recipe: str | Path | Recipe = "atmc",
    *,
    epochs: int | None = None,
    out: str | Path | None = None,
    test: Pair | ImageData | None = None,
    prior: "PriorRule | str | None" = None,
    likelihood: Any = None,
    temperature: float | None = None,
    batch_size: int | None = None,
    chains: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    overrides: Sequence[str] = (),
    time_budget: float | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
) -> "Posterior":
    """Draw the weights of `model` from their posterior given `data`, and return the samples as one predictor.

    Args:
        model: any network whose outputs are logits (or values, for a regression). It is not changed. Layers that cannot
            be sampled (BatchNorm in training mode, dropout) are an error that names them.
        data: (inputs, labels) as tensors or arrays, the name of a data set, or an `ImageData`.
        recipe: the name of a sampler ("atmc", "sgnht", "sghmc", "sgld"; "sgd" for one ordinary network), a recipe file,
            or a `Recipe`; its data and network are replaced by those given here.
        epochs: how often to see the data while sampling (a tenth as many epochs of SGD come first); more gives better
            mixed samples and, from 4,000 steps on, more of them.
        out: the run directory, where the run is kept and can be gone on with, also with more epochs; without one it is
            kept in memory only.
        test: held-out data to evaluate every sample on.
        prior: a rule of `atmc.priors` or its name; the paper's for ResNet++, Normal(0, 1) for other networks.
        likelihood: one of `atmc.likelihoods`; from the labels if not given (whole numbers are classes). A regression
            should say how noisy its targets are: `atmc.likelihoods.Gaussian(scale)`.
        overrides: more settings, as `"sampler.inertia=0.01"`.
        time_budget: seconds after which to stop, with the samples there are then.

    With a sampler's name as recipe the speed is found by a short walk of SGD on a copy of the network, from curvature
    and gradient noise (`atmc.chain.pace`). A chain that was not at its temperature in spite of it gives a warning.
    """
    if epochs is not None and (not isinstance(epochs, int) or epochs < 1):
        raise InputError(f"epochs must be a whole number of at least 1, not {epochs!r}")
    if any(p.dtype == torch.float64 for p in model.parameters()):
        raise InputError("the network is in float64, and runs are in float32: pass model.float()")
    train = _examples(data)
    tuned = isinstance(recipe, Recipe) or str(recipe) not in SAMPLERS
    past = None if tuned else _begun(out, str(recipe), epochs)
    settings = _settings(past or recipe, train, epochs, overrides)
    section, kind = _target(settings, model, train, prior, likelihood, explicit=not isinstance(recipe, Recipe))
    if settings.sampler.name != "sgd":
        _check_model(model, train)
    if not tuned and past is None and recipe != "sgd":
        found = _pace(model, train, dataclasses.replace(settings, target=section), kind, batch_size, device)
        settings = _settings(recipe, train, epochs, overrides, found)
    changes: dict[str, Any] = {"temperature": temperature, "chains": chains, "seed": seed}
    settings = dataclasses.replace(
        settings,
        **{key: value for key, value in changes.items() if value is not None and key != "temperature"},
        target=section,
        model=ModelSection(name="custom"),
        data=dataclasses.replace(settings.data, name=train.name, batch_size=batch_size or settings.data.batch_size),
        sampler=dataclasses.replace(
            settings.sampler, temperature=settings.sampler.temperature if temperature is None else temperature
        ),
        run=dataclasses.replace(
            settings.run, device=device or settings.run.device, evaluate=["test"] if _has_test(data, test) else []
        ),
    )
    check_recipe(settings)
    examples = RunData(train, _evaluation(data, test))
    with tempfile.TemporaryDirectory() if out is None else nullcontext(str(out)) as folder, torch.enable_grad():
        ended = run(settings, folder, time_budget, progress, model=model, data=examples, prior=kind)
        posterior = _posterior(Path(folder), model, keep=out is None, stopped=ended.status)
        _say_if_off(Path(folder), out is not None)
        return posterior


def default_recipe(sampler: str, num_data: int, epochs: int = 100, pace: Pace | None = None) -> Recipe:
    """Settings for a network and data that nobody has tuned for: slow enough to be safe, at the Bayes posterior T = 1.

    A tenth as many epochs of SGD come first: thermostats that meet the storm of the first steps remember it for long.
    Then there are 20 cycles, or as many of 200 steps as there is time for, up to 60; those after the first third give
    samples. `pace` says how fast to go, and is otherwise RATE.
    """
    pace = Pace(RATE, RATE) if pace is None else pace
    batch = default_batch(num_data)
    cycle = math.ceil(epochs / min(60, max(20, epochs * num_data // batch // 200)))
    schedule = ScheduleSection(
        epochs=epochs,
        cycle_epochs=cycle,
        burn_in_epochs=min(epochs - cycle, cycle * math.ceil(0.3 * epochs / cycle)),
        warm_start_epochs=math.ceil(epochs / 10),
        warm_start_lr=pace.start,
    )
    if sampler == "sgd":
        plain = ScheduleSection(epochs=epochs, kind="cosine")
        moves = SamplerSection(name="sgd", lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
        target = TargetSection(prior="none")
        return Recipe(name=sampler, data=DataSection(batch_size=batch), sampler=moves, schedule=plain, target=target)
    if sampler == "sgld":
        moves = SamplerSection(name="sgld", lr=2 * pace.rate / num_data)
    else:
        # As an optimizer a sampler is SGD with rate speed² N on the mean loss: so the speed that makes it that rate.
        speed = math.sqrt(pace.rate / num_data)
        # The paper's ratio of speeds. The limit also keeps a light thermostat from remembering a stormy start.
        fast = {"speed": speed, "max_speed": speed / 0.3, "momentum": 0.9}
        light = {"inertia": 1e-3} if sampler in ("atmc", "sgnht") else {}
        moves = SamplerSection(name=sampler, lr=1e-3, **fast, **light)  # type: ignore[arg-type]
    return Recipe(name=sampler, data=DataSection(batch_size=batch), sampler=moves, schedule=schedule, run=RunSection())


def _settings(
    recipe: str | Path | Recipe,
    train: ImageData,
    epochs: int | None,
    overrides: Sequence[str],
    pace: Pace | None = None,
) -> Recipe:
    if isinstance(recipe, Recipe):
        base = recipe
    elif str(recipe) in SAMPLERS:
        base = default_recipe(str(recipe), len(train), epochs if epochs is not None else 100, pace)
    else:
        from atmc.chain.recipe import load_recipe

        base = load_recipe(recipe, overrides)
        overrides = ()
    if epochs is not None and base.schedule.epochs != epochs:
        base = dataclasses.replace(base, schedule=dataclasses.replace(base.schedule, epochs=epochs))
    if overrides:
        from atmc.chain.recipe import recipe_from_values, without_unset

        base = recipe_from_values(without_unset(base.to_dict()), overrides)
    return base


def default_batch(num_data: int) -> int:
    """At least 16 steps an epoch, and batches of 64 at most."""
    return max(1, min(64, num_data // 16))


def _begun(out: str | Path | None, sampler: str, epochs: int | None) -> Recipe | None:
    """The settings of the run that is in `out` already, as long as is asked now: it goes on with the pace it has."""
    if out is None or not Manifest.exists(Path(out)):
        return None
    past = RunDir.open(out).recipe
    if past.sampler.name != sampler or past.model.name != "custom":
        return None
    return (
        past
        if epochs is None
        else dataclasses.replace(past, schedule=dataclasses.replace(past.schedule, epochs=epochs))
    )


def _pace(
    model: nn.Module, train: ImageData, settings: Recipe, rule: Any, batch_size: int | None, device: str | None
) -> Pace:
    """How fast this network may be sampled on these data."""
    from atmc.chain.build import build_likelihood, build_prior
    from atmc.chain.parallel import pick_device
    from atmc.target import Potential

    likelihood = build_likelihood(settings)

    def potential(copy: nn.Module) -> Any:
        return Potential(copy, len(train), build_prior(settings, copy, rule), likelihood, improper_ok=True)

    batch = batch_size or settings.data.batch_size
    return find_pace(model, train, potential, batch, RATE, pick_device(device or settings.run.device))


def _examples(data: Pair | ImageData | str, split: str = "train") -> ImageData:
    if isinstance(data, ImageData):
        return data
    if isinstance(data, str):
        from atmc.data import load

        return load(data, split)
    try:
        if isinstance(data, torch.utils.data.DataLoader | torch.utils.data.Dataset):
            raise InputError(f"data must be whole tensors, (inputs, labels), not a {type(data).__name__}")
        x, y = (torch.as_tensor(part) for part in data)
    except (TypeError, ValueError) as error:
        raise InputError(f"data must be (inputs, labels), the name of a data set, or an ImageData: {error}") from error
    if len(x) != len(y) or len(x) == 0:
        raise InputError(f"data: {len(x)} inputs and {len(y)} labels do not pair up")
    if x.dtype == torch.float64:
        x = x.float()
    if not torch.isfinite(x).all():
        raise InputError("data: the inputs hold NaN or infinite values")
    return ImageData.from_tensors(x, y, split=split)


def _has_test(data: Pair | ImageData | str, test: Pair | ImageData | None) -> bool:
    return test is not None or isinstance(data, str)


def _evaluation(data: Pair | ImageData | str, test: Pair | ImageData | None) -> dict[str, Any]:
    if test is not None:
        return {"test": _examples(test, "test")}
    return {"test": _examples(data, "test")} if isinstance(data, str) else {}


def _target(
    settings: Recipe, model: nn.Module, train: ImageData, prior: Any, likelihood: Any, explicit: bool
) -> tuple[TargetSection, Any]:
    """The target's section, and the prior rule where it is an object that a recipe cannot name."""
    section = settings.target
    rule: Any = None
    if settings.sampler.name == "sgd" and prior is None:
        section = dataclasses.replace(section, prior="none", prior_scale=TargetSection().prior_scale)
    elif isinstance(prior, str):
        section = dataclasses.replace(section, prior=prior)  # type: ignore[arg-type]
    elif prior is not None:
        if not hasattr(prior, "assign"):
            raise InputError(f"prior must be a rule of atmc.priors, as atmc.priors.gaussian(1.0), not {prior!r}")
        section, rule = dataclasses.replace(section, prior="custom"), prior
    elif explicit and section == TargetSection():
        ours = type(model).__name__ == "ResNetPP"
        section = TargetSection(prior="resnetpp" if ours else "gaussian")
    if likelihood is not None:
        names = {
            "Categorical": "categorical",
            "Gaussian": "gaussian",
            "NoisyDirichlet": "noisy-dirichlet",
            "DirClip": "dirclip",
        }
        name = names.get(type(likelihood).__name__)
        if name is None:
            raise InputError(f"likelihood must be one of atmc.likelihoods, not a {type(likelihood).__name__}")
        section = dataclasses.replace(section, likelihood=name, likelihood_options=dataclasses.asdict(likelihood))  # type: ignore[arg-type]
    elif train.labels.is_floating_point() and section.likelihood == "categorical":
        section = dataclasses.replace(section, likelihood="gaussian")
        warnings.warn(
            "the labels are not whole numbers, so this is a regression, and its targets are taken to have noise of "
            "standard deviation 1: say how noisy they are with likelihood=atmc.likelihoods.Gaussian(scale)",
            stacklevel=3,
        )
    return section, rule


def _check_model(model: nn.Module, train: ImageData) -> None:
    from atmc.data import EvalBatches

    few = train.subset(torch.arange(min(4, len(train))))
    example, _ = next(iter(EvalBatches(few, len(few)))) if len(few) > 1 else (None, None)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        findings = check(model, example.to(device) if isinstance(example, Tensor) else None)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape, said = list(train.shape), str(error).splitlines()[0]
        raise InputError(f"the network does not take examples of shape {shape}: {said}") from error
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise InputError(f"this network cannot be sampled: {findings[0]}{more}")


def _say_if_off(folder: Path, kept: bool) -> None:
    """Warn of a chain that was far from the temperature it was asked for, by the number that the doctor reads."""
    from atmc.posterior import traces

    found = RunDir.open(folder)
    rows = traces.settled(found.metrics(), found.recipe.schedule.settled_epochs)
    level = traces.temperature_ratio(rows, by_time=True)
    if level.rows < 5 or not math.isfinite(level.mean) or 0.5 < level.mean < 2.0:
        return
    where = f"; atmc doctor {folder} says more" if kept else ""
    warnings.warn(
        f"the chain was at {level.mean:.2g} times the temperature it was asked for, so these are no "
        f"samples of the posterior: standardise inputs and targets, or give it more epochs{where}",
        stacklevel=3,
    )


def _posterior(folder: Path, model: nn.Module, keep: bool, stopped: str) -> "Posterior":
    from atmc.posterior import Posterior

    found = RunDir.open(folder)
    if len(found.bank) == 0:
        cure = "give a larger time_budget, or fewer epochs" if stopped == "budget" else "let it run for longer"
        raise RunError(f"there was no time for a single sample: {cure}")
    posterior = Posterior.from_run(found, model)
    if not keep:
        return posterior
    return Posterior(
        [dict(tensors) for tensors in found.bank],
        model,
        chains=posterior.chains,
        likelihood=posterior.likelihood,
        mean=posterior.mean,
        std=posterior.std,
        classes=posterior.classes,
        shape=found.manifest["data"]["shape"],
    )
