"""The vital signs of a run: every number that the doctor looks at, gathered once from a run directory.

Whatever a run does not have (an optimiser has no temperature, a run of one sample no mixing, one that was evaluated on
nothing no scores) is NaN or None, and the doctor passes over it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atmc.common.errors import InputError
from atmc.diagnose import traces
from atmc.diagnose.collapse import TrainingFit, training_fit
from atmc.diagnose.convergence import (
    Mixing,
    PairGains,
    averaged_by_mode,
    gain_of_doubling,
    gain_of_pairs,
    mixing,
    mixing_of_values,
)
from atmc.diagnose.early_samples import LateGain, gain_of_late
from atmc.diagnose.sample_distances import cosine_distances, neighbour_ratio
from atmc.posterior.arrays import Floats
from atmc.posterior.calibration import CalibrationBins
from atmc.posterior.metrics import calibration_bins, ece_by_chance, predictive, summary
from atmc.recipe.settings import inertia, least_friction, sampler_class

if TYPE_CHECKING:
    from atmc.recipe.settings import Recipe
    from atmc.storage.run_directory import RunDir

NAN = float("nan")
NO_LEVEL = traces.Level(NAN, NAN, 0)
NO_TREND = traces.Trend(NAN, NAN, NAN, 0)


@dataclass(frozen=True)
class RunMeasurements:
    """One run, in numbers. Temperatures are ratios of measured to asked."""

    sampler: str
    status: str = "done"
    samples: int = 0
    chains: int = 1
    temperature: float = 1.0
    hottest: float = 1.0  # the temperature at which cycles begin, as a multiple of that where samples are taken
    explores: float = 0.0  # the share of each cycle that runs at T = 0
    augment: str = "none"
    friction: float = NAN  # D
    inertia: float = NAN  # mu
    follows: bool = True  # whether the thermostat's friction goes with the step size
    rollbacks: int = 0
    lr_scale: float = 1.0  # what rollbacks have left of the step size
    overshoot: float = NAN  # times that a step is too long to be stable, where it was far from it from the start
    stable_share: float = NAN  # of the step size that would be stable then
    damage: tuple[str, ...] = ()
    kinetic: traces.Level = NO_LEVEL  # after burn-in, over the time of the dynamics (at T, where cycles explore at 0)
    kinetic_at_samples: traces.Level = NO_LEVEL  # in the last part of every cycle
    kinetic_late: traces.Level = NO_LEVEL  # in the second half of the time after burn-in
    parameters: float = NAN  # how many, over which one reading of the kinetic temperature averages
    configurational: traces.Level = NO_LEVEL
    noise: traces.Level = NO_LEVEL  # along the gradient noise, after burn-in
    kick_excess: float = NAN  # share of examples that push harder than their friction balances; with noise_examples
    thermostat: tuple[float, float, float] = (NAN, NAN, NAN)  # quantiles of xi at 1 %, 50 %, 99 %, lately
    thermostat_trend: traces.Trend = NO_TREND  # of the median, after burn-in
    thermostat_top_trend: traces.Trend = NO_TREND  # of the 99 % quantile, the noisiest gradients
    silent: float = NAN  # share of parameters with xi >= D
    drift: traces.Trend = NO_TREND  # of the training loss, per cycle
    loss: float = NAN  # the training loss, lately
    training: TrainingFit | None = None  # on some training examples, beside guessing and the warm start
    distance: float = NAN  # median cosine distance between samples
    neighbours: float = NAN  # distance of neighbours over that of strangers
    split: str = ""
    classes: int = 0  # 0 where unknown
    guess: tuple[float, float] = (NAN, NAN)  # NLL and accuracy of the labels' own frequencies in that split
    modes: int | None = None  # where cycles give several samples: what mixing, doubling, pairs and late count
    mixing: Mixing | None = None
    scores: dict[str, Any] | None = None  # `metrics.summary`
    bins: CalibrationBins | None = None
    ece_by_chance: float = NAN
    doubling: tuple[float, float] = (NAN, NAN)
    pairs: PairGains | None = None  # with several chains
    late: LateGain | None = None  # the last quarter of the samples against all
    recipe: Recipe | None = None  # with the next two, for commands that can be pasted
    path: str = ""
    steps_per_epoch: float = NAN

    @property
    def unit(self) -> str:
        """What is to be independent: samples, or the modes of which a cycle gives several."""
        return "sample" if self.modes is None else "mode"

    @property
    def units(self) -> int:
        """How many of them there are."""
        return self.samples if self.modes is None else self.modes

    @property
    def regression(self) -> bool:
        """Whether numbers were predicted, as far as the run's rows say."""
        return self.training is not None and self.training.regression

    @property
    def samples_weights(self) -> bool:
        """Whether this is a sampler's run and not an optimiser's."""
        return self.sampler != "sgd"


def examine(run: RunDir) -> RunMeasurements:
    """Read a run directory; nothing in it is changed."""
    recipe = run.recipe
    rows = run.metrics()
    main = traces.settled(rows, recipe.schedule.settled_epochs)
    hot = traces.warmed(main) if recipe.schedule.explore_fraction else main
    ends = traces.cycle_ends(hot)
    drawn = [r for r in rows if r.get("event") == "sample"]
    back = [r for r in rows if r.get("event") == "rollback"]
    unstable = next((r for r in rows if r.get("event") == "unstable"), {})
    late = main[-max(1, len(main) // 4) :]
    section = recipe.sampler
    kind = sampler_class(section.name)
    thermostatted = kind is not None and kind.has_thermostat
    per_cycle = traces.loss_per_cycle(main)
    found = RunMeasurements(
        sampler=section.name,
        status=run.status,
        samples=len(run.bank),
        chains=recipe.chains,
        temperature=section.temperature,
        hottest=recipe.schedule.temperature_peak,
        explores=recipe.schedule.explore_fraction,
        augment=recipe.data.augment,
        friction=least_friction(section),
        inertia=inertia(section) if thermostatted else NAN,
        follows=section.thermostat_follows_step,
        rollbacks=len(back),
        lr_scale=min((float(r.get("lr_scale") or 1.0) for r in back), default=1.0),
        overshoot=_number(unstable.get("overshoot")),
        stable_share=_number(unstable.get("stable_share")),
        damage=(*run.damage(), *(str(r.get("what")) for r in rows if r.get("event") == "damage")),
        kinetic=traces.temperature_ratio(hot, by_time=True),
        kinetic_at_samples=traces.temperature_ratio(ends),
        kinetic_late=traces.temperature_ratio(traces.second_half(hot), by_time=True),
        configurational=traces.temperature_ratio(
            [{"temperature": section.temperature, **r} for r in drawn], "configurational_temperature"
        ),
        noise=traces.noise_ratio(hot),
        kick_excess=_mean(traces.column(hot, "kick_excess")),
        thermostat=tuple(_median(late, f"thermostat_q{q}") for q in ("01", "50", "99")),  # type: ignore[arg-type]
        thermostat_trend=traces.trend(traces.stretches(traces.over_chains(main, "thermostat_q50"))),
        thermostat_top_trend=traces.trend(traces.stretches(traces.over_chains(main, "thermostat_q99"))),
        silent=_median(drawn[-max(1, len(drawn) // 4) :], "silent_share"),
        drift=traces.trend(traces.stretches(per_cycle)),
        loss=float(np.median(per_cycle[-max(1, per_cycle.size // 4) :])) if per_cycle.size else NAN,
        training=training_fit(rows),
        recipe=recipe,
        path=str(run.path),
        steps_per_epoch=_steps_per_epoch(run),
    )
    if several := modes_of(run):
        found = replace(found, modes=len(set(several)))
    return _with_predictions(_with_distances(found, run), run) if found.samples else found


def _with_distances(found: RunMeasurements, run: RunDir) -> RunMeasurements:
    bank = run.bank
    found = replace(found, parameters=float(sum(tensor.numel() for tensor in bank[0].values())))
    if found.samples < 2:
        return found
    distances, chosen = cosine_distances(bank)
    upper = distances[np.triu_indices(len(chosen), k=1)]
    # Samples of one mode lie close together, as they should: then neighbours say nothing about the chain.
    ratio = NAN if found.modes is not None else neighbour_ratio(distances, [bank.chain_of(i) for i in chosen])
    return replace(found, distance=float(np.median(upper)), neighbours=ratio)


def modes_of(run: RunDir) -> list[tuple[int, int]] | None:
    """Chain and cycle of each sample, where cycles lead to modes and one of them has given several samples."""
    plan, bank = run.recipe.schedule, run.bank
    if plan.samples_per_cycle == 1 and plan.temperature_schedule != "explore":
        return None
    found = [(bank.chain_of(i), int(bank.meta(i).get("cycle", i))) for i in range(len(bank))]
    return found if len(set(found)) < len(found) else None


def _with_predictions(found: RunMeasurements, run: RunDir) -> RunMeasurements:
    splits = [s for s in ("validation", "test") if s in run.splits]
    if not splits:
        return found
    split = splits[0]
    probs = run.predictions(split).numpy()
    labels = stored_labels(run, split)
    bank = run.bank
    chains = [bank.chain_of(i) for i in range(len(bank))] if found.chains > 1 else None
    modes, owners = probs, chains
    if several := modes_of(run):
        # Samples of one cycle resemble each other, as they may: the questions are whether cycles and chains do.
        modes, own = averaged_by_mode(probs, *zip(*several, strict=True))
        owners = own if chains is not None else None
    if run.likelihood().task != "classification":
        many = len(modes) > 1 and bool(np.isfinite(probs).all())
        return replace(found, split=split, mixing=mixing_of_values(modes, labels, owners) if many else None)
    found = replace(found, split=split, mixing=mixing(modes, labels, owners) if len(modes) > 1 else None)
    if labels is None or len(labels) != probs.shape[1]:
        return found
    mean = predictive(probs)
    return replace(
        found,
        classes=int(probs.shape[2]),
        guess=_guess(labels),
        scores=summary(probs, labels),
        bins=calibration_bins(mean, labels),
        ece_by_chance=ece_by_chance(mean),
        doubling=gain_of_doubling(modes, labels),
        pairs=gain_of_pairs(modes, labels, owners) if owners is not None else None,
        late=gain_of_late(modes, labels, owners),
    )


def _guess(labels: Any) -> tuple[float, float]:
    """NLL and accuracy of a guess that knows how frequent each class is."""
    share = np.unique(np.asarray(labels), return_counts=True)[1] / len(labels)
    return float(-(share * np.log(share)).sum()), float(share.max())


def _steps_per_epoch(run: RunDir) -> float:
    examples = (run.manifest.get("data") or {}).get("examples")
    return float(examples) / run.recipe.data.batch_size if isinstance(examples, int) else NAN


def stored_labels(run: RunDir, split: str) -> Any:
    """Labels of a split, in the order of the stored predictions: as the run kept them, or (it may be older than that)
    from the data set itself; None where that is not at hand."""
    from atmc.engine.run_data import load_split

    kept = run.labels(split)
    if kept is not None:
        return kept.numpy()
    try:
        return load_split(run, split).labels.numpy()
    except (InputError, OSError, KeyError):
        return None


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else NAN


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else NAN


def _median(rows: Any, name: str) -> float:
    values = traces.column(rows, name)
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else NAN
