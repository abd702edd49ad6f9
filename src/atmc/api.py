"""The high-level API: `posterior = atmc.sample(model, (x, y), sampler="atmc", epochs=100, out="runs/mine")`."""

import copy
import dataclasses
import functools
import math
import os
import shlex
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from atmc.api_arguments import (
    check_batch,
    check_call,
    check_layers,
    check_sets,
    check_sizes,
    evaluation,
    examples,
    loader_batch,
    say_if_augmented,
    suited,
    work,
)
from atmc.api_likelihoods import STANDARDISED, default_noise, with_likelihood
from atmc.api_pilots import SHARE, Pilot, check_auto, choose_temperature
from atmc.common.atomic_files import temporary_folder
from atmc.common.errors import InputError, RunError
from atmc.common.suggest import nearest
from atmc.data import ImageData, OwnData
from atmc.engine import first_fit
from atmc.engine.batch_growth import LEAST_STEPS
from atmc.engine.features import with_features
from atmc.engine.processes import pick_device
from atmc.engine.progress import Progress, choose_progress
from atmc.engine.run_data import RunData, first_outputs
from atmc.engine.runner import RunResult, run
from atmc.engine.schedule import make_schedule
from atmc.engine.step_size_search import StepSize, find_step_size
from atmc.engine.torch_settings import numerics
from atmc.nn.parts import fixed_part, names_of, with_only
from atmc.nn.several_inputs import taking
from atmc.nn.strided import without_crash_
from atmc.recipe.build import build_likelihood, build_prior, start_weights
from atmc.recipe.settings import (
    DataSection,
    ModelSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
    sampler_class,
)
from atmc.recipe.toml_files import override_words
from atmc.recipe.validation import check_recipe
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir, labels_file
from atmc.target.likelihoods import NO_PLACE, LocationScale, OwnLikelihood, is_law, own_likelihood

if TYPE_CHECKING:
    from atmc.nn.parts import Only
    from atmc.posterior import Posterior
    from atmc.target.priors import PriorRule

RATE = 0.1  # most, of the SGD with momentum 0.9 that a sampler would be without its noise; see `default_recipe`
# Operations of a batch's forward pass up to which one thread is used. Measured on two cores that had other work too, on
# dense and convolutional networks with batches of 16 and 64; the best step with one thread and with two: 1.6 and
# 2.1 ms at 8e6, 3.7 and 5.9 at 3.3e7, 6.7 and 6.2 at 4.8e7, 25 and 26 at 1.4e8. The median step took 3 to 200 times as
# long with two, which wait for each other at every operation.
SMALL = 3e7
PATIENCE = 3.0  # seconds of the search for the speed after which it is spoken of
FEW = 5  # fewer samples get a warning
WHOLE = 512  # examples up to which a batch is all of them: mini-batches of so few bend the law most, and save little
# Operations of a forward pass of all data up to which a batch is all of them, however many they are. A step costs less
# than a millisecond whatever its batch, and 2 ms at 7e6: kin8nm (50 hidden units, 5,899 examples, validation) had a
# log-likelihood of 1.09 after 10,000 steps of 1,000 examples with noise_rank = 16, 1.13 with all in a fifth more time.
CHEAP = 3e7
# Steps from which on that holds, with some room. Digits (64–50–10, 1,000 examples, a validation part, two seeds) have
# an NLL of .234 and .086 after 480 steps with all data, .208 and .151 with mini-batches of 64; after 2,240 steps .138
# and .101 against .191 and .111.
ENOUGH = 1500
STEPS = 16  # steps an epoch, at least
MINI = 64  # examples of a mini-batch, at most
MOST = 1024  # to which pilots may let it grow
# Operations of a forward pass of all data up to which the default is LONG steps, about 25 s on one core. With 32,000
# steps and 60 samples the spread of a network 1–50–1 was .76 of NUTS's in one region (benchmarks/minibatch_network.py).
QUICK = 3e6
LONG = 64_000
# Steps of a regression with learned noise at least, where nobody says: with all data (validation, log-likelihood with
# 9,200 and 23,000 steps: kin8nm 1.21 and 1.24, naval 6.24 and 6.39), and with mini-batches.
LEAST, LEAST_MINI = 20_000, 10_000
# Examples of its mini-batches. A step costs little more than with 64, and the fit before the chain gets much further:
# protein (100 hidden units, validation) has a log-likelihood of -2.84 with 64,000 steps of 64, and of -2.71 so.
WIDE = 1024
CYCLES = ("schedule.kind", "schedule.cycle_", "schedule.samples_per_cycle")  # overrides that ask for cycles
FIRST = 500  # steps of SGD first, where every step uses all data; of a shorter run as many as it has
NOISE_RANK = 16  # directions of the gradient noise along which friction balances it, for networks up to
SMALL_NETWORK = 200_000  # parameters: 33 more numbers for each of them


def sample(
    model: nn.Module,
    data: Any,
    sampler: str | None = None,
    *,
    recipe: str | Path | Recipe | None = None,
    epochs: int | None = None,
    out: str | Path | None = None,
    test: Any = None,
    prior: "PriorRule | str | None" = None,
    likelihood: Any = None,
    temperature: float | Literal["auto"] | None = None,
    batch_size: int | None = None,
    chains: int | None = None,
    start: Literal["given", "fresh"] | None = None,
    only: "Only | None" = None,
    seed: int | None = None,
    device: str | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    time_budget: float | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
) -> "Posterior":
    """Draw the weights of `model` from their posterior given `data`, and return the samples as one predictor.

    Args:
        model: any network whose outputs are logits (or values, for a regression). It is not changed. Layers that cannot
            be sampled (BatchNorm in training mode, dropout) are an error that names them.
        data: (inputs, labels) as tensors, arrays or pandas' tables; a `Dataset` or `DataLoader` of torch, whose batches
            are pairs or dicts; the name of a data set; or an `ImageData`. A `Dataset` is read once into memory; one
            whose transform draws at random is read anew in every epoch, which departs from Bayes' rule.
        sampler: "atmc" (the default), "sgnht", "sghmc", "sgld"; or "sgd" for one ordinary network.
        recipe: instead of a sampler, a recipe file, its name or a `Recipe`: its settings are used, and its data and
            network are replaced by those given here.
        epochs: how often to see the data while sampling (a tenth as many epochs of SGD come first); more gives better
            mixed samples and, from 4,000 steps on, more of them. Up to 512 examples, and in long runs of small networks
            up to tens of thousands, every step uses all of them, so that there is no mini-batch noise; an epoch then
            stands for as many steps as with mini-batches of 64, and at least 16. Default: 100, or 64,000 steps where a
            step on all the data is quick; for a regression 20,000 at least, and 10,000 with mini-batches.
        out: the run directory, where the run is kept and can be gone on with, also with more epochs; without one it is
            kept in memory only.
        test: held-out data to evaluate every sample on; a run that is gone on with needs it again.
        prior: a rule of `atmc.priors` or its name; the paper's for ResNet++, Normal(0, 1) for other networks, and
            Normal(0, 1/fan-in) for regressions whose targets are standardised.
        likelihood: one of `atmc.likelihoods`, or its name; from the labels if not given. Whole numbers are classes.
            Other labels are a regression with unknown noise, whose targets are standardised inside: "input-noise",
            Student's t with a scale that depends on the input; "learned-noise", one σ, where no linear layer ends the
            network; "heteroscedastic" (two outputs a target) and "student-t" are others. Or any object of yours with
            `nll(outputs, y)` and, for predictions, `predict(outputs)` (`atmc.target.likelihoods.own`).
        batch_size: examples of a step, used as given. Without it a step uses all data where that is cheap. Elsewhere,
            for networks up to 200,000 parameters, short pilots let the batch grow until its noise leaves the law as
            it is (`atmc.engine.batch_growth`).
        temperature: T, 1 (the Bayes posterior) if not given. "auto" holds out a fifth of the data, tries several T (for
            classes also likelihoods) in short pilots that together cost less than the run, prints one table, and goes
            on with the best on all data (`posterior.pilots`).
        chains: how many to run. The first begins at the weights of `model`, the others near them, with noise of a tenth
            of each tensor's root mean square.
        start: "fresh" draws new weights for every chain instead (by the layers' own `reset_parameters`), which finds
            more modes. Parameters that are not sampled (`requires_grad=False`) are never touched.
        only: sample a part of the network, and leave the rest as it is: a name of a layer or parameter ("head"), a
            pattern ("*lora*"), a module of the network, or a list of these. Samples hold that part alone. The network
            is in evaluation mode. Where the part comes last, what comes before it is computed once for each example.
        overrides: more settings, as `{"sampler": {"inertia": 0.01}}` or `["sampler.inertia=0.01"]`.
        time_budget: seconds after which to stop, with the samples there are then.

    With a sampler's name the speed is found by a short walk of SGD on a copy of the network, from curvature
    and gradient noise (`atmc.engine.step_size_search`). A chain far from its temperature gives a warning.
    On a CPU small networks are sampled with one thread, which is faster there; `overrides=["run.threads=4"]` sets it.
    """
    check_call(model, epochs, out)
    source = _source(sampler, recipe)
    overrides = override_words(overrides)
    train = examples(data)
    if train.layout is not None:
        model = taking(model, train.layout)
    train = whole = suited(model, train)
    say_if_augmented(train)
    if batch_size is None and recipe is None:
        batch_size = loader_batch(data)
    check_batch(batch_size, len(train))
    given = RunData(train, {split: suited(model, found) for split, found in evaluation(data, test).items()})
    if is_law(likelihood):
        likelihood = own_likelihood(likelihood, first_outputs(model, train)[0], train.labels)
    mine = likelihood if isinstance(likelihood, OwnLikelihood) else None
    few = (
        isinstance(source, str)
        and source != "sgd"
        and batch_size is None
        and _whole(model, train, epochs, out, overrides)
    )
    each = _steps_an_epoch(len(train))
    quick = few and epochs is None and work(model, train) * len(train) <= QUICK
    began = time.monotonic()
    pilots: list[Pilot] = []
    if isinstance(temperature, str):
        check_auto(temperature, source)
        temperature = None
        if out is None or not Manifest.exists(Path(out)):  # a run that was begun keeps what it chose
            how: dict[str, Any] = {"sampler": source, "seed": seed, "device": device, "overrides": overrides}
            how |= {"likelihood": likelihood, "prior": prior, "start": start, "only": only, "progress": None}
            how["time_budget"] = None if time_budget is None else time_budget / (2 * SHARE)
            length = epochs if epochs is not None else LONG // each if quick else 100
            usual = default_noise(model, train) if train.labels.is_floating_point() else ""
            first = with_likelihood(TargetSection(), likelihood, train.labels, usual).likelihood
            fixed = likelihood is not None or first != "categorical"
            teller = choose_progress() if progress == "auto" else progress or Progress()
            draw = functools.partial(sample, model, **how)
            pilots = choose_temperature(draw, train, length, first, fixed, batch_size, teller)
            temperature = pilots[0].temperature
            likelihood = likelihood if fixed else pilots[0].likelihood
    noisy = _learns_noise(likelihood, train)
    if few:
        steps = LEAST if noisy and work(model, train) * len(train) <= CHEAP else 0
        steps = LONG if quick else max(100 * each, steps) if epochs is None else each * epochs
        batch_size, epochs = len(train), steps
        _check_longer(out, epochs, each)
    elif noisy and batch_size is None and _free(source, train, out, overrides):
        batch_size, epochs = _wide(work(model, train), len(train), epochs)
    elif isinstance(source, str) and batch_size is None and any(word.startswith(CYCLES) for word in overrides):
        batch_size = mini_batch(len(train))
    past = _begun(out, source, epochs) if isinstance(source, str) else None
    part = model if only is None else with_only(model, names_of(model, only))
    rank = _noise_rank(source, part, train, batch_size)
    settings = _settings(past or source, train, epochs, overrides, noise_rank=rank, batch=batch_size)
    section, kind = _target(settings, model, train, prior, likelihood, explicit=not isinstance(source, Recipe))
    guessed = likelihood is None and section.likelihood != settings.target.likelihood
    law = build_likelihood(dataclasses.replace(settings, target=section), mine)
    if isinstance(law, OwnLikelihood) and law.law is None:
        raise InputError(f"this run was begun with {law.name}, a likelihood of your own: pass it as likelihood=")
    chosen = settings.model.only if only is None else names_of(model, only)
    own = with_only(model, chosen) if chosen else copy.deepcopy(model)
    own = without_crash_(law.network(own) if hasattr(law, "network") else own)  # with the noise, if that is sampled too
    check_sets(own, given, law, guessed)
    if out is None or not Manifest.exists(Path(out)):  # a run that was begun goes on as it was
        check_sizes(given)
    augment: Any = "own" if isinstance(train, OwnData) else settings.data.augment
    if settings.sampler.name != "sgd":
        check_layers(own, train)
    rest = fixed_part(own)
    batch = settings.data.batch_size if batch_size is None else batch_size
    begin = ModelSection(name="custom", start=_start(start, settings), only=chosen)
    place = device or settings.run.device
    if chosen and augment == "none":
        own, given = with_features(own, given, rest, pick_device(place))
        train = given.train if isinstance(given.train, ImageData) else whole
    threads = _threads(settings, own, train, batch, place, out)
    teller = choose_progress() if progress == "auto" else progress or Progress()
    if isinstance(source, str) and past is None and source != "sgd":
        about = dataclasses.replace(
            settings,
            target=section,
            model=begin,
            run=dataclasses.replace(settings.run, threads=threads),
            sampler=_at(settings.sampler, temperature),
        )
        walker = start_weights(own, about, 0)
        largest = 0 if batch_size is not None else _largest_batch(about, len(train), overrides)
        found = _pace(walker, train, about, kind, batch, pick_device(place), teller, law, largest)
        if found.choice is not None:
            batch = batch_size = found.choice.batch
            teller.note(found.choice.said)
            if found.choice.off:
                warnings.warn(found.choice.said, stacklevel=2)
            rank = _noise_rank(source, part, train, batch_size)
            threads = _threads(settings, own, train, batch, place, out)
        fit = first_fit.steps_of(own, len(train)) if isinstance(law, LocationScale) else 0
        settings = _settings(source, train, epochs, overrides, found, rank, fit, batch_size)
    settings = dataclasses.replace(
        settings,
        chains=settings.chains if chains is None else chains,
        seed=settings.seed if seed is None else seed,
        target=section,
        model=begin,
        data=dataclasses.replace(settings.data, name=whole.name, batch_size=batch, augment=augment),
        sampler=_at(settings.sampler, temperature),
        run=dataclasses.replace(settings.run, device=place, threads=threads, evaluate=list(given.evaluate)),
    )
    check_recipe(settings)
    with temporary_folder() if out is None else nullcontext(str(out)) as folder, torch.enable_grad():
        scored = None if out is None or "test" in given.evaluate else _scored(Path(out))
        left = time_budget  # less what the pilots took, and they took half of it at most
        if time_budget is not None and pilots:
            left = max(0.1 * time_budget, time_budget - (time.monotonic() - began))
        rows = [pilot.to_dict() for pilot in pilots]
        ended = run(
            settings, folder, left, teller, model=own, data=given, prior=kind, pilots=rows, fixed=rest, likelihood=mine
        )
        reached = _reached(settings, len(train), ended)
        posterior = _posterior(Path(folder), model, out is not None, ended, reached, mine)
        _say_if_off(Path(folder), out is not None)
        if scored is not None:
            _say_if_unscored(Path(folder), scored)
        return posterior


def default_recipe(
    sampler: str,
    num_data: int,
    epochs: int = 100,
    pace: StepSize | None = None,
    noise_rank: int = 0,
    fit_steps: int = 0,
    batch: int | None = None,
) -> Recipe:
    """Settings for a network and data that nobody has tuned for: slow enough to be safe, at the Bayes posterior T = 1.

    A tenth as many epochs of SGD come first: thermostats that meet the storm of the first steps remember it for long.
    Then there are 20 cycles, or as many of 200 steps as there is time for, up to 60; those after the first third give
    samples. `pace` says how fast to go, and is otherwise RATE. Where noise is learned, Adam takes the place of SGD,
    with at most `fit_steps` steps.
    """
    pace = StepSize(RATE, RATE) if pace is None else pace
    if batch is None:
        batch = mini_batch(num_data) if sampler == "sgd" else default_batch(num_data)
    cycle = math.ceil(epochs / min(60, max(20, epochs * num_data // batch // 200)))
    schedule = ScheduleSection(
        epochs=epochs,
        cycle_epochs=cycle,
        burn_in_epochs=min(epochs - cycle, cycle * math.ceil(0.3 * epochs / cycle)),
        warm_start_epochs=math.ceil(epochs / 10),
        warm_start_lr=pace.start,
    )
    if batch == num_data:  # no noise to be annealed away: constant steps; 60 samples after the first third, 180 of LONG
        kept = epochs - schedule.burn_in_epochs
        every = max(1, kept // min(180, max(60, kept // 250)))
        warm = max(schedule.warm_start_epochs, min(FIRST, epochs))  # so little friction takes long to end a fall
        schedule = dataclasses.replace(
            schedule, kind="constant", cycle_epochs=None, sample_every_steps=every, warm_start_epochs=warm
        )
    if fit_steps:
        schedule = dataclasses.replace(
            schedule,
            warm_start_optimizer="adam",
            warm_start_epochs=first_fit.warm_epochs(epochs, fit_steps, num_data // batch),
            warm_start_lr=first_fit.LR,
        )
    if sampler == "sgd":
        plain = ScheduleSection(epochs=epochs, kind="cosine")
        moves = SamplerSection(name="sgd", lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
        target = TargetSection(prior="none")
        return Recipe(
            name=sampler,
            data=DataSection(batch_size=batch),
            sampler=moves,
            schedule=plain,
            target=target,
            run=RunSection(compile=True),
        )
    kind = sampler_class(sampler)
    if kind is None or not kind.has_momentum:
        moves = SamplerSection(name=sampler, lr=2 * pace.rate / num_data)
    else:
        # As an optimizer a sampler is SGD with rate speed² N on the mean loss: so the speed that makes it that rate.
        speed = math.sqrt(pace.rate / num_data)
        # Friction takes noise out; where there is none, less of it lets soft directions mix in fewer steps.
        momentum = 0.99 if batch == num_data else 0.9
        # The paper's ratio of speeds. The limit also keeps a light thermostat from remembering a stormy start.
        moves = SamplerSection(
            name=sampler,
            lr=1e-3,
            speed=speed,
            max_speed=speed / 0.3,
            momentum=momentum,
            momentum_init="law" if batch == num_data else "zero",
            noise_rank=noise_rank,
        )
    return Recipe(
        name=sampler, data=DataSection(batch_size=batch), sampler=moves, schedule=schedule, run=RunSection(compile=True)
    )


def _source(sampler: str | None, recipe: str | Path | Recipe | None) -> str | Path | Recipe:
    """What the settings come from: a sampler's name as text, a recipe as a path or an object."""
    from atmc.samplers import SAMPLERS

    known = [*SAMPLERS, "sgd"]
    if sampler is not None and recipe is not None:
        raise InputError("give sampler= or recipe=, not both: a recipe names its own sampler")
    if recipe is not None:
        return recipe if isinstance(recipe, Recipe) else Path(recipe)
    if sampler is None:
        return "atmc"
    if not isinstance(sampler, str) or sampler not in known:
        near = nearest(str(sampler), known)
        hint = f"did you mean {near!r}?" if near else "a recipe goes into recipe="
        raise InputError(f"sampler must be one of {', '.join(known)}, not {sampler!r}: {hint}")
    return sampler


def _settings(
    source: str | Path | Recipe,
    train: ImageData,
    epochs: int | None,
    overrides: Sequence[str],
    pace: StepSize | None = None,
    noise_rank: int = 0,
    fit_steps: int = 0,
    batch: int | None = None,
) -> Recipe:
    if isinstance(source, Recipe):
        base = source
    elif isinstance(source, str):
        length = epochs if epochs is not None else 100
        base = default_recipe(source, len(train), length, pace, noise_rank, fit_steps, batch)
    else:
        from atmc.storage.run_recipe import load_recipe_or_run

        base = load_recipe_or_run(source, overrides)
        overrides = ()
    if epochs is not None and base.schedule.epochs != epochs:
        base = dataclasses.replace(base, schedule=dataclasses.replace(base.schedule, epochs=epochs))
    if overrides:
        from atmc.recipe.toml_files import recipe_from_values, without_unset

        base = recipe_from_values(without_unset(base.to_dict()), overrides)
    return base


def _start(start: Any, settings: Recipe) -> Literal["given", "fresh"]:
    """Where chains begin: as asked, or as the recipe has it for a network of one's own."""
    if start is None:
        return settings.model.start
    for known in ("given", "fresh"):
        if start == known:
            return known
    raise InputError(f'start must be "given" (at the network\'s weights) or "fresh" (new ones), not {start!r}')


def mini_batch(num_data: int) -> int:
    """At least 16 steps an epoch, and batches of 64 at most."""
    return max(1, min(MINI, num_data // STEPS))


def default_batch(num_data: int) -> int:
    """All data where they are few, for a sampler."""
    return num_data if num_data <= WHOLE else mini_batch(num_data)


def _at(section: SamplerSection, temperature: float | None) -> SamplerSection:
    return section if temperature is None else dataclasses.replace(section, temperature=temperature)


def _noise_rank(source: Any, model: nn.Module, train: ImageData, batch_size: int | None) -> int:
    """How many directions of the gradient noise the default settings balance: none where there is no such noise."""
    kind = sampler_class(source) if isinstance(source, str) else None
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    batch = default_batch(len(train)) if batch_size is None else batch_size
    right = kind is not None and kind.has_momentum and not isinstance(train, OwnData)
    return min(NOISE_RANK, size) if right and batch < len(train) and size <= SMALL_NETWORK else 0


def _largest_batch(settings: Recipe, num_data: int, overrides: Sequence[str]) -> int:
    """The batch up to which pilots may go: the run keeps its epochs, and enough steps. 0 where there are no pilots."""
    section = settings.sampler
    if not section.noise_rank or not section.temperature or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return 0  # no friction along the noise, no temperature, or ranks that may differ in the last bit
    if any(word.startswith(("data.batch_size", "sampler.")) for word in overrides):
        return 0
    return min(MOST, num_data, settings.schedule.epochs * num_data // LEAST_STEPS)


def _whole(
    model: nn.Module, train: ImageData, epochs: int | None, out: str | Path | None, overrides: Sequence[str]
) -> bool:
    """Whether a step uses all data where nobody says: they are few, or a step on them is cheap and many are made.

    Cycles are for mini-batches, and a run that was begun keeps what it has.
    """
    if any(word.startswith((*CYCLES, "data.batch_size")) for word in overrides):
        return False
    if out is not None and Manifest.exists(Path(out)):
        return RunDir.open(out).recipe.data.batch_size >= len(train)
    if len(train) <= WHOLE:
        return True
    many = _steps_an_epoch(len(train)) * (100 if epochs is None else epochs) >= ENOUGH
    return many and not isinstance(train, OwnData) and work(model, train) * len(train) <= CHEAP


def _learns_noise(likelihood: Any, train: ImageData) -> bool:
    """Whether it is a regression whose noise is learned with the weights."""
    if likelihood is None:
        return bool(train.labels.is_floating_point())
    return isinstance(likelihood, LocationScale) or (isinstance(likelihood, str) and likelihood in STANDARDISED)


def _free(source: Any, train: ImageData, out: str | Path | None, overrides: Sequence[str]) -> bool:
    """Whether mini-batches may have any size: a new run by a sampler's name, and nothing said of batches or cycles."""
    begun = out is not None and Manifest.exists(Path(out))
    named = isinstance(source, str) and source != "sgd" and not isinstance(train, OwnData)
    return named and not begun and not any(word.startswith((*CYCLES, "data.batch_size")) for word in overrides)


def _wide(each: float, num_data: int, epochs: int | None) -> tuple[int, int]:
    """Batch and epochs of a regression with learned noise: large batches where they are cheap and steps are enough."""
    most = max(mini_batch(num_data), min(WIDE, num_data // STEPS, int(CHEAP / each)))
    if epochs is None:
        return most, max(100, math.ceil(LEAST_MINI * most / num_data)) if most == WIDE else 100
    return max(mini_batch(num_data), min(most, epochs * num_data // LEAST_MINI)), epochs


def _steps_an_epoch(num_data: int) -> int:
    """Steps on all data that stand for an epoch: as many as there would be mini-batches."""
    return max(STEPS, num_data // MINI)


def _check_longer(out: str | Path | None, epochs: int, each: int) -> None:
    """Refuse to shorten a run whose steps use all data, in the caller's epochs of `each` steps."""
    if out is not None and Manifest.exists(Path(out)):
        made = RunDir.open(out).recipe.schedule.epochs
        if made > epochs:
            raise InputError(
                f"{out} is set to {made // each} epochs of {each} steps, not {epochs // each}, which would change "
                f"what it has done: pass epochs={made // each} to go on with it, or use another folder for a new run"
            )


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


def _threads(
    settings: Recipe, model: nn.Module, train: ImageData, batch: int, place: str, out: str | Path | None
) -> int | None:
    """One thread on a CPU where a step is so little work that several would wait for each other, unless set.

    A run that is there goes on with as many as it has, which its bits depend on.
    """
    if settings.run.threads is not None or pick_device(place).type != "cpu":
        return settings.run.threads
    if out is not None and Manifest.exists(Path(out)):
        with suppress(InputError):  # no run yet: its folder is just about to become one
            return RunDir.open(out).recipe.run.threads
    return 1 if work(model, train) * batch <= SMALL else None


def _pace(
    model: nn.Module,
    train: ImageData,
    settings: Recipe,
    rule: Any,
    batch: int,
    device: torch.device,
    teller: Progress,
    likelihood: Any,
    largest: int,
) -> StepSize:
    """How fast this network may be sampled on these data, searched for as the run will go: with its threads.

    And with batches of which size, where they may grow to `largest`.
    """
    from atmc.target import Potential

    began, said = time.monotonic(), False

    def potential(copy: nn.Module) -> Any:
        inner = Potential(copy, len(train), build_prior(settings, copy, rule), likelihood, improper_ok=True)

        def patient(x: Tensor, y: Tensor) -> Tensor:
            nonlocal said
            if not said and time.monotonic() - began > PATIENCE and os.environ.get("RANK", "0") == "0":
                teller.note("searching for the speed of the sampler: a short walk of SGD comes before the run")
                said = True
            return inner(x, y)

        return patient

    # Of `numerics` the threads alone: on a GPU the fastest convolutions are not always the same; the speed should be.
    with numerics(settings, device) if device.type == "cpu" else nullcontext():
        section = settings.sampler
        faster = 1.0
        if isinstance(likelihood, LocationScale):
            model = first_fit.fitted(model, train, potential, batch, device)
            faster = first_fit.FASTER if batch < len(train) else 1.0  # with all data it is curvature that limits it
        noise = section.noise_rank, section.temperature or 1.0
        grow = largest, sampler_class(section.name)
        return find_step_size(model, train, potential, batch, RATE, device, *noise, faster, *grow)


def _target(
    settings: Recipe, model: nn.Module, train: ImageData, prior: Any, likelihood: Any, explicit: bool
) -> tuple[TargetSection, Any]:
    """The target's section, and the prior rule where it is an object that a recipe cannot name."""
    section = settings.target
    rule: Any = None
    guessed = explicit and prior is None and section == TargetSection() and settings.sampler.name != "sgd"
    if settings.sampler.name == "sgd" and prior is None:
        section = dataclasses.replace(section, prior="none", prior_scale=TargetSection().prior_scale)
    elif isinstance(prior, str):
        section = dataclasses.replace(section, prior=prior)
    elif prior is not None:
        if not hasattr(prior, "assign"):
            raise InputError(f"prior must be a rule of atmc.priors, as atmc.priors.gaussian(1.0), not {prior!r}")
        section, rule = dataclasses.replace(section, prior="custom"), prior
    elif guessed:
        ours = type(model).__name__ == "ResNetPP"
        section = TargetSection(prior="resnetpp" if ours else "gaussian")
    usual = default_noise(model, train) if train.labels.is_floating_point() else ""
    section = with_likelihood(section, likelihood, train.labels, usual)
    if section.likelihood == "input-noise" != usual:
        raise InputError(NO_PLACE)
    if prior is None and guessed and section.likelihood in STANDARDISED:
        section = dataclasses.replace(section, prior="gaussian-fan-in")  # outputs of the targets' size, which is 1
    return section, rule


def _say_if_off(folder: Path, kept: bool) -> None:
    """Warn of temperatures that are off, of chains that have not mixed and of too few effective samples."""
    from atmc.diagnose.complaints import complaints

    found = RunDir.open(folder)
    if found.recipe.sampler.name == "sgd":
        return
    where = f"; atmc doctor {shlex.quote(str(folder))} says more" if kept else ""
    for line in complaints(found):
        warnings.warn(f"{line}{where}", stacklevel=3)


def _scored(folder: Path) -> set[Any] | None:
    """The samples of a run that keeps test labels, to know later which are new; None where there is no such run."""
    if not Manifest.exists(folder):
        return None
    with suppress(InputError):  # no run yet: its folder is just about to become one
        found = RunDir.open(folder)
        if labels_file("test") in found.manifest["files"]:
            return {(e.manifest.folder, e.meta["index"]) for e in found.bank.entries} if found.parts else set()
    return None


def _say_if_unscored(folder: Path, before: set[Any]) -> None:
    """Warn of new samples without predictions for the run's test set: scores need those of all."""
    now = _scored(folder)
    if now is not None and now - before:
        warnings.warn(
            f"{folder} was evaluated on test data, and its new samples are not, so that it has no scores now: pass "
            "test= again (the same call with it evaluates them, and draws none anew)",
            stacklevel=3,
        )


def _reached(settings: Recipe, examples: int, ended: RunResult) -> str:
    """How far a run came that did not end by itself, and why it ended."""
    from atmc.common.text import plural

    schedule = make_schedule(settings, examples)
    there, whole = schedule.epoch(ended.steps) / settings.chains, schedule.epoch(schedule.steps)
    why = "interrupted" if ended.status == "interrupted" else "out of time"
    return f"{why} at epoch {there:.0f} of {whole:.0f}, {plural(ended.samples, 'sample')}"


def _posterior(
    folder: Path, model: nn.Module, kept: bool, ended: RunResult, reached: str, likelihood: Any = None
) -> "Posterior":
    """The samples of a run, with a word where it was stopped or they are too few; `RunError` where there are none."""
    from atmc.common.text import plural
    from atmc.posterior import Posterior

    found = RunDir.open(folder)
    go_on = "the same call goes on where it stopped" if kept else "with out= the same call could go on where it stopped"
    if len(found.bank) == 0:
        if ended.status == "interrupted" or (ended.status == "budget" and kept):
            raise RunError(f"{reached}; {go_on}")
        cure = "give a larger time_budget, or fewer epochs" if ended.status == "budget" else "let it run for longer"
        raise RunError(f"there was no time for a single sample: {cure}")
    posterior = Posterior.from_run(found, model, likelihood)
    few = len(posterior) < FEW and found.recipe.sampler.name != "sgd"
    if ended.status == "interrupted" or (ended.status == "budget" and few):
        warnings.warn(f"{reached}; {go_on}", stacklevel=3)
    elif few:
        warnings.warn(
            f"only {plural(len(posterior), 'sample')}: what samples disagree about (epistemic) says little with fewer "
            f"than {FEW}; give more epochs",
            stacklevel=3,
        )
    if kept:
        return posterior
    own = Posterior(
        [dict(tensors) for tensors in found.bank],
        posterior.model,
        chains=posterior.chains,
        likelihood=posterior.likelihood,
        mean=posterior.mean,
        std=posterior.std,
        classes=posterior.classes,
        shape=found.manifest["data"]["shape"],
    )
    own.pilots = posterior.pilots
    return own
