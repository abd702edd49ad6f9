"""Batches drawn by importance: unbiased, less noisy, stratified, and the same again from a step and its scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.data import DeviceBatches, ImageData, ImportanceBatches, hold_out, load, train_batches
from atmc.data.importance_batches import UNIFORM
from atmc.data.streamed_source import ArraySource

MOST = 4.5  # of |z| over ten numbers: one correct run in 15,000 is above
BATCH = 8
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def known(count: int = 53, classes: int = 5) -> ImageData:
    """Examples whose only input is their own number, in classes of unequal size."""
    labels = torch.arange(count).mul(7).remainder(count).mul(classes).div(count, rounding_mode="floor")
    return ImageData.from_tensors(torch.arange(count, dtype=torch.float32)[:, None], labels.clamp_max(classes - 2))


def numbers(x: Tensor) -> Tensor:
    return x[:, 0].long()


def with_scores(seed: int = 0, spread: float = 1.5) -> ImportanceBatches:
    """Scores over some factors of e, two examples not drawn yet and one with a gradient of 0."""
    batches = ImportanceBatches(known(), BATCH, seed=seed)
    drawn = torch.randn(53, generator=torch.Generator().manual_seed(1)).mul(spread).exp()
    drawn[3], drawn[5], drawn[7] = -1.0, -1.0, 0.0
    batches.scores.copy_(drawn)
    return batches


def worst_z(estimates: Tensor, truth: Tensor) -> float:
    error = estimates.std(0) / len(estimates) ** 0.5
    return float(((estimates.mean(0) - truth) / error).abs().max())


def right(batches: ImportanceBatches, x: Tensor) -> Tensor:
    assert batches.weights is not None
    return batches.weights


def left_out(batches: ImportanceBatches, x: Tensor) -> Tensor:
    return torch.full((len(x),), 1 / BATCH)


def of_another_order(batches: ImportanceBatches, x: Tensor) -> Tensor:
    """Weights by the number of the example, where scores go by its place among the strata."""
    units = batches._units()
    return (units.sum() / units[numbers(x)] / (BATCH * 53)).float()


def of_p_without_uniform_part(batches: ImportanceBatches, x: Tensor) -> Tensor:
    """As if λ were 0."""
    weights = right(batches, x)
    p = 1 / (weights * BATCH * 53)
    return (1 - UNIFORM) / ((p - UNIFORM / 53).clamp_min(1e-6) * BATCH * 53)


@pytest.mark.parametrize("weights", [right, left_out, of_another_order, of_p_without_uniform_part])
def test_the_weighted_sum_is_unbiased(weights: Callable[[ImportanceBatches, Tensor], Tensor]) -> None:
    """And wrong weights are seen."""
    batches = with_scores()
    values = torch.randn(53, 10, generator=torch.Generator().manual_seed(2))
    found = []
    for step in range(3000):
        x, _ = batches.batch(step)
        found.append(weights(batches, x) @ values[numbers(x)])
    z = worst_z(torch.stack(found), values.mean(0))
    assert z < MOST if weights is right else z > 2 * MOST


@pytest.mark.parametrize("late", [False, True])
def test_it_is_unbiased_while_scores_change(late: bool) -> None:
    """Scores of earlier steps alone decide; weights from the scores of their own draws, an error, are seen."""
    batches = ImportanceBatches(known(), BATCH)
    sizes = torch.randn(53, generator=torch.Generator().manual_seed(3)).exp()
    values = sizes[:, None] * (torch.randn(53, 10, generator=torch.Generator().manual_seed(2)) + 1)
    turn, found = torch.Generator().manual_seed(4), []
    for step in range(4000):
        x, _ = batches.batch(step)
        weights, drawn = batches.weights, batches._drawn
        batches.note(sizes[numbers(x)] * torch.randn(BATCH, generator=turn).mul(2).exp())
        if late:
            units = batches._units()
            weights = (units.sum() / units[drawn] / (BATCH * 53)).float()
        assert weights is not None
        found.append(weights @ values[numbers(x)])
    z = worst_z(torch.stack(found), values.mean(0))
    assert z > 2 * MOST if late else z < MOST


def test_where_few_examples_carry_the_gradient_the_noise_is_lower() -> None:
    data = known(200, 2)
    sizes = torch.full((200,), 0.01)
    sizes[torch.arange(0, 200, 17)] = 1.0
    values = sizes[:, None] * torch.randn(200, 10, generator=torch.Generator().manual_seed(2))
    drawn, uniform = ImportanceBatches(data, BATCH), DeviceBatches(data, BATCH, independent=True)
    found: dict[bool, list[Tensor]] = {True: [], False: []}
    for step in range(1000):
        x, _ = drawn.batch(step)
        assert drawn.weights is not None
        found[True].append(drawn.weights @ values[numbers(x)])
        drawn.note(sizes[numbers(x)])
        found[False].append(values[numbers(uniform.batch(step)[0])].mean(0))
    noise = {kind: float(torch.stack(each[200:]).var(0).sum()) for kind, each in found.items()}
    assert noise[True] < noise[False] / 5


@pytest.mark.parametrize("strata", [False, True])
def test_without_strata_draws_are_independent(strata: bool) -> None:
    """The variance of a batch's sum is then that of its parts, which is what `noise_examples` balances."""
    batches = ImportanceBatches(known(), BATCH, strata=strata)
    batches.scores.copy_(with_scores().scores)
    values = known().labels.float() + torch.randn(53, generator=torch.Generator().manual_seed(2)) / 4
    parts = []
    for step in range(6000):
        x, _ = batches.batch(step)
        parts.append(right(batches, x) * values[numbers(x)])
    found = torch.stack(parts).double()
    mean = values.double().mean()
    assert float((found.sum(1).mean() - mean) / found.sum(1).std()) * 6000**0.5 == pytest.approx(0.0, abs=MOST)
    share = found.sum(1).var() / (BATCH * found.var())
    assert share < 0.8 if strata else abs(share - 1) < 0.09  # of 6,000 sums: 0.018 is one standard error


def test_every_batch_has_each_class_in_its_share() -> None:
    """Off by less than two, the strata at both ends of a class; independent draws are off by more."""
    batches, independent = ImportanceBatches(known(), BATCH), DeviceBatches(known(), BATCH, independent=True)
    share = BATCH * torch.bincount(known().labels, minlength=4) / 53
    off, usual = (
        torch.stack([torch.bincount(feed.batch(step)[1], minlength=4) - share for step in range(100)])
        for feed in (batches, independent)
    )
    assert off.abs().max() < 2 < usual.abs().max()
    assert off.square().mean() < 0.25 * usual.square().mean()


def test_other_targets_are_stratified_in_their_own_order() -> None:
    data = ImageData.from_tensors(torch.arange(40.0)[:, None], torch.rand(40))
    batches = ImportanceBatches(data, 8)
    for step in range(20):
        found = numbers(batches.batch(step)[0])
        assert torch.equal(found // 5, torch.arange(8))


def test_probabilities_are_those_of_the_formula() -> None:
    """Both by the weights and by counting; an example not drawn yet counts as much as the mean of the others."""
    batches = with_scores()
    scores = batches.scores.double()
    scores[[3, 5]] = scores[scores >= 0].mean()
    p = torch.empty(53, dtype=torch.float64)
    p[batches._order] = (1 - UNIFORM) * scores / scores.sum() + UNIFORM / 53
    count = torch.zeros(53, dtype=torch.float64)
    for step in range(2000):
        x, _ = batches.batch(step)
        torch.testing.assert_close(batches.weights, (1 / (BATCH * 53 * p[numbers(x)])).float())
        count += torch.bincount(numbers(x), minlength=53)
    assert float(((count - 2000 * BATCH * p) / (2000 * BATCH * p).sqrt()).abs().max()) < 4


def test_scores_are_free_of_units() -> None:
    few, many = with_scores(), with_scores()
    many.scores.copy_(torch.where(many.scores > 0, many.scores * 1e6, many.scores))
    for step in range(20):
        assert torch.equal(few.batch(step)[0], many.batch(step)[0])


def test_batches_are_a_function_of_seed_step_and_scores() -> None:
    straight, turn = ImportanceBatches(known(), BATCH, seed=4), torch.rand(60, BATCH)
    seen = []
    for step in range(60):  # nine epochs
        before = straight.scores.clone()
        x, y = straight.batch(step)
        seen.append((before, x, y, straight.weights))
        straight.note(turn[step])
    for step in (59, 7, 31):
        again = ImportanceBatches(known(), BATCH, seed=4)
        again.start(step)
        again.scores.copy_(seen[step][0])
        x, y = again.batch(torch.tensor(step))
        for found, wanted in zip((x, y, again.weights), seen[step][1:], strict=True):
            assert torch.equal(found, wanted)
    other = ImportanceBatches(known(), BATCH, seed=5)
    assert not torch.equal(other.batch(0)[0], seen[0][1])


def test_chains_have_scores_of_their_own_and_readings_those_of_their_chain() -> None:
    batches = with_scores()
    other, readings = batches.with_seed(9), batches.for_readings(9)
    assert isinstance(other, ImportanceBatches)
    assert (other.scores < 0).all()
    before = batches.scores.clone()
    batches.batch(0)
    drawn = batches._drawn
    for step in range(30):
        readings.batch(step)
    assert torch.equal(batches.scores, before)
    assert batches._drawn is drawn
    batches.note(torch.full((BATCH,), 100.0))
    assert readings.scores is batches.scores
    assert not torch.equal(batches.scores, before)


def test_an_example_drawn_twice_takes_one_size_and_broken_ones_are_left_out() -> None:
    batches = ImportanceBatches(known(4, 2), 3)
    batches.scores.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    batches._drawn = torch.tensor([1, 1, 2])
    batches.note(torch.tensor([5.0, 5.0001, float("inf")], dtype=torch.float64))
    assert batches.scores.tolist() == [1.0, 5.0, 3.0, 4.0]
    batches.note(torch.tensor([float("nan"), 7.0, 0.0]))
    assert batches.scores.tolist() == [1.0, 5.0, 0.0, 4.0]
    for sizes in (0.0, 3e38):  # an example has a probability whatever sizes are
        batches.scores.fill_(sizes)
        batches.batch(3)
        torch.testing.assert_close(batches.weights, torch.full((3,), 1 / 3))


def test_the_last_example_can_be_drawn_and_no_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """U next to 1 rounds to 1 in (b − 1 + U)/b."""
    last = np.full(53, 1 - 2.0**-53)
    monkeypatch.setattr("atmc.data.epoch_order.uniforms", lambda seed, epoch, n: last)
    x, _ = ImportanceBatches(known(), 32).batch(0)
    assert int(numbers(x)[-1]) == int(ImportanceBatches(known(), 32)._order[-1])


def test_all_of_the_data_and_plain_epochs_have_no_weights() -> None:
    whole = ImportanceBatches(known(), 53)
    assert torch.equal(numbers(whole.batch(3)[0]), torch.arange(53))
    assert whole.weights is None
    plain = list(with_scores().epoch_batches(2))
    assert [len(y) for _, y in plain] == [8] * 6 + [5]
    assert torch.equal(torch.cat([numbers(x) for x, _ in plain]).sort().values, torch.arange(53))
    assert len(list(with_scores().epoch_batches(2, start=4, drop_last=True))) == 2


def test_what_cannot_be_drawn_by_importance_is_one_line() -> None:
    data = known()
    assert isinstance(train_batches(data, BATCH, importance=True), ImportanceBatches)
    with pytest.raises(InputError, match=r'data.draw = "importance" .* 2 share this chain: use data.draw = "auto"$'):
        train_batches(data, BATCH, importance=True, world=2)
    images = load("synthetic:1x6x6?train=20")
    streamed = ArraySource(images)
    with pytest.raises(InputError, match=r'data.draw = "importance" .* epoch by epoch: use data.draw = "auto"$'):
        train_batches(streamed, 4, importance=True)
    with pytest.raises(ValueError, match="augment"):
        train_batches(images, 4, augment="flip", importance=True)
    with pytest.raises(InputError, match="batch_size = 54 does not fit"):
        train_batches(data, 54, importance=True)


@pytest.mark.gpu
@cuda
def test_a_captured_batch_draws_what_a_cpu_does() -> None:
    data = hold_out(load("digits", "train"), 200)[0]
    here, there = (ImportanceBatches(data, 32, device, seed=2) for device in ("cpu", "cuda"))
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    sizes = torch.zeros(32, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        there.start(0)
        there.batch(step)
        there.note(sizes + 1)
        there.scores.fill_(-1.0)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            x, y = there.batch(step)
            weights = there.weights
            there.note(sizes)
        assert weights is not None
        for number in range(120):  # three epochs
            there.ensure(number)
            step.fill_(number)
            new = torch.rand(32, generator=torch.Generator().manual_seed(number)).exp()
            sizes.copy_(new)
            graph.replay()
            wanted = here.batch(number)
            assert torch.equal(y.cpu(), wanted[1])
            torch.testing.assert_close(x.cpu(), wanted[0])
            torch.testing.assert_close(weights.cpu(), here.weights)
            here.note(new)
            torch.testing.assert_close(there.scores.cpu(), here.scores)
