"""Three lines for everyone else: `posterior = atmc.sample(model, (x, y), recipe="atmc", epochs=100, out="mine")`."""

import dataclasses
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from atmc.chain.examples import RunData
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

RATE = 0.02  # of the SGD that a sampler would be without its noise; see `default_recipe`
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
        epochs: how often to see the data; more gives more, and better mixed, samples.
        out: the run directory, where the run is kept and can be gone on with; without one it is kept in memory only.
        test: held-out data to evaluate every sample on.
        prior: a rule of `atmc.priors` or its name; the paper's for ResNet++, Normal(0, 1) for other networks.
        likelihood: one of `atmc.likelihoods`; from the labels if not given (whole numbers are classes).
        overrides: more settings, as `"sampler.inertia=0.01"`.
        time_budget: seconds after which to stop, with the samples there are then.
    """
    train = _examples(data)
    settings = _settings(recipe, train, epochs, overrides, likelihood)
    section, kind = _target(settings, model, train, prior, likelihood, explicit=not isinstance(recipe, Recipe))
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
    if settings.sampler.name != "sgd":
        _check_model(model, train)
    examples = RunData(train, _evaluation(data, test))
    if out is not None:
        run(settings, out, time_budget, progress, model=model, data=examples, prior=kind)
        return _posterior(Path(out), model, keep=False)
    with tempfile.TemporaryDirectory() as folder:
        run(settings, folder, time_budget, progress, model=model, data=examples, prior=kind)
        return _posterior(Path(folder), model, keep=True)


def default_recipe(sampler: str, num_data: int, epochs: int = 100, sharpness: float = 1.0) -> Recipe:
    """Settings for a network and data that nobody has tuned for: slow enough to be safe, at the Bayes posterior T = 1.

    There are about twenty cycles, of which those after the first third give samples. `sharpness` scales the speed.
    """
    batch = max(1, min(64, num_data // 16))
    cycle = max(1, epochs // 20)
    schedule = ScheduleSection(
        epochs=epochs, cycle_epochs=cycle, burn_in_epochs=min(epochs - cycle, cycle * math.ceil(0.3 * epochs / cycle))
    )
    if sampler == "sgd":
        plain = ScheduleSection(epochs=epochs, kind="cosine")
        moves = SamplerSection(name="sgd", lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
        target = TargetSection(prior="none")
        return Recipe(name=sampler, data=DataSection(batch_size=batch), sampler=moves, schedule=plain, target=target)
    if sampler == "sgld":
        moves = SamplerSection(name="sgld", lr=2 * RATE / num_data)
    else:
        # As an optimizer a sampler is SGD with rate speed² N on the mean loss: so the speed that makes it RATE.
        speed = math.sqrt(RATE * sharpness / num_data)
        # The paper's ratio of speeds. The limit also keeps a light thermostat from remembering a stormy start.
        fast = {"speed": speed, "max_speed": speed / 0.3, "momentum": 0.9}
        light = {"inertia": 1e-3} if sampler in ("atmc", "sgnht") else {}
        moves = SamplerSection(name=sampler, lr=1e-3, **fast, **light)  # type: ignore[arg-type]
    return Recipe(name=sampler, data=DataSection(batch_size=batch), sampler=moves, schedule=schedule, run=RunSection())


def _settings(
    recipe: str | Path | Recipe, train: ImageData, epochs: int | None, overrides: Sequence[str], likelihood: Any
) -> Recipe:
    if isinstance(recipe, Recipe):
        base = recipe
    elif str(recipe) in SAMPLERS:
        # A Gaussian likelihood of small scale is as much sharper than a categorical one.
        sharpness = min(1.0, float(getattr(likelihood, "scale", 1.0)))
        base = default_recipe(str(recipe), len(train), epochs if epochs is not None else 100, sharpness)
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


def _examples(data: Pair | ImageData | str, split: str = "train") -> ImageData:
    if isinstance(data, ImageData):
        return data
    if isinstance(data, str):
        from atmc.data import load

        return load(data, split)
    try:
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


def _posterior(folder: Path, model: nn.Module, keep: bool) -> "Posterior":
    from atmc.posterior import Posterior

    found = RunDir.open(folder)
    if len(found.bank) == 0:
        raise RunError("there was no time for a single sample: give a larger time_budget, or fewer epochs")
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
