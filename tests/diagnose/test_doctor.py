"""The doctor: a healthy chain is called healthy, every illness is found, and a real run is read from its folder."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from atmc.diagnose.collapse import TrainingFit
from atmc.diagnose.convergence import PairGains, gain_of_doubling, mixing
from atmc.diagnose.doctor import doctor, examine
from atmc.diagnose.early_samples import LateGain, gain_of_late
from atmc.diagnose.finding import LEVELS, Advice, words
from atmc.diagnose.run_measurements import RunMeasurements, _with_predictions
from atmc.diagnose.sample_checks import whole_gap
from atmc.diagnose.traces import Level, Trend
from atmc.posterior import metrics
from atmc.recipe.settings import Recipe, SamplerSection, ScheduleSection, inertia, least_friction


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@cache
def well(seed: int = 0, draws: int = 20, examples: int = 400) -> RunMeasurements:
    """What independent samples of a calibrated posterior look like."""
    rng = np.random.default_rng(seed)
    probs = softmax(2 * rng.normal(size=(1, examples, 5)) + 0.7 * rng.normal(size=(draws, examples, 5)))
    mean = metrics.predictive(probs)
    labels = (rng.random((examples, 1)) > mean.cumsum(1)[:, :-1]).sum(1)
    return RunMeasurements(
        sampler="atmc",
        samples=draws,
        friction=105.4,
        inertia=1e-3,
        kinetic=Level(1.01, 0.01, 200),
        kinetic_at_samples=Level(1.0, 0.01, 40),
        configurational=Level(1.1, 0.2, draws),
        thermostat=(-20.0, 3.0, 40.0),
        thermostat_trend=Trend(0.0, 0.1, 0.6, 20),
        thermostat_top_trend=Trend(0.1, 0.2, 0.4, 20),
        silent=0.0,
        drift=Trend(0.001, 0.1, 0.5, 20),
        loss=0.3,
        distance=0.2,
        neighbours=0.98,
        split="validation",
        mixing=mixing(probs, labels, examples=20),
        scores=metrics.summary(probs, labels),
        bins=metrics.calibration_bins(mean, labels),
        ece_by_chance=metrics.ece_by_chance(mean),
        doubling=gain_of_doubling(probs, labels),
        late=gain_of_late(probs, labels),
        parameters=1000.0,
    )


def healthy(**changes: object) -> RunMeasurements:
    return replace(well(), **changes)  # type: ignore[arg-type]


def titles(vitals: RunMeasurements) -> list[str]:
    return [advice.title for advice in doctor(vitals)]


def find(vitals: RunMeasurements, title: str) -> Advice:
    return next(a for a in doctor(vitals) if title in a.title)


def test_a_healthy_chain_is_told_so() -> None:
    found = doctor(healthy())
    assert found[0].level == "ok"
    assert found[0].title == "This chain looks healthy"
    assert "20 samples" in found[0].evidence
    assert {a.level for a in found} <= {"ok", "note"}
    assert all(a.level in LEVELS and a.title and a.evidence for a in found)
    assert "healthy" in str(found[0])


def test_false_alarms_are_rare() -> None:
    """40 healthy chains: with p < 0.01 as the mark, three or more alarms have a probability below 0.01."""
    alarms = [doctor(well(seed, 16, 60))[0].level in ("warning", "problem") for seed in range(40)]
    assert sum(alarms) <= 2


@pytest.mark.parametrize(
    ("changes", "level", "title", "action"),
    [
        ({"kinetic_at_samples": Level(1.3, 0.02, 40)}, "warning", "hotter than asked", "halve sampler.lr"),
        ({"kinetic_at_samples": Level(20.0, 0.5, 40), "inertia": 1.0}, "problem", "hotter", "sampler.inertia = 0.001"),
        ({"kinetic": Level(1.3, 0.02, 40)}, "warning", "hotter than asked", "halve sampler.lr"),
        ({"kinetic": Level(0.8, 0.02, 40)}, "warning", "colder than asked", "data.batch_size"),
        # Six parameters read 1.3 ± 0.58 in equilibrium: that one can be either.
        ({"kinetic": Level(1.3, 0.4, 40), "parameters": 6.0}, "note", "Cannot tell whether the chain has", "longer"),
        # What a run far too hot looks like: it scatters as widely as it is hot.
        ({"kinetic": Level(501.0, 155.0, 14, 3.0), "parameters": np.nan}, "problem", "hotter than asked", "halve"),
        ({"kinetic": Level(6844.0, 1682.0, 14, 3.0)}, "problem", "hotter than asked", "halve sampler.lr"),
        ({"kinetic_at_samples": Level(3.67, 1.6, 14, 3.0)}, "problem", "hotter than asked", "halve sampler.lr"),
        ({"kinetic": Level(14.5, 2.3, 12, 2.0), "parameters": 6.0}, "problem", "hotter than asked", "halve sampler.lr"),
        ({"kinetic": Level(1.38, np.nan, 7)}, "warning", "hotter than asked", "halve sampler.lr"),
        (
            {"kinetic": Level(501.0, 155.0, 14, 3.0), "kinetic_late": Level(1.02, 0.02, 7)},
            "warning",
            "hotter than asked at first",
            "burn_in_epochs",
        ),
        ({"kinetic_at_samples": Level(0.8, 0.02, 40)}, "note", "cool as the step size falls", "data.batch_size"),
        ({"kinetic_at_samples": Level(0.5, 0.02, 40)}, "warning", "cool as the step size falls", "constant"),
        ({"kinetic_at_samples": Level(0.8, 0.02, 40), "follows": False}, "note", "cool as", "follows_step = true"),
        ({"kinetic_at_samples": Level(0.8, 0.02, 40), "inertia": 1.0}, "note", "cool as", "sampler.inertia = 0.001"),
        (
            {"kinetic": Level(1.3, 0.02, 40), "inertia": 1.0},
            "warning",
            "hotter than asked",
            "inertia = 0.001 instead of 1",
        ),
        ({"configurational": Level(0.45, 0.06, 14, 3.0)}, "note", "not yet in equilibrium", "burn_in"),
        ({"configurational": Level(-0.4, 0.05, 20)}, "note", "not yet in equilibrium", "burn_in"),
        ({"thermostat_trend": Trend(3.0, 0.9, 1e-5, 20)}, "note", "still on its way", "thermostat_init = 3"),
        (
            {"thermostat_trend": Trend(3.0, 0.9, 1e-5, 20), "kinetic": Level(1.3, 0.02, 40)},
            "warning",
            "still on its way",
            "thermostat_init = 3",
        ),
        # What a run of 1,000 epochs on CIFAR-10 did, at T = 0.02 with an inertia for T = 1.
        (
            {
                "temperature": 0.02,
                "thermostat": (-10.0, 1.4, 3700.0),
                "thermostat_top_trend": Trend(65.0, 0.99, 1e-9, 40),
                "kinetic_at_samples": Level(0.86, 0.01, 40),
            },
            "warning",
            "still on its way",
            "sampler.inertia = 2e-05",
        ),
        ({"hottest": 10.0}, "note", "not the plain Bayes posterior", "State it"),
        ({"explores": 0.6}, "note", "not the plain Bayes posterior", "State it"),
        (
            {"explores": 0.6, "kinetic": Level(0.5, 0.02, 40)},
            "problem",
            "colder than asked",
            "schedule.explore_fraction",
        ),
        ({"silent": 0.8}, "note", "exceeds the added noise", "larger batch"),
        ({"drift": Trend(-0.01, -0.8, 1e-4, 20)}, "warning", "still falling", "burn_in_epochs"),
        ({"drift": Trend(-0.006, -0.2, 0.18, 20)}, "note", "Cannot tell whether the training loss", "longer"),
        ({"drift": Trend(0.01, 0.8, 1e-4, 20)}, "warning", "is rising", "burn_in_epochs"),
        ({"distance": 1e-14}, "problem", "are the same network", "cycle_epochs"),
        ({"noise": Level(1.6, 0.1, 40, 5.0)}, "warning", "noise heats the directions", "speeds"),
        ({"noise": Level(16.5, 2.0, 40, 5.0)}, "warning", "noise heats the directions", "speeds"),
        ({"noise": Level(0.7, 0.02, 40, 5.0)}, "warning", "below their temperature", "speeds"),
        ({"noise": Level(1.7, 0.25, 40, 5.0)}, "note", "Cannot tell whether mini-batch noise", "longer"),
        ({"neighbours": 0.2}, "note", "close in weight space", "cycle_epochs"),
        ({"rollbacks": 2, "lr_scale": 0.25}, "warning", "diverged 2 times", "times 0.25"),
        ({"rollbacks": 3, "lr_scale": 0.125, "status": "diverged"}, "problem", "step size is too large", "sampler.lr"),
        ({"damage": ("samples/0003.safetensors: is torn",)}, "warning", "damaged", "again"),
        ({"status": "budget"}, "note", "not come to its end", "goes on"),
        ({"temperature": 0.1}, "note", "not the plain Bayes posterior", "beside every number"),
        ({"augment": "crop-flip"}, "note", "not the plain Bayes posterior", "beside every number"),
        ({"samples": 0, "scores": None, "mixing": None}, "problem", "no samples", "burn_in_epochs"),
        ({"samples": 3}, "note", "only 3 samples", "longer"),
        ({"samples": 3, "status": "budget"}, "note", "only 3 samples", "Let it finish"),
        ({"doubling": (0.2, 0.05), "status": "interrupted"}, "note", "More samples would still help", "Let it finish"),
        ({"mixing": None}, "note", "Cannot tell whether the chain mixes", "held-out"),
        ({"doubling": (0.2, 0.05)}, "note", "More samples would still help", "schedule.epochs"),
    ],
)
def test_each_illness_is_found(changes: dict[str, object], level: str, title: str, action: str) -> None:
    sick = healthy(**changes)
    found = find(sick, title)
    assert found.level == level
    assert action in found.action
    assert found.sure
    verdict = doctor(sick)[0]
    assert LEVELS.index(verdict.level) >= LEVELS.index(level if level != "note" else "ok")
    assert title not in " ".join(titles(healthy()))


def test_a_drifting_chain_and_disagreeing_chains_are_found() -> None:
    rng = np.random.default_rng(1)
    base = 2 * rng.normal(size=(1, 200, 5))
    direction = rng.normal(size=(1, 200, 5))
    drifting = softmax(base + np.linspace(0, 2, 20)[:, None, None] * direction + 0.1 * rng.normal(size=(20, 200, 5)))
    found = find(healthy(mixing=mixing(drifting)), "do not predict alike")
    assert found.level == "warning"
    assert found.sure in ("very likely", "almost certain")
    assert "worth about" in " ".join(titles(healthy(mixing=mixing(drifting))))
    offset = np.repeat([0.0, 1.0], 10)[:, None, None] * direction
    apart = softmax(base + offset + 0.5 * rng.normal(size=(20, 200, 5)))
    two = healthy(mixing=mixing(apart, chains=[0] * 10 + [1] * 10), chains=2)
    assert "chains" in find(two, "do not predict alike").title
    few = mixing(apart[[0, 1, 2, 3, 10, 11, 12, 13]], chains=[0] * 4 + [1] * 4)
    assert not np.isfinite(few.rhat_loss)
    assert "nan" not in str(doctor(healthy(mixing=replace(few, p_value=0.001), chains=2)))  # too short for an R-hat


def test_what_differs_too_little_to_matter_is_not_said_to_be_alike() -> None:
    """The same p-value warns where R-hat is large, and must not be called likeness where it is small."""
    small = replace(well().mixing, p_value=0.001, rhat_loss=1.05)
    found = find(healthy(mixing=small), "differ detectably, but too little to matter")
    assert found.level == "ok"
    assert "above 1.1 it matters" in found.evidence
    assert not any("predict alike" in title for title in titles(healthy(mixing=small)))
    assert "predict alike" in " ".join(titles(healthy(mixing=replace(small, p_value=0.3))))
    assert find(healthy(mixing=replace(small, rhat_loss=1.95)), "do not predict alike").level == "warning"


def test_a_few_samples_are_never_called_enough() -> None:
    few = find(healthy(samples=3), "Averaging helps")
    assert few.title == "Averaging helps"
    assert "cannot be told from 3 samples" in few.evidence
    assert find(healthy(samples=15, modes=5), "Averaging helps").title == "Averaging helps"
    assert "enough" in find(healthy(samples=8), "Averaging helps").title


def test_small_scores_keep_digits_that_count_and_say_whose_they_are() -> None:
    v = healthy()
    assert v.scores is not None
    tiny = {name: {**v.scores["single"], "nll": nll} for name, nll in
            (("mean_single", 0.00501), ("predictive", 0.00475), ("single", 0.00402))}  # fmt: skip
    sick = healthy(scores={**v.scores, **tiny}, doubling=(1e-5, 1e-5), late=None)
    found = find(sick, "Averaging helps")
    for said in ("0.00501 for one sample, the mean over all 20", "0.00402", "0.00475 for all together"):
        assert said in found.evidence, found.evidence
    assert "the last of them, the single sample of evaluate and report" in found.evidence
    assert "NLL 0.00501 for one sample on average, 0.00475" in doctor(sick)[0].evidence


def test_a_thermostat_that_moves_at_the_right_temperature_asks_for_no_burn_in() -> None:
    moves = {"thermostat": (-66.0, 14.0, 680.0), "thermostat_top_trend": Trend(9.0, 0.9, 5e-5, 20)}
    found = find(healthy(**moves), "still on its way")
    assert found.level == "note"
    assert found.action == ""
    assert "The kinetic temperature is right all the same (1.01 ± 0.01 times T)" in found.evidence
    for level in (Level(1.3, 0.02, 40), Level(np.nan, np.nan, 0)):
        assert "burn_in_epochs" in find(healthy(**moves, kinetic=level), "still on its way").action
    median = find(healthy(thermostat_trend=Trend(3.0, 0.9, 1e-5, 20)), "still on its way")
    assert "burn_in" not in median.action


def test_chains_that_keep_to_modes_of_their_own() -> None:
    found = find(healthy(chains=4, pairs=PairGains(0.042, 0.050, 0.001, 0.001)), "modes of its own")
    assert found.level == "note"
    assert "More chains" in found.action
    assert "0.0420" in found.evidence
    for alike in (PairGains(0.042, 0.050, 0.2, 0.001), PairGains(0.042, 0.043, 0.001, 0.001)):
        assert find(healthy(chains=4, pairs=alike), "No sign of chains that keep").level == "ok"
    assert "modes" not in " ".join(titles(healthy()))
    few = healthy(chains=4, pairs=PairGains(0.042, 0.050, 0.042, 1 / 24))
    assert "modes" not in " ".join(titles(few))  # 24 ways to deal eight samples prove nothing, in either direction


def test_few_modes_are_too_few_however_many_samples_they_gave() -> None:
    found = doctor(healthy(samples=15, modes=5))
    assert found[0].title == "Nothing wrong shows, but 5 modes cannot show much"
    assert "There are only 5 modes, of 15 samples" in titles(healthy(samples=15, modes=5))
    assert "15 samples of 5 modes" in found[0].evidence


def test_scores_that_tell_of_trouble() -> None:
    v = healthy()
    assert v.scores is not None
    average = v.scores["predictive"]["nll"]
    good = LateGain(5, average - 0.1, 0.1, 0.02, 0.002)
    assert find(healthy(late=good), "last samples alone").level == "warning"
    lucky = find(healthy(late=replace(good, p_value=0.028)), "Cannot tell whether the early samples do harm")
    assert "posterior[k:]" in lucky.action
    for chance in (replace(good, error=0.05), replace(good, ahead=0.01 * average, error=1e-4)):
        assert not any("early samples" in title or "last samples" in title for title in titles(healthy(late=chance)))
    same = {**v.scores, "mean_single": v.scores["predictive"], "single": v.scores["predictive"]}
    assert find(healthy(scores=same), "next to nothing").level == "note"


@pytest.mark.parametrize(("power", "says"), [(0.4, "overconfident"), (2.5, "underconfident")])
def test_calibration_is_judged(power: float, says: str) -> None:
    rng = np.random.default_rng(2)
    probs = softmax(2 * rng.normal(size=(2000, 5)))
    labels = (rng.random((2000, 1)) > probs.cumsum(1)[:, :-1]).sum(1)
    bins = metrics.calibration_bins(metrics.apply_temperature(probs, power), labels)
    assert find(healthy(bins=bins), says).level == "note"
    if says == "underconfident":
        learning = healthy(bins=bins, drift=Trend(-0.05, -0.9, 1e-5, 20))
        assert "falling loss first" in find(learning, says).action


def test_late_samples_are_compared_with_all_example_by_example() -> None:
    rng = np.random.default_rng(3)
    probs = softmax(rng.normal(size=(8, 50, 3)))
    labels = rng.integers(3, size=50)
    late = gain_of_late(probs, labels, [0, 1] * 4)  # the last of each chain
    assert late is not None
    assert late.samples == 2
    assert late.ahead == pytest.approx(metrics.nll(probs.mean(0), labels) - metrics.nll(probs[-2:].mean(0), labels))
    of = np.arange(50), labels
    gaps = np.log(probs[-2:].mean(0)[of]) - np.log(probs.mean(0)[of])
    assert late.error == pytest.approx(gaps.std(ddof=1) / np.sqrt(50))
    assert gain_of_late(probs, labels, [0] * 5 + [1] * 3) is None
    five = gain_of_late(probs[:5], labels)  # a quarter of five is two: one sample alone would hide what averaging gives
    assert five is not None
    assert five.samples == 2
    assert five.late == pytest.approx(metrics.nll(probs[3:5].mean(0), labels))
    # Samples that know more and more of the labels, and the same in any order.
    better = softmax(np.linspace(0, 2, 20)[:, None, None] * np.eye(3)[labels] + 0.1 * rng.normal(size=(20, 50, 3)))
    assert (found := gain_of_late(better, labels)) is not None
    assert found.ahead > 3 * found.error
    assert found.p_value <= 0.002
    shuffled = [gain_of_late(better[rng.permutation(20)], labels) for _ in range(40)]
    assert 0.2 < np.mean([one.p_value for one in shuffled if one is not None]) < 0.8


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"drift": Trend(-0.006, -0.2, 0.18, 20)}, "whether the training loss has settled"),
        ({"mixing": replace(well().mixing, p_value=0.028, rhat_loss=1.82)}, "second half of the chain predict alike"),
        ({"mixing": replace(well().mixing, p_value=0.3, rhat_loss=np.nan)}, "second half of the chain predict alike"),
        ({"mixing": None}, "whether the chain mixes"),
        ({"configurational": Level(0.45, 0.06, 14, 3.0)}, "whether all directions have been filled"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_not_called_healthy(changes: dict[str, object], doubt: str) -> None:
    """A large effect that may be chance proves neither illness nor health: no tick, no alarm."""
    found = doctor(healthy(**changes))
    assert found[0].level == "note"
    assert "cannot be called healthy" in found[0].title
    assert doubt in found[0].evidence
    ticks = [a.title for a in found if a.level == "ok"]
    assert not any(doubt.removeprefix("whether ") in title for title in ticks)
    assert len(found) == len(doctor(healthy())) + ("configurational" in changes)  # no more to read than before


def test_nobody_is_told_to_raise_a_temperature_of_one() -> None:
    v = healthy()
    assert v.scores is not None
    same = {**v.scores, "mean_single": v.scores["predictive"]}
    assert "towards 1" in find(healthy(scores=same, temperature=0.1), "next to nothing").action
    assert "towards 1" not in find(healthy(scores=same), "next to nothing").action
    over = guesses(16, 0.6, 0.1)
    assert "towards 1" in find(replace(over, temperature=0.1), "overconfident").action
    assert "towards 1" not in find(over, "overconfident").action


def test_an_optimiser_is_no_chain() -> None:
    found = doctor(RunMeasurements(sampler="sgd", samples=1))
    assert found[0].title.startswith("An optimiser's run")
    assert len(found) == 1


def test_words_and_noise() -> None:
    assert [words(p) for p in (0.001, 0.005, 0.03, 0.5, float("nan"))] == [
        "almost certain",
        "very likely",
        "likely",
        "not shown",
        "cannot tell",
    ]
    assert least_friction(SamplerSection(momentum=0.9, lr=1e-3)) == pytest.approx(105.36, abs=0.01)
    assert least_friction(SamplerSection(friction=7.0)) == 7.0
    assert np.isnan(least_friction(SamplerSection()))
    assert np.isnan(least_friction(SamplerSection(name="sgd", momentum=0.9)))
    assert inertia(SamplerSection(inertia=0.2)) == 0.2
    assert inertia(SamplerSection(friction=100.0, temperature=0.1)) == pytest.approx(9e-5)


def guesses(examples: int, sure: float, share: float) -> RunMeasurements:
    """A predictor that says the same confidence everywhere and is right in `share` of three-class examples."""
    probs = np.full((examples, 3), (1 - sure) / 2)
    probs[:, 0] = sure
    labels = (np.arange(examples) >= round(share * examples)).astype(int)
    return healthy(
        classes=3,
        scores=metrics.summary(np.stack([probs, probs]), labels),
        bins=metrics.calibration_bins(probs, labels),
        ece_by_chance=metrics.ece_by_chance(probs),
    )


def test_a_chain_that_has_learned_nothing_is_not_called_healthy() -> None:
    blind = guesses(16, 0.5, 3 / 16)
    assert find(blind, "hardly better than guessing").level == "warning"
    assert "healthy" not in doctor(blind)[0].title
    assert not any("guessing" in title for title in titles(guesses(16, 0.9, 15 / 16)))
    assert not any("guessing" in title for title in titles(healthy(classes=5)))
    assert not any("guessing" in title for title in titles(healthy())), "not where the classes are not known"


@pytest.mark.parametrize(("sure", "share", "says"), [(0.6, 0.1, "overconfident"), (0.4, 0.9, "underconfident")])
def test_a_gap_that_all_of_a_few_examples_share_is_seen(sure: float, share: float, says: str) -> None:
    """Sixteen examples make bins of two, whose intervals hold nearly anything."""
    assert "Over all" in find(guesses(16, sure, share), says).evidence
    assert find(guesses(16, 0.9, 15 / 16), "Confidence and accuracy agree").level == "ok"


def test_the_gap_over_all_examples_is_judged_by_the_scatter_of_calibrated_ones() -> None:
    """Of n examples with confidence c the calibrated hits have the variance n c (1 − c), and the gap is normal."""
    sure = np.full(400, 0.9)
    bins = metrics.calibration_bins(np.stack([sure, 1 - sure], 1), (np.arange(400) < 56).astype(int))
    gap, chance = whole_gap(bins)
    assert gap == pytest.approx(0.9 - 344 / 400)
    assert chance == pytest.approx(2 * norm.sf(gap / np.sqrt(0.9 * 0.1 / 400)))


def test_vital_signs_are_read_from_the_rows_they_are_of() -> None:
    """Ten cycles of steps of 4, 3, 2 and 1, at 1, 2, 3 and 4 times T, and at twice that in the first half of them."""
    log: list[dict[str, object]] = [
        {
            "event": "log",
            "phase": "main",
            "step": s,
            "epoch": 1.25 + s / 4,
            "cycle": s // 4,
            "lr": 4.0 - s % 4,
            "temperature": 0.5,
            "kinetic_temperature": 0.5 * (1 + s % 4) * (2 if s < 20 else 1),
            "loss": float(s),
            "thermostat_q01": -2.0,
            "thermostat_q50": 1.0,
            "thermostat_q99": float(s),
        }
        for s in range(40)
    ]
    early = log[0] | {"epoch": 0.5, "kinetic_temperature": 1e6}  # of the burn-in
    drawn = [{"event": "sample", "configurational_temperature": 0.75, "silent_share": 0.1 * k} for k in range(9)]
    back = [{"event": "rollback", "lr_scale": scale} for scale in (0.5, 0.25)]
    recipe = Recipe(
        sampler=SamplerSection(name="atmc", lr=0.1, temperature=0.5, friction=2.0),
        schedule=ScheduleSection(epochs=11, cycle_epochs=1, burn_in_epochs=1),
    )
    run: Any = SimpleNamespace(
        recipe=recipe,
        bank=[],
        status="done",
        damage=lambda: [],
        path="",
        manifest={},
        metrics=lambda: [early, *log, *drawn, *back],
    )
    found = examine(run)
    assert found.kinetic.mean == pytest.approx(2.0 * 1.5)  # Σ lr k / Σ lr = 20/10: by the time of the dynamics
    assert found.kinetic_late.mean == pytest.approx(2.0)
    assert found.kinetic_at_samples.mean == pytest.approx(4.0 * 1.5)
    assert found.configurational.mean == pytest.approx(1.5)
    assert found.thermostat == (-2.0, 1.0, 34.5)  # of the last quarter
    assert found.thermostat_trend.slope == 0.0
    assert found.thermostat_top_trend.slope > 0.0
    assert found.silent == pytest.approx(0.75)
    assert found.loss == 37.0  # the ends of the last two of ten cycles
    assert found.drift.slope == pytest.approx(4.0)
    assert (found.friction, found.temperature) == (2.0, 0.5)
    assert (found.rollbacks, found.lr_scale) == (2, 0.25)


def test_predictions_are_judged_on_held_out_examples_and_as_averages() -> None:
    """By the validation split where there is one; calibrated is to be the predictive, and not a sample."""
    rng = np.random.default_rng(11)
    stored = {split: softmax(2 * rng.normal(size=(4, 40, 3))) for split in ("test", "validation")}
    labels = rng.integers(3, size=40)
    run: Any = SimpleNamespace(
        recipe=Recipe(),
        bank=[{}] * 4,
        splits=("test", "validation"),
        predictions=lambda split: torch.from_numpy(stored[split]),
        labels=lambda split: torch.from_numpy(labels),
        likelihood=lambda: SimpleNamespace(task="classification"),
    )
    found = _with_predictions(RunMeasurements("atmc", samples=4), run)
    assert found.split == "validation"
    assert found.scores == metrics.summary(stored["validation"], labels)
    assert found.bins is not None
    expected = metrics.calibration_bins(stored["validation"].mean(0), labels)
    np.testing.assert_allclose(found.bins.confidence, expected.confidence)
    np.testing.assert_allclose(found.bins.accuracy, expected.accuracy)
    assert found.doubling == gain_of_doubling(stored["validation"], labels)
    assert found.classes == 3


def test_the_loss_of_a_regression_is_not_taken_as_a_share_of_itself() -> None:
    """It is −log of a density and may be about 0: "186 % of its present −0.0347" says nothing."""
    fit = TrainingFit(guess=1.0, warm=0.01, reached=0.01, accuracy=np.nan, usual=np.nan, regression=True)
    small = Trend(slope=-0.002, tau=-0.9, p_value=1e-4, points=10)
    steady = healthy(drift=small, loss=-0.0347, training=fit)
    said = find(steady, "The training loss has settled").evidence
    assert "changed by -0.018 nats; it is -0.0347 now" in said
    assert "%" not in said
    falling = healthy(drift=replace(small, slope=-0.05), loss=-0.0347, training=fit)
    assert find(falling, "still falling").level == "warning"
    assert "25% of it" in find(healthy(drift=replace(small, slope=-0.05), loss=1.8), "still falling").evidence


def test_there_is_one_calibration_number() -> None:
    """That of `atmc evaluate`, beside what chance alone would make it."""
    vitals = guesses(30, 0.9, 27 / 30)
    told = find(vitals, "Confidence and accuracy agree, as far as 30 examples tell")
    assert vitals.scores is not None
    assert f"The ECE is {vitals.scores['predictive']['ece']:.3f}; if it were calibrated" in told.evidence
    assert "chance alone would make about 0.044" in told.evidence  # √(2/π · 0.9 · 0.1/30)
