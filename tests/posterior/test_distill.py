"""Distillation: the divergence is KL, the student comes close to the ensemble, results depend on the seed only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from atmc import likelihoods
from atmc.common.errors import InputError
from atmc.posterior import Posterior
from atmc.posterior.distill import distill, divergence


def perceptron(seed: int, spread: float = 1.0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0).add_(spread * 0.3 * torch.randn_like(p))
    return model


def ensemble(k: int = 6) -> Posterior:
    """Networks around one: disagreeing enough that the average is not any of them."""
    members = []
    for i in range(k):
        model = perceptron(0, 0.0)
        torch.manual_seed(100 + i)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.6 * torch.randn_like(p))
        members.append(model)
    return Posterior(members, members[0])


def test_divergence_is_kl() -> None:
    torch.manual_seed(0)
    target, logits = torch.randn(9, 5).softmax(-1), torch.randn(9, 5)
    expected = kl_divergence(Categorical(probs=target), Categorical(logits=logits)).mean()
    assert float(divergence(target, logits)) == pytest.approx(float(expected), rel=1e-5)
    certain = torch.tensor([[1.0, 0.0]])
    assert float(divergence(certain, torch.tensor([[30.0, 0.0]]))) == pytest.approx(0.0, abs=1e-6)


def test_the_student_comes_close_and_is_compared() -> None:
    posterior = ensemble()
    generator = torch.Generator().manual_seed(0)
    x, fresh = torch.randn(1500, 2, generator=generator), torch.randn(2000, 2, generator=generator)
    truth = posterior.predict(fresh, device="cpu").probs
    labels = torch.multinomial(truth, 1, generator=generator)[:, 0]  # the ensemble is right by construction
    found = distill(posterior, x, epochs=25, lr=1e-2, held_out=(fresh, labels), device="cpu")
    nll = {name: row["nll"] for name, row in found.scores.items()}
    assert set(nll) == {"student", "ensemble", "single"}
    assert nll["ensemble"] < nll["single"]
    # Most of what averaging gains over one sample survives in one network.
    assert nll["single"] - nll["student"] > 0.8 * (nll["single"] - nll["ensemble"])
    assert found.divergence[-1] < 0.2 * found.divergence[0]
    probs = found.posterior.predict(fresh, device="cpu").probs
    torch.testing.assert_close(probs, found.model(fresh).double().softmax(-1))
    assert float((probs - truth).abs().mean()) < 0.03


def test_equal_seeds_give_equal_students() -> None:
    posterior, x = ensemble(2), torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    runs = [distill(posterior, x, epochs=2, batch_size=16, seed=s, device="cpu").model for s in (0, 0, 1)]
    assert torch.equal(runs[0][0].weight, runs[1][0].weight)
    assert not torch.equal(runs[0][0].weight, runs[2][0].weight)


def test_other_students_augmentation_and_progress() -> None:
    posterior, x = ensemble(2), torch.randn(40, 2, generator=torch.Generator().manual_seed(2))
    small = nn.Sequential(nn.Linear(2, 4), nn.SELU(), nn.Linear(4, 3))
    before = small[0].weight.clone()
    seen: list[int] = []

    def jitter(batch: Tensor, generator: torch.Generator) -> Tensor:
        return batch + 0.1 * torch.randn(batch.shape, generator=generator)

    found = distill(
        posterior, x, student=small, epochs=3, augment=jitter, device="cpu", progress=lambda e, kl: seen.append(e)
    )
    assert seen == [1, 2, 3]
    assert torch.equal(small[0].weight, before)  # the caller's network is copied
    assert found.model[0].weight.shape == (4, 2)
    assert found.scores == {}


def test_refusals() -> None:
    posterior, x = ensemble(2), torch.randn(8, 2)
    with pytest.raises(ValueError, match="no samples"):
        distill(posterior[:0], x)
    lines = Posterior([nn.Linear(2, 1)], nn.Linear(2, 1), likelihood=likelihoods.Gaussian(1.0))
    with pytest.raises(InputError, match=r"distilling is for classifiers.*use posterior\.regress"):
        distill(lines, x)
    with pytest.raises(ValueError, match="at least 1"):
        distill(posterior, x, epochs=0)
    with pytest.raises(RuntimeError, match="smaller lr"):
        distill(posterior, x, epochs=3, lr=1e30, device="cpu")
