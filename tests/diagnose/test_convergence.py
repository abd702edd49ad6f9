"""R-hat and ESS against arviz, the permutation test's level and power, extrapolation, distances."""

from __future__ import annotations

import itertools
from itertools import combinations

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats
from scipy.spatial.distance import cdist

from atmc.diagnose.convergence import (
    PairGains,
    averaged_by_mode,
    by_chain,
    ess,
    exchangeability_test,
    gain_of_doubling,
    gain_of_pairs,
    mixing,
    mixing_of_values,
    rhat,
)
from atmc.diagnose.sample_distances import cosine_distances, distance_by_lag, neighbour_ratio
from atmc.posterior import metrics


def autoregressive(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> np.ndarray:
    noise = rng.normal(size=shape)
    out = noise.copy()
    for t in range(1, shape[-1]):
        out[..., t] = rho * out[..., t - 1] + np.sqrt(1 - rho**2) * noise[..., t]
    return out


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("chains", "draws"), [(2, 8), (4, 17), (3, 100)])
def test_rhat_and_ess_are_arviz(chains: int, draws: int) -> None:
    x = autoregressive(np.random.default_rng(0), (20, chains, draws), 0.5)
    x[0] += np.arange(chains)[:, None]  # one quantity on which chains disagree
    np.testing.assert_allclose(rhat(x), array_stats.rhat(x, method="rank"), rtol=1e-12)
    np.testing.assert_allclose(ess(x), array_stats.ess(x, method="bulk"), rtol=1e-12)


def test_one_chain_is_compared_with_itself() -> None:
    rng = np.random.default_rng(1)
    still, moving = rng.normal(size=(300, 1, 40)), rng.normal(size=(300, 1, 40)) + np.linspace(0, 3, 40)
    assert np.median(rhat(still)) < 1.02
    assert np.median(rhat(moving)) > 1.3
    assert np.median(ess(autoregressive(rng, (300, 1, 200), 0.9))) < 0.15 * 200
    assert np.median(ess(rng.normal(size=(300, 1, 200)))) > 0.7 * 200


def test_a_change_of_spread_alone_is_seen() -> None:
    x = np.random.default_rng(2).normal(size=(200, 2, 60))
    x[:, 1] *= 5.0
    assert np.median(rhat(x)) > 1.2


def test_too_few_or_constant_is_not_a_number() -> None:
    x = np.random.default_rng(3).normal(size=(2, 1, 7))
    assert np.isnan(rhat(x)).all()
    assert np.isfinite(ess(x)).all()
    assert np.isnan(ess(x[..., :3])).all()
    same = np.ones((1, 2, 20))
    assert np.isnan(rhat(same)).all()
    assert np.isnan(ess(same)).all()
    with pytest.raises(ValueError, match="diverged"):
        rhat(np.full((1, 1, 20), np.nan))
    with pytest.raises(ValueError, match="chains, draws"):
        rhat(np.ones(5))


def test_the_exchangeability_test_has_its_level() -> None:
    """Under the hypothesis, with strongly dependent quantities, p is uniform: 5 % below 0.05."""
    rng = np.random.default_rng(4)
    found = []
    for i in range(200):
        common = rng.normal(size=(1, 1, 16))
        found.append(exchangeability_test(common + 0.5 * rng.normal(size=(30, 1, 16)), orders=99, seed=i))
    # 200 trials: the number below 0.05 is binomial with standard deviation 3.1 around 10.
    assert np.sum(np.array(found) <= 0.05) <= 20
    assert 0.4 < np.mean(found) < 0.6


def test_the_exchangeability_test_has_power() -> None:
    rng = np.random.default_rng(5)
    drift = rng.normal(size=(50, 1, 17)) + np.linspace(0, 2, 17)
    apart = rng.normal(size=(50, 2, 8)) + np.array([[0.0], [1.0]])
    assert exchangeability_test(drift) < 0.01
    assert exchangeability_test(apart) < 0.01
    assert exchangeability_test(drift, orders=99) == 0.01  # the order seen is one of a hundred: never 0
    assert exchangeability_test(rng.normal(size=(50, 1, 17))) > 0.01
    assert exchangeability_test(drift[..., [0, 5, 10, 16]]) > 0.2  # four samples can prove nothing
    assert np.isnan(exchangeability_test(drift[..., :3]))


def test_samples_are_sorted_into_chains() -> None:
    values = np.arange(7.0)
    assert by_chain(values, None).tolist() == [[0, 1, 2, 3, 4, 5, 6]]
    assert by_chain(values, [0, 1, 0, 1, 0, 1, 1]).tolist() == [[0, 2, 4], [3, 5, 6]]
    with pytest.raises(ValueError, match="chain numbers"):
        by_chain(values, [0, 1])


def test_mixing_of_predictions() -> None:
    rng = np.random.default_rng(6)
    base = rng.normal(size=(1, 60, 4)) * 2
    steady = softmax(base + 0.5 * rng.normal(size=(20, 60, 4)))
    labels = steady.mean(0).argmax(-1)
    found = mixing(steady, labels)
    assert (found.chains, found.draws, found.samples) == (1, 20, 20)
    expected = [metrics.nll(p, labels) for p in steady]
    np.testing.assert_allclose(found.loss[0], expected, rtol=1e-12)
    assert np.nanmedian(found.rhat) < 1.1
    assert found.p_value > 0.01
    assert np.nanmedian(found.ess) > 10
    unlabelled = mixing(steady)  # the predictive's own labels, which here are the labels
    assert unlabelled.rhat_loss == found.rhat_loss
    drifting = softmax(base + np.linspace(0, 2, 20)[:, None, None] * rng.normal(size=(1, 60, 4)))
    assert mixing(drifting, labels).p_value < 0.01
    apart = np.concatenate(
        [steady[:10], softmax(base + rng.normal(size=(1, 60, 4)) + 0.3 * rng.normal(size=(10, 60, 4)))]
    )
    two = mixing(apart, labels, chains=[0] * 10 + [1] * 10)
    assert two.chains == 2
    assert np.nanmedian(two.rhat) > 1.2


def test_one_sample_has_no_mixing() -> None:
    p = softmax(np.random.default_rng(7).normal(size=(1, 10, 3)))
    found = mixing(p, np.zeros(10, dtype=int))
    assert np.isnan(found.rhat_loss)
    assert np.isnan(found.p_value)


def test_gain_of_doubling_predicts_the_gain() -> None:
    rng = np.random.default_rng(8)
    base = rng.normal(size=(1, 400, 4)) * 1.5
    many = softmax(base + rng.normal(size=(64, 400, 4)))
    labels = np.array([rng.choice(4, p=row) for row in many.mean(0)])
    estimate, spread = gain_of_doubling(many[:16], labels, halves=60)
    actual = metrics.nll(many[:16].mean(0), labels) - np.mean(
        [metrics.nll(many[rng.permutation(64)[:32]].mean(0), labels) for _ in range(30)]
    )
    assert estimate > 0
    assert estimate == pytest.approx(actual, abs=3 * spread + 0.003)
    same = np.repeat(many[:1], 6, axis=0)
    assert gain_of_doubling(same, labels)[0] == pytest.approx(0.0, abs=1e-12)
    assert np.isnan(gain_of_doubling(many[:1], labels)[0])


@pytest.mark.parametrize("total", [2, 3, 5])
def test_gain_of_doubling_is_that_of_the_one_over_k_law(total: int) -> None:
    """b from all subsets of ⌊K/2⌋ samples, NLL = NLL(∞) + b/k: doubling K gains b/2K, for odd K too.

    Samples that are shifts of each other are equally good, so that for two and three there is no chance in it; for five
    the mean over 4,000 random pairs is within five standard errors (false alarms: 6·10⁻⁷).
    """
    own = np.linspace(0.2, 0.8, total)
    shifted = np.stack([np.roll(own, k) for k in range(total)])  # p of the label: [samples, examples]
    probs, labels, few = np.stack([shifted, 1 - shifted], axis=-1), np.zeros(total, dtype=int), total // 2
    losses = [-np.log(shifted[list(some)].mean(0)).mean() for some in combinations(range(total), few)]
    b = (np.mean(losses) + np.log(own.mean())) / (1 / few - 1 / total)
    found, spread = gain_of_doubling(probs, labels, halves=4000 if few > 1 else 3)
    assert found == pytest.approx(b / (2 * total), abs=5 * spread / np.sqrt(4000) + 1e-12)


def chains_apart(
    own: float, chains: int = 4, draws: int = 5, seed: int = 9
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Samples whose logits scatter around their chain's, which lie `own` away from each other; calibrated labels."""
    rng = np.random.default_rng(seed)
    base, place = 1.5 * rng.normal(size=(1, 1, 500, 4)), own * rng.normal(size=(1, chains, 500, 4))
    probs = softmax(base + place + rng.normal(size=(draws, chains, 500, 4))).reshape(-1, 500, 4)
    labels = np.array([rng.choice(4, p=row) for row in probs.mean(0)])
    return probs, labels, list(range(chains)) * draws


def test_pairs_of_two_chains_gain_more_where_chains_lie_apart() -> None:
    probs, labels, chains = chains_apart(own=1.0)
    found = gain_of_pairs(probs, labels, chains)
    assert found is not None
    pairs = [(i, j) for i in range(len(probs)) for j in range(i)]
    gains = {
        pair: np.mean([metrics.nll(probs[k], labels) for k in pair]) - metrics.nll(probs[list(pair)].mean(0), labels)
        for pair in pairs
    }
    assert found.one == pytest.approx(np.mean([gains[i, j] for i, j in pairs if chains[i] == chains[j]]), rel=1e-9)
    assert found.two == pytest.approx(np.mean([gains[i, j] for i, j in pairs if chains[i] != chains[j]]), rel=1e-9)
    assert found.more > 0.3
    assert found.p_value == 0.001


def test_pairs_of_chains_that_mix_gain_alike() -> None:
    """By chance one run in a hundred is called different at 0.01."""
    found = [gain_of_pairs(*chains_apart(own=0.0, seed=seed), orders=199) for seed in range(30)]
    assert sum(f is not None and f.p_value <= 0.01 for f in found) <= 3
    assert abs(np.mean([f.more for f in found if f is not None])) < 0.02


def test_that_samples_get_better_with_age_says_nothing_of_chains() -> None:
    """Two samples of one chain are never of the same age: where that matters, dealing regardless of it misleads."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(100 + seed)
        base, old = 1.5 * rng.normal(size=(1, 1, 300, 4)), 3.0 * rng.normal(size=(2, 1, 300, 4))
        probs = softmax(base + old + 0.5 * rng.normal(size=(2, 5, 300, 4))).reshape(-1, 300, 4)
        labels = np.array([rng.choice(4, p=row) for row in probs.mean(0)])
        found.append(gain_of_pairs(probs, labels, [0, 1, 2, 3, 4] * 2, orders=199))
    values = np.array([f.p_value for f in found if f is not None])
    assert abs(values.mean() - 0.5) < 0.15  # above .85 without exception if dealt regardless of age
    assert np.mean(values <= 0.2) > 0.02


def test_what_another_chain_brings_is_a_share_of_what_the_same_one_does() -> None:
    assert PairGains(one=0.1, two=0.3, p_value=0.5, least=0.1).more == pytest.approx(2.0)
    assert np.isnan(PairGains(one=0.0, two=0.3, p_value=0.5, least=0.1).more)


def test_pairs_need_two_chains_and_two_samples_of_one() -> None:
    probs, labels, _ = chains_apart(own=0.0, chains=2, draws=2)
    assert gain_of_pairs(probs, labels, [0, 0, 0, 0]) is None
    assert gain_of_pairs(probs, labels, [0, 1, 2, 3]) is None
    with pytest.raises(ValueError, match="chain numbers"):
        gain_of_pairs(probs, labels, [0, 1])
    found = gain_of_pairs(probs, labels, [0, 1, 0, 1])
    assert found is not None
    assert found.p_value > 0.2  # two ways to deal out two pairs prove nothing
    assert found.least == 1 / 2
    probs, labels, chains = chains_apart(own=3.0, chains=4, draws=2)  # as far apart as can be
    far = gain_of_pairs(probs, labels, chains)
    assert far is not None
    assert far.least == 1 / 24
    assert far.p_value == pytest.approx(far.least, abs=0.02)


@pytest.mark.parametrize(
    "owners", [[0, 1, 0, 1], [0, 1, 0, 1, 0], [0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2, 0, 1, 0]]
)
def test_the_least_p_value_counts_the_ways_to_deal_samples_out(owners: list[int]) -> None:
    """By dealing them in every way: chains may differ in how many samples they have."""
    age = [owners[:place].count(chain) for place, chain in enumerate(owners)]
    peers = [[i for i, years in enumerate(age) if years == a] for a in range(max(age) + 1)]
    found = set()
    for dealt in itertools.product(*(itertools.permutations([owners[i] for i in places]) for places in peers)):
        chain_of = {
            i: chain
            for places, chains in zip(peers, dealt, strict=True)
            for i, chain in zip(places, chains, strict=True)
        }
        found.add(frozenset(frozenset(i for i in chain_of if chain_of[i] == chain) for chain in set(owners)))
    probs, labels, _ = chains_apart(own=1.0, chains=len(owners), draws=1)
    gains = gain_of_pairs(probs, labels, owners, orders=999)
    assert gains is not None
    assert gains.least == pytest.approx(1 / len(found))


def test_cosine_distances_are_scipys() -> None:
    torch.manual_seed(0)
    bank = [{"a": torch.randn(3, 4), "b": torch.randn(5), "count": torch.tensor(3)} for _ in range(5)]
    found, chosen = cosine_distances(bank)
    flat = np.stack([np.concatenate([s["a"].numpy().ravel(), s["b"].numpy()]) for s in bank])
    np.testing.assert_allclose(found, cdist(flat, flat, "cosine"), atol=1e-6)
    assert chosen == [0, 1, 2, 3, 4]
    few, which = cosine_distances(bank, most=3)
    assert which == [0, 2, 4]
    np.testing.assert_allclose(few, found[np.ix_(which, which)], atol=1e-9)
    near = [{"a": torch.ones(1000)}, {"a": torch.ones(1000) + 1e-4 * torch.randn(1000)}]
    assert cosine_distances(near)[0][0, 1] == pytest.approx(0.5e-8, rel=0.2)  # no cancellation
    with pytest.raises(ValueError, match="no posterior samples"):
        cosine_distances([])


def test_neighbours_of_a_walk_are_closer_than_strangers() -> None:
    rng = np.random.default_rng(9)
    walk = np.cumsum(rng.normal(size=(12, 500)), axis=0) + 30.0
    fresh = rng.normal(size=(12, 500)) + 30.0
    for vectors, low, high in ((walk, 0.0, 0.4), (fresh, 0.8, 1.2)):
        bank = [{"w": torch.tensor(v)} for v in vectors]
        distances, _ = cosine_distances(bank)
        assert low < neighbour_ratio(distances) < high
        lags = distance_by_lag(distances)
        assert len(lags) == 11
        assert lags[2] == pytest.approx(np.mean(np.diagonal(distances, 3)))
    assert np.isnan(neighbour_ratio(np.zeros((2, 2))))
    assert np.isnan(neighbour_ratio(np.zeros((6, 6))))
    two = neighbour_ratio(distances, chains=[0] * 6 + [1] * 6)
    assert 0.7 < two < 1.3


def test_outputs_of_a_regression_are_compared_as_probabilities_are() -> None:
    rng = np.random.default_rng(5)
    targets = rng.normal(size=(50, 1))
    outputs = targets + 0.3 * rng.normal(size=(24, 50, 1))
    still = mixing_of_values(outputs, targets)
    assert still.p_value > 0.01
    np.testing.assert_allclose(still.loss[0], np.square(outputs - targets).mean(axis=(1, 2)))
    moving = outputs + np.linspace(0, 1, 24)[:, None, None]  # away from what is right
    found = mixing_of_values(moving, targets)
    assert found.p_value <= 0.002
    assert found.rhat_loss > 1.3
    assert mixing_of_values(moving, None).p_value == found.p_value  # outputs need no targets
    assert mixing_of_values(moving, targets, [0, 1] * 12).loss.shape == (2, 12)


def test_samples_of_one_cycle_are_one_place() -> None:
    probs, _, _ = chains_apart(own=0.0, chains=2, draws=4)
    chains, cycles = [0, 1, 0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1]
    found, owners = averaged_by_mode(probs, chains, cycles)
    assert owners == [0, 1, 0, 1]
    np.testing.assert_allclose(found, np.stack([probs[[a, a + 2]].mean(0) for a in (0, 1, 4, 5)]), rtol=1e-12)


def test_that_samples_of_one_place_resemble_each_other_says_nothing_of_chains() -> None:
    """Three samples of each place, and places of one chain as far apart as those of two."""
    rng = np.random.default_rng(3)
    base, place = 1.5 * rng.normal(size=(1, 1, 500, 4)), rng.normal(size=(4, 1, 4, 500, 4))
    probs = softmax(base + place + 0.3 * rng.normal(size=(4, 3, 4, 500, 4))).reshape(-1, 500, 4)
    labels = np.array([rng.choice(4, p=row) for row in probs.mean(0)])
    chains, cycles = list(range(4)) * 12, [cycle for cycle in range(4) for _ in range(12)]
    misled = gain_of_pairs(probs, labels, chains)
    found = gain_of_pairs(*averaged_by_mode(probs, chains, cycles)[:1], labels, list(range(4)) * 4)
    assert misled is not None
    assert found is not None
    assert misled.p_value == 0.001
    assert found.p_value > 0.05
    assert abs(found.more) < 0.05


def test_strangers_are_at_least_half_a_chain_apart() -> None:
    apart = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))
    assert distance_by_lag(apart).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert neighbour_ratio(apart) == 1.0 / 4.0  # over the mean of 3, 4 and 5
