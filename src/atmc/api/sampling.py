"""The high-level API: `posterior = atmc.sample(model, (x, y), sampler="atmc", epochs=100, out="runs/mine")`."""

import copy
import dataclasses
import functools
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from atmc.api.arguments import (
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
from atmc.api.defaults import (
    CHEAP,
    CYCLES,
    LEAST,
    LONG,
    QUICK,
    is_free,
    largest_batch,
    learns_noise,
    mini_batch,
    noise_rank_of,
    steps_an_epoch,
    takes_all,
    wide_batches,
)
from atmc.api.likelihood_choice import default_noise, with_likelihood
from atmc.api.outcome import how_far, posterior_of, say_if_off, say_if_unscored, scored_samples
from atmc.api.pilot_scores import Pilot
from atmc.api.pilots import SHARE, check_auto, choose_temperature, narrows
from atmc.api.run_length import length_of, own_starts
from atmc.api.run_settings import (
    at_temperature,
    begun,
    check_longer,
    say_if_uncompiled,
    settings_of,
    source_of,
    start_of,
    target_of,
)
from atmc.api.step_speed import step_size_for, threads_for
from atmc.common.atomic_files import temporary_folder
from atmc.common.errors import InputError
from atmc.data import ImageData, OwnData
from atmc.engine import first_fit
from atmc.engine.features import with_features
from atmc.engine.processes import pick_device
from atmc.engine.progress import Progress, choose_progress
from atmc.engine.run_data import RunData, first_outputs
from atmc.engine.runner import run
from atmc.nn.parts import fixed_part, names_of, with_only
from atmc.nn.several_inputs import taking
from atmc.nn.strided import without_crash_
from atmc.recipe.build import build_likelihood, start_weights
from atmc.recipe.settings import (
    ModelSection,
    Recipe,
    TargetSection,
)
from atmc.recipe.toml_files import override_words
from atmc.recipe.validation import check_recipe
from atmc.storage.manifest import Manifest
from atmc.target.likelihoods import LocationScale, OwnLikelihood, is_law, own_likelihood

if TYPE_CHECKING:
    from atmc.nn.parts import Only
    from atmc.posterior import Posterior
    from atmc.target.priors import PriorRule


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
            step on all the data is quick; for a regression 20,000 at least, and 10,000 with mini-batches; for classes
            as many steps as a minute on one core has, and 100 epochs at least (`atmc.api.run_length`).
        out: the run directory, where the run is kept and can be gone on with, also with more epochs; without one it is
            kept in memory only.
        test: held-out data to evaluate every sample on; a run that is gone on with needs it again.
        prior: a rule of `atmc.priors` or its name; the paper's for ResNet++. For other networks "gaussian-limited" for
            classes: Normal(0, 1), on weights at most Normal(0, 16/fan-in), wider below T = 1. Normal(0, 1) for
            regressions, and Normal(0, 1/fan-in) for those whose targets are standardised.
        likelihood: one of `atmc.likelihoods`, or its name; from the labels if not given. Whole numbers are classes.
            Other labels are a regression with unknown noise, whose targets are standardised inside: "input-noise",
            Student's t with a scale that depends on the input; "learned-noise", one σ, where no linear layer ends the
            network; "heteroscedastic" (two outputs a target) and "student-t" are others. Or any object of yours with
            `nll(outputs, y)` and, for predictions, `predict(outputs)` (`atmc.target.likelihoods.own`).
        batch_size: examples of a step, used as given. Without it a step uses all data where that is cheap. Elsewhere,
            for networks up to 200,000 parameters, short pilots let the batch grow until its noise leaves the law as
            it is (`atmc.engine.batch_growth`).
        temperature: T, 1 (the Bayes posterior) if not given. "auto" holds out a fifth of the data, tries several T (for
            classes also a likelihood and a prior) in short pilots that together cost less than the run, prints one
            table, and goes on with the best on all data (`posterior.pilots`).
        chains: how many to run: 1, or up to 10 for classes without `epochs`. The first begins at the weights of
            `model`, the others near them, with noise of a tenth of each tensor's root mean square.
        start: "fresh" draws new weights for every chain instead (by the layers' own `reset_parameters`), which finds
            more modes; that is the default where `chains` is not given and the weights are still those that the layers
            drew (`atmc.nn.untrained`). Parameters that are not sampled (`requires_grad=False`) are never touched.
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
    source = source_of(sampler, recipe)
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
        and takes_all(model, train, epochs, out, overrides)
    )
    each = steps_an_epoch(len(train))
    plan, resumed = None, out is not None and Manifest.exists(Path(out))
    if epochs is None and batch_size is None and mine is None:
        plan = length_of(source, model, train, likelihood, out, overrides)
        if not resumed and own_starts(plan, model, start, only, chains):
            start = "fresh"
    quick = few and epochs is None and work(model, train) * len(train) <= QUICK
    began = time.monotonic()
    pilots: list[Pilot] = []
    if isinstance(temperature, str):
        check_auto(temperature, source)
        temperature = None
        if not resumed:  # a run that was begun keeps what it chose
            how: dict[str, Any] = {"sampler": source, "seed": seed, "device": device}
            how |= {"likelihood": likelihood, "prior": prior, "start": start, "only": only, "progress": None}
            how["time_budget"] = None if time_budget is None else time_budget / (2 * SHARE)
            length = epochs if epochs is not None else LONG // each if quick else 100
            usual = default_noise(model, train) if train.labels.is_floating_point() else ""
            first = with_likelihood(TargetSection(), likelihood, train.labels, usual).likelihood
            fixed = likelihood is not None or first != "categorical"
            teller = choose_progress() if progress == "auto" else progress or Progress()
            draw = functools.partial(sample, model, **how)
            narrow = prior is None and "target.prior" not in " ".join(overrides) and narrows(model)
            pilots = choose_temperature(draw, train, length, first, fixed, batch_size, teller, narrow, plan, overrides)
            temperature, prior = pilots[0].temperature, pilots[0].prior or prior
            if pilots[0].prior_scale is not None:
                overrides = [*overrides, f"target.prior_scale={pilots[0].prior_scale}"]
            likelihood = likelihood if fixed else pilots[0].likelihood
    noisy = learns_noise(likelihood, train)
    if plan is not None:
        batch_size, epochs, overrides = plan.batch, plan.epochs, [*plan.overrides, *overrides]
        chains = plan.chains if chains is None else chains
    elif few:
        steps = LEAST if noisy and work(model, train) * len(train) <= CHEAP else 0
        steps = LONG if quick else max(100 * each, steps) if epochs is None else each * epochs
        batch_size, epochs = len(train), steps
        check_longer(out, epochs, each)
    elif noisy and batch_size is None and is_free(source, train, out, overrides):
        batch_size, epochs = wide_batches(work(model, train), len(train), epochs)
    elif isinstance(source, str) and batch_size is None and any(word.startswith(CYCLES) for word in overrides):
        batch_size = mini_batch(len(train))
    past = begun(out, source, epochs) if isinstance(source, str) else None
    part = model if only is None else with_only(model, names_of(model, only))
    rank = noise_rank_of(source, part, train, batch_size)
    settings = settings_of(past or source, train, epochs, overrides, noise_rank=rank, batch=batch_size)
    named = not isinstance(source, Recipe)
    section, kind = target_of(settings, model, train, prior, likelihood, named, temperature)
    guessed = likelihood is None and section.likelihood != settings.target.likelihood
    law = build_likelihood(dataclasses.replace(settings, target=section), mine)
    if isinstance(law, OwnLikelihood) and law.law is None:
        raise InputError(f"this run was begun with {law.name}, a likelihood of your own: pass it as likelihood=")
    chosen = settings.model.only if only is None else names_of(model, only)
    own = with_only(model, chosen) if chosen else copy.deepcopy(model)
    own = without_crash_(law.network(own) if hasattr(law, "network") else own)  # with the noise, if that is sampled too
    check_sets(own, given, law, guessed)
    if not resumed:  # a run that was begun goes on as it was
        check_sizes(given)
    augment: Any = "own" if isinstance(train, OwnData) else settings.data.augment
    if settings.sampler.name != "sgd":
        check_layers(own, train)
    rest = fixed_part(own)
    batch = settings.data.batch_size if batch_size is None else batch_size
    begin = ModelSection(name="custom", start=start_of(start, settings), only=chosen)
    place = device or settings.run.device
    if chosen and augment == "none":
        own, given = with_features(own, given, rest, pick_device(place))
        train = given.train if isinstance(given.train, ImageData) else whole
    threads = threads_for(settings, own, train, batch, place, out)
    teller = choose_progress() if progress == "auto" else progress or Progress()
    if isinstance(source, str) and past is None and source != "sgd":
        about = dataclasses.replace(
            settings,
            target=section,
            model=begin,
            run=dataclasses.replace(settings.run, threads=threads),
            sampler=at_temperature(settings.sampler, temperature),
        )
        walker = start_weights(own, about, 0)
        largest = 0 if batch_size is not None else largest_batch(about, len(train), overrides)
        found = step_size_for(walker, train, about, kind, batch, pick_device(place), teller, law, largest)
        if found.choice is not None:
            batch = batch_size = found.choice.batch
            teller.note(found.choice.said)
            if found.choice.off:
                warnings.warn(found.choice.said, stacklevel=2)
            rank = noise_rank_of(source, part, train, batch_size)
            threads = threads_for(settings, own, train, batch, place, out)
        fit = first_fit.steps_of(own, len(train)) if isinstance(law, LocationScale) else 0
        settings = settings_of(source, train, epochs, overrides, found, rank, fit, batch_size)
    settings = dataclasses.replace(
        settings,
        chains=settings.chains if chains is None else chains,
        seed=settings.seed if seed is None else seed,
        target=section,
        model=begin,
        data=dataclasses.replace(settings.data, name=whole.name, batch_size=batch, augment=augment),
        sampler=at_temperature(settings.sampler, temperature),
        run=dataclasses.replace(settings.run, device=place, threads=threads, evaluate=list(given.evaluate)),
    )
    check_recipe(settings)
    say_if_uncompiled(settings, source, overrides)
    with temporary_folder() if out is None else nullcontext(str(out)) as folder, torch.enable_grad():
        scored = None if out is None or "test" in given.evaluate else scored_samples(Path(out))
        left = time_budget  # less what the pilots took, and they took half of it at most
        if time_budget is not None and pilots:
            left = max(0.1 * time_budget, time_budget - (time.monotonic() - began))
        rows = [pilot.to_dict() for pilot in pilots]
        ended = run(
            settings, folder, left, teller, model=own, data=given, prior=kind, pilots=rows, fixed=rest, likelihood=mine
        )
        reached = how_far(settings, len(train), ended)
        posterior = posterior_of(Path(folder), model, out is not None, ended, reached, mine)
        say_if_off(Path(folder), out is not None)
        if scored is not None:
            say_if_unscored(Path(folder), scored)
        return posterior
