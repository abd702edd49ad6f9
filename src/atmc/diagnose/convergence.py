"""Has the chain forgotten where it began? R-hat and effective sample size of what the samples predict.

Weights of a network are not what to look at: they have symmetries and millions of dimensions. What is averaged is the
prediction, so the quantities here are per example, q_ki = log p_k(y_i | x_i) for sample k and example i, and their mean
over examples, the loss of a sample.

    R-hat   √( ((n−1)/n W + B/n) / W ): between-chain against within-chain variance, after replacing values by the
            normal scores of their ranks (z = Φ⁻¹((rank − 3/8)/(S + 1/4))), as the larger of location and spread
            (Vehtari et al. 2021). Chains are split in halves, so that one chain, or a common drift, shows too.
    ESS     S / (1 + 2 Σ_t ρ_t) of the same scores: how many independent samples the S samples are worth.

Both come from arviz. Deep networks are sampled tens of times, not thousands, so R-hat scatters: for the two halves
of 16 independent samples one value in twenty exceeds 1.29. Hence `exchangeability_test`, which asks
how often a random reordering of the same samples looks as unmixed, needs no large-sample theory, and says honestly
when there are too few samples to tell.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atmc.posterior.arrays import Floats, Ints, check_labels, check_samples, each_sample, floor_of
from atmc.posterior.metrics import nll, predictive

LEAST = 4  # draws per (half) chain below which R-hat and ESS are not computed


@dataclass(frozen=True)
class Mixing:
    """R-hat and ESS of the loss and of single examples; NaN where there are too few samples."""

    chains: int
    draws: int  # per chain, after cutting all to the shortest
    loss: Floats  # [chains, draws] mean over examples of −log p(y | x)
    rhat_loss: float
    ess_loss: float
    rhat: Floats  # per example
    ess: Floats
    p_value: float  # of exchangeable samples, see `exchangeability_test`

    @property
    def samples(self) -> int:
        return self.chains * self.draws


def rhat(values: Any) -> Floats:
    """Rank-normalised split R-hat over the last two axes `[..., chains, draws]`; one chain is compared by halves.

    NaN with fewer than four draws per half, and for a quantity that never changes.
    """
    x = _with_chains(values)
    half = x.shape[-1] // 2
    if half < LEAST:
        return np.full(x.shape[:-2], np.nan)
    split = np.concatenate([x[..., :half], x[..., -half:]], axis=-2)
    centre = np.median(split, axis=(-2, -1), keepdims=True)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        bulk = _arviz().rhat(normal_scores(split), method="identity")
        tail = _arviz().rhat(normal_scores(np.abs(split - centre)), method="identity")
    return np.where(_constant(x), np.nan, np.fmax(bulk, tail))


def ess(values: Any) -> Floats:
    """Bulk effective sample size over the last two axes `[..., chains, draws]`; NaN below four draws or if constant."""
    x = _with_chains(values)
    if x.shape[-1] < LEAST:
        return np.full(x.shape[:-2], np.nan)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = np.asarray(_arviz().ess(x, method="bulk"), dtype=np.float64)
    return np.where(_constant(x), np.nan, found)


def normal_scores(values: Floats) -> Floats:
    """Φ⁻¹((rank − 3/8)/(S + 1/4)) over the last two axes together; equal values share their mean rank."""
    from scipy.special import ndtri  # type: ignore[import-untyped]
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    flat = values.reshape(*values.shape[:-2], -1)
    ranks = rankdata(flat, method="average", axis=-1)
    return np.asarray(ndtri((ranks - 0.375) / (flat.shape[-1] + 0.25)).reshape(values.shape))


def exchangeability_test(values: Any, orders: int = 999, seed: int = 0) -> float:
    """p-value of "all samples are independent draws of one law", from quantities `[Q, chains, draws]`.

    The statistic is the variance between half-chains of the mean normal score, averaged over the Q quantities; its law
    under the hypothesis is found by putting the samples in random order, the same order for all quantities, so that
    dependence between examples does no harm. p = (1 + #{as large}) / (1 + orders). A small value means drift,
    disagreeing chains, or neighbours that resemble each other.
    """
    x = _with_chains(values)
    if x.ndim != 3:
        raise ValueError(f"values must have the shape [quantities, chains, draws], not {list(x.shape)}")
    half = x.shape[-1] // 2
    if half < 2:
        return float("nan")
    split = np.concatenate([x[..., :half], x[..., -half:]], axis=-2)  # [Q, 2 chains, half]
    scores = normal_scores(split).reshape(len(x), -1)
    groups = split.shape[-2]

    def between(order: Ints) -> float:
        return float(scores[:, order].reshape(len(x), groups, half).mean(axis=-1).var(axis=-1).mean())

    rng = np.random.default_rng(seed)
    seen = between(np.arange(scores.shape[1]))
    larger = sum(between(rng.permutation(scores.shape[1])) >= seen * (1 - 1e-12) for _ in range(orders))
    return (1 + larger) / (1 + orders)


def by_chain(values: Floats, chains: Sequence[int] | None) -> Floats:
    """Rearrange the last axis, one entry per sample, into `[chains, draws]`; longer chains lose their first draws."""
    if chains is None:
        return values[..., None, :]
    number = np.asarray(chains)
    if number.shape != values.shape[-1:]:
        raise ValueError(f"{values.shape[-1]} samples but {number.size} chain numbers")
    places = [np.flatnonzero(number == c) for c in np.unique(number)]
    draws = min(p.size for p in places)
    return np.stack([values[..., p[-draws:]] for p in places], axis=-2)


def mixing(
    probs: Any, labels: Any = None, chains: Sequence[int] | None = None, examples: int = 200, seed: int = 0
) -> Mixing:
    """R-hat, ESS and the exchangeability test from stored probabilities `[K, N, C]`, labels, and each sample's chain.

    The loss uses all examples; per-example figures use a fixed random subset, since arviz takes about a millisecond
    for each. Without labels the predictive's own most probable class stands in for them.
    """
    array = check_samples(probs)
    y = predictive(array).argmax(axis=1) if labels is None else check_labels(labels, *array.shape[1:])
    each = np.log(of_the_labels(array, y)).T  # [N, K]
    return mixing_of(each, -each.mean(axis=0), chains, examples, seed)


def mixing_of(each: Floats, losses: Floats, chains: Sequence[int] | None, examples: int, seed: int) -> Mixing:
    """From quantities `[Q, K]`, of which `examples` at random are looked at, and the loss of each sample."""
    some = np.sort(np.random.default_rng(seed).permutation(len(each))[:examples])
    loss = by_chain(losses, chains)
    quantities = by_chain(each[some], chains)
    return Mixing(
        chains=loss.shape[0],
        draws=loss.shape[1],
        loss=loss,
        rhat_loss=float(rhat(loss)),
        ess_loss=float(ess(loss)),
        rhat=rhat(quantities),
        ess=ess(quantities),
        p_value=exchangeability_test(quantities, seed=seed),
    )


def of_the_labels(array: Any, y: Ints) -> Floats:
    """p_k(y_i | x_i), `[K, N]`, none of them zero: a stored zero is the smallest number of its type."""
    rows, floor = np.arange(y.size), floor_of(array)
    return np.stack([np.maximum(p[rows, y], floor) for p in each_sample(array)])


def gain_of_doubling(probs: Any, labels: Any, halves: int = 20, seed: int = 0) -> tuple[float, float]:
    """(estimate, spread) of how much NLL would fall with twice as many samples, in nats.

    For independent samples NLL(k) ≈ NLL(∞) + b/k (second order in the spread of p_k), so doubling K gains b/2K, half of
    what doubling from K/2 gained: ½ [NLL(K/2) − NLL(K)], with NLL(K/2) a mean over random halves. The spread is that of
    single halves. NaN for one sample.
    """
    array = check_samples(probs)
    total = array.shape[0]
    if total < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    whole = nll(predictive(array), labels)
    half = [nll(predictive(array[np.sort(rng.permutation(total)[: total // 2])]), labels) for _ in range(halves)]
    # total // 2 is below K/2 for odd K; the 1/k law corrects for it.
    factor = 0.5 * (1.0 / (total / 2) - 1.0 / total) / (1.0 / (total // 2) - 1.0 / total)
    return factor * (float(np.mean(half)) - whole), factor * float(np.std(half))


def averaged_by_mode(outputs: Any, chains: Sequence[int], cycles: Sequence[int]) -> tuple[Any, list[int]]:
    """Samples of one chain and one cycle, averaged: `[samples, …]` to `[modes, …]`, and the chain of each mode.

    A cycle leads to a mode, and several samples of it lie in that mode. Whether chains mix, and what more of them would
    bring, is a question about modes. Each is rounded to the type of the samples, whose smallest number it cannot be
    below.
    """
    array = np.asarray(outputs)
    members: dict[tuple[int, int], list[int]] = {}
    for number, key in enumerate(zip(chains, cycles, strict=True)):
        members.setdefault(key, []).append(number)
    means = [array[own].mean(axis=0, dtype=np.float64).astype(array.dtype) for own in members.values()]
    return np.stack(means), [chain for chain, _ in members]


@dataclass(frozen=True)
class PairGains:
    """How much lower the NLL of two samples' average is than the mean of theirs, in nats: a mean over pairs."""

    one: float  # both of one chain
    two: float  # of different chains
    p_value: float  # of a difference as large if the chains' first samples were dealt out at random, their second, …
    least: float  # p-value that so few samples can have: one in so many ways to deal them

    @property
    def more(self) -> float:
        """What a sample of another chain brings that one of the same chain does not, as a share of the latter."""
        return (self.two - self.one) / self.one if self.one > 0 else float("nan")


def gain_of_pairs(
    probs: Any, labels: Any, chains: Sequence[int], orders: int = 999, seed: int = 0, most: int = 64
) -> PairGains | None:
    """Does a chain get to where the others are? What two samples gain together, of one chain and of two.

    If every chain visits all that the posterior has, it does not matter whose samples are averaged. Where two chains
    gain more, each keeps to modes of its own for as long as it ran, and several short chains do better than a long one
    for the same number of samples. None without two chains and two samples of one. At most the last `most` samples.
    Only samples that are as old change places for the p-value: the first of a chain may be worse than its second, and
    two of one chain are never of the same age.
    """
    array, owner = check_samples(probs), np.asarray(chains)
    if owner.shape != array.shape[:1]:
        raise ValueError(f"{array.shape[0]} samples but {owner.size} chain numbers")
    age = np.array([np.count_nonzero(owner[:place] == chain) for place, chain in enumerate(owner)])
    array, owner, age = array[-most:], owner[-most:], age[-most:]
    own = of_the_labels(array, check_labels(labels, *array.shape[1:]))
    first, second = np.triu_indices(len(own), k=1)
    same = owner[first] == owner[second]
    if same.all() or not same.any():
        return None
    alone = -np.log(own).mean(axis=1)
    gains = np.empty(first.size)
    for place, (i, j) in enumerate(zip(first, second, strict=True)):
        gains[place] = (alone[i] + alone[j]) / 2 + np.log((own[i] + own[j]) / 2).mean()
    measured = gains[~same].mean() - gains[same].mean()
    rng = np.random.default_rng(seed)
    peers = [np.flatnonzero(age == years) for years in np.unique(age)]
    as_large, dealt = 0, owner.copy()
    for _ in range(orders):
        for places in peers:
            dealt[places] = rng.permutation(owner[places])
        alike = dealt[first] == dealt[second]
        as_large += gains[~alike].mean() - gains[alike].mean() >= measured
    # Which chain is called which does not matter, among those that have samples of the same ages.
    named = Counter(tuple(age[owner == chain]) for chain in np.unique(owner))
    ways = math.prod(math.factorial(places.size) for places in peers)
    ways //= math.prod(math.factorial(number) for number in named.values())
    return PairGains(
        one=float(gains[same].mean()),
        two=float(gains[~same].mean()),
        p_value=float((1 + as_large) / (1 + orders)),
        least=1 / min(ways, 1 + orders),
    )


def _arviz() -> Any:
    """arviz's statistics on arrays; imported here, since it takes a second or two."""
    from importlib import import_module

    try:
        return import_module("arviz_stats.base").array_stats
    except ImportError:
        raise ImportError("R-hat and ESS need arviz-stats: pip install 'atmc[cli]'") from None


def _with_chains(values: Any) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim < 2:
        raise ValueError(f"values must have the shape [..., chains, draws], not {list(x.shape)}")
    if not np.isfinite(x).all():
        raise ValueError("values are not finite: a sample has diverged")
    return x


def _constant(x: Floats) -> Any:
    return x.max(axis=(-2, -1)) == x.min(axis=(-2, -1))


def mixing_of_values(
    values: Any, targets: Any = None, chains: Sequence[int] | None = None, examples: int = 200, seed: int = 0
) -> Mixing:
    """R-hat, ESS and the exchangeability test of outputs `[K, N, ...]` themselves, and of their mean squared error.

    Without targets of that shape the mean of the outputs stands in for them, as a distance that may change.
    """
    x = np.asarray(values, dtype=np.float64).reshape(len(values), -1)  # [K, Q]
    y = None if targets is None else np.asarray(targets, dtype=np.float64).reshape(-1)
    centre = y if y is not None and y.size == x.shape[1] else x.mean(axis=0)
    return mixing_of(x.T, np.square(x - centre).mean(axis=1), chains, examples, seed)
