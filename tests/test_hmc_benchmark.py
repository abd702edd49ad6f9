"""`benchmarks/hmc_benchmark.py`: its rows are runs of the stated length, and its scores mean what they say."""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names

import hmc_benchmark  # noqa: E402
import hmc_mixing  # noqa: E402
import hmc_scores  # noqa: E402
import hmc_small  # noqa: E402
from atmc.engine.schedule import make_schedule  # noqa: E402
from atmc.posterior.uncertainty import from_probs  # noqa: E402
from atmc.recipe.validation import check_recipe  # noqa: E402


@pytest.mark.parametrize("name", hmc_benchmark.ROWS)
def test_a_row_has_its_samples_and_its_gradients(name: str) -> None:
    for steps, samples in ((500_000, 100), (100_000, 20)):
        recipe = check_recipe(hmc_benchmark.recipe_of(name, 0, steps, "bf16", False))
        plan = make_schedule(recipe, hmc_benchmark.TRAIN)
        burnt = math.ceil(recipe.schedule.warm_start_epochs / 31.25 - 1e-9)
        assert len(plan.sample_after) * recipe.chains == samples - burnt
        short = 80 if recipe.schedule.warm_start_epochs else 0  # which is in whole epochs
        assert plan.sample_after[-1] * recipe.chains * recipe.data.batch_size == 256 * (steps - short)


def test_ambiguity_is_that_of_the_published_rows() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 40, 3))
    labels = rng.integers(3, size=40)
    probs = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    found = hmc_scores.curve(probs.astype(np.float32), labels)

    def nll(p: np.ndarray) -> float:
        return float(-np.log(p[np.arange(40), labels]).mean())

    merged = np.exp(logits.mean(0))  # logits averaged
    expected = np.mean([nll(p) for p in probs]) - nll(merged / merged.sum(1, keepdims=True))
    assert found["ambiguity"][-1] == pytest.approx(expected, abs=1e-4)
    assert found["ambiguity"][0] == pytest.approx(0.0, abs=1e-5)
    assert found["nll"][-1] == pytest.approx(nll(probs.mean(0)), abs=1e-4)
    assert found["error"][2] == pytest.approx((probs[:3].mean(0).argmax(1) != labels).mean(), abs=1e-5)
    assert found["mutual_information"][-1] == pytest.approx(float(from_probs(probs).epistemic.mean()), abs=1e-4)


def test_autocorrelation_finds_the_one_of_an_autoregression() -> None:
    rng = np.random.default_rng(0)
    x = np.zeros((200, 400))
    for t in range(1, 200):
        x[t] = 0.8 * x[t - 1] + rng.normal(size=400)
    found = hmc_scores.autocorrelation(x[50:])
    assert found["1"] == pytest.approx(0.8, abs=0.03)
    assert found["5"] == pytest.approx(0.8**5, abs=0.06)
    assert abs(hmc_scores.autocorrelation(rng.normal(size=(100, 400)))["1"]) < 0.02


def test_a_row_stops_in_time_and_resumes(tmp_path: Path) -> None:
    options = argparse.Namespace(
        steps=100_000, precision="bf16", dry_run=True, runs=tmp_path / "runs", out=tmp_path, keep=True, time_budget=0.0
    )
    hmc_benchmark.measure("atmc", 1, options)
    assert not (tmp_path / "atmc-1.json").exists()
    options.time_budget = None
    hmc_benchmark.measure("atmc", 1, options)
    row = json.loads((tmp_path / "atmc-1.json").read_text())
    kept = np.load(tmp_path / "atmc-1.npz")
    assert (row["status"], row["samples"], row["steps"]) == ("done", 12, 120)
    assert kept["test_probs"].shape == (12, 128, 10)
    again = hmc_scores.curve(kept["test_probs"].astype(np.float32), kept["test_labels"])
    assert again["nll"][-1] == pytest.approx(row["test"]["average"]["nll"], abs=1e-3)
    layers = row["layers"]
    heats = [layer["kinetic"] for name, layer in layers.items() if name.endswith("conv.weight")]
    assert heats
    assert all(0.05 < heat < 2.0 for heat in heats)  # momenta start at 0, and the run is short
    assert set(layers) == set(kept["tensors"])
    assert (kept["rms"].max(0) < 0.1 + 2 * kept["rms"].min(0)).all()  # each column is one tensor, in every sample


def test_seeds_are_chains_of_one_posterior(tmp_path: Path) -> None:
    """Two seeds that agree, and two whose predictions lie apart; the longer one is cut."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=60)
    for name, apart in (("near", 0.0), ("far", 2.0)):
        for seed, samples in ((0, 50), (1, 40)):
            means = rng.dirichlet(np.ones(3), size=60) if apart else np.eye(3)[labels] * 0.7 + 0.1
            traces = rng.normal(size=(samples, 60)) + apart * seed - 5.0
            kept = {f"{split}_mean": means.astype(np.float16) for split in ("validation", "test")}
            kept |= {f"{split}_labels": labels for split in ("validation", "test")}
            projections = rng.normal(size=(samples, 2, 4))
            more = {"chains": np.zeros(samples, int), "tensors": np.array(["a", "b"]), "projections": projections}
            np.savez(tmp_path / f"{name}-{seed}.npz", traces=traces, **kept, **more)
    chains = np.array([0, 1, 0, 1, 0, 1])
    assert chains[hmc_mixing._first(chains, 2)].tolist() == [0, 1, 0, 1]
    near, far = (hmc_mixing.of_row(sorted(tmp_path.glob(f"{name}-*.npz"))) for name in ("near", "far"))
    assert (near["row"], near["seeds"], near["chains"], near["draws"]) == ("near", 2, 2, 32)
    assert near["rhat_median"] < 1.1
    assert near["ess_median"] > 30
    assert near["validation"]["agreement"] == 1.0
    assert near["test"]["nll"] == pytest.approx(-math.log(0.8), abs=1e-3)
    assert far["rhat_median"] > 1.3
    assert far["validation"]["agreement"] < 0.7


def test_scores_of_the_small_posterior() -> None:
    labels = torch.tensor([0, 1])
    sure = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    same = hmc_small.scores(torch.stack([sure, sure]), labels)
    assert same["ambiguity"] == pytest.approx(0.0, abs=1e-6)
    assert same["nll"] == pytest.approx(same["nll_alone"]) == pytest.approx(-math.log(0.72) / 2)
    apart = hmc_small.scores(torch.stack([sure, sure.flip(1)]), labels)
    assert apart["nll"] == pytest.approx(math.log(2), rel=1e-6)
    # Two samples that mirror each other have a uniform geometric mean; K/(K − 1) is 2.
    assert apart["ambiguity"] == pytest.approx(2 * (apart["nll_alone"] - math.log(2)), rel=1e-5)


def test_a_row_of_the_small_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        hmc_small, "ROWS", {"short": hmc_small.Row(0.05, 16, 16, importance=True, noise_kronecker=True)}
    )
    monkeypatch.setattr(hmc_small, "UNITS", 3)
    monkeypatch.setattr(hmc_small, "BURN_IN", 1)
    row = hmc_small.chain("short")
    assert (row["samples"], row["steps"], row["temperature"]) == (2, 60, 1.0)
    assert row["overshoot"] == pytest.approx(row["curvature"] * 0.05**2)
    assert all(math.isfinite(row[key]) for key in ("training_loss", "nll", "noise_temperature", "kinetic_temperature"))
