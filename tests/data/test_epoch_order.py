"""The order of an epoch is a pure function of seed and epoch, visits everything once, and is the same for ever."""

import hashlib

import numpy as np
import pytest
import torch

from atmc.data import plan
from atmc.data.epoch_order import grouped_order


@pytest.mark.parametrize("n", [1, 2, 3, 100, 1000])
def test_every_example_comes_once(n: int) -> None:
    for epoch in range(3):
        assert torch.equal(plan(1, epoch, n).order.sort().values, torch.arange(n))


def test_the_plan_follows_from_seed_and_epoch_alone() -> None:
    first = plan(3, 4, 500, pad=4, flip=True)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002  the global generator is what must not matter
    torch.rand(10)
    again = plan(3, 4, 500, pad=4, flip=True)
    for name in ("order", "dx", "dy", "flip"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    for seed, epoch in ((3, 5), (4, 4), (4, 3), (3, 2**40)):
        other = plan(seed, epoch, 500, pad=4, flip=True)
        assert not torch.equal(first.order, other.order)
        assert not torch.equal(first.dx, other.dx)


def test_planning_moves_no_global_generator() -> None:
    before_torch, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    plan(0, 0, 100, pad=4, flip=True)
    assert torch.equal(torch.get_rng_state(), before_torch)
    assert np.array_equal(np.random.get_state()[1], before_numpy)  # noqa: NPY002


def test_a_seed_means_the_same_in_every_version() -> None:
    """Runs resume under newer libraries: these bytes must never change."""
    p = plan(0, 0, 1000, pad=4, flip=True)
    sums = [hashlib.sha256(t.long().numpy().tobytes()).hexdigest()[:16] for t in (p.order, p.dx, p.dy, p.flip)]
    assert sums == ["10915d6113502464", "2e83a90b914f66fe", "2dd5c404453cb66b", "3755561c3d66bbea"]


def test_the_order_does_not_depend_on_the_augmentation() -> None:
    bare, full = plan(5, 1, 300), plan(5, 1, 300, pad=4, flip=True)
    assert torch.equal(bare.order, full.order)
    assert not bare.dx.any()
    assert not bare.dy.any()
    assert not bare.flip.any()
    assert torch.equal(plan(5, 1, 300, flip=True).flip, full.flip)
    assert torch.equal(plan(5, 1, 300, pad=4).dx, full.dx)


def test_offsets_and_flips_are_uniform_and_unrelated() -> None:
    n = 90_000
    p = plan(11, 0, n, pad=4, flip=True)
    joint = torch.bincount(p.dx * 18 + p.dy * 2 + p.flip, minlength=162).double()
    assert len(joint) == 162
    expected = n / 162
    chi2 = float(((joint - expected) ** 2 / expected).sum())
    assert 85 < chi2 < 260  # 161 degrees of freedom: far outside only one time in a million
    # The first place of the order is uniform too.
    firsts = torch.tensor([int(plan(seed, 0, 10).order[0]) for seed in range(4000)])
    counts = torch.bincount(firsts, minlength=10).double()
    assert float(((counts - 400) ** 2 / 400).sum()) < 45


def test_grouped_order_reads_few_groups_at_a_time() -> None:
    groups = np.repeat(np.arange(10), 7)
    seen = grouped_order(2, 0, groups, window=3)
    assert np.array_equal(np.sort(seen), np.arange(70))
    windows = [set(groups[seen[at : at + 21]]) for at in range(0, 70, 21)]
    assert [len(w) for w in windows] == [3, 3, 3, 1]
    assert not np.array_equal(groups[seen[:21]], np.sort(groups[seen[:21]]))  # mixed, not shard after shard
    assert not np.array_equal(seen, grouped_order(2, 1, groups, window=3))
    assert not np.array_equal(seen, grouped_order(3, 0, groups, window=3))
