"""A likelihood of one's own, any object with `nll` and `predict`: sampled, predicted, scored, saved and loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atmc
from atmc import Posterior, Potential, likelihoods, priors, sample
from atmc.cli.main import run as command
from atmc.common.errors import InputError
from atmc.diagnose.doctor import doctor

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.randn(120, 2, generator=torch.Generator().manual_seed(0))
COUNTS = torch.poisson((0.5 + 0.8 * X[:, 0]).exp(), generator=torch.Generator().manual_seed(1))
MORE: dict[str, Any] = {"epochs": 20, "batch_size": 20, "progress": None}


class Poisson:
    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        rate = outputs[:, 0]
        return rate.exp() - y * rate + torch.lgamma(y + 1.0)

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0].exp()

    def noise(self, outputs: Tensor) -> Tensor:
        return (outputs[:, 0] / 2).exp()


class Softmax:
    """The categorical likelihood, written by somebody who does not know ours."""

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y, reduction="none")

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(1)


class OnlyNll:
    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y).abs()


def net(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, outputs)


def most_probable(law: Any) -> nn.Linear:
    model = nn.Linear(2, 1)
    potential = Potential(model, len(X), priors.gaussian(1.0), law)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        u = potential(X, COUNTS)
        u.backward()
        return u

    optimizer.step(closure)
    return model


def test_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    law, test = Poisson(), (X[:40], COUNTS[:40])
    posterior = sample(net(), (X, COUNTS), likelihood=law, test=test, out=tmp_path / "run", **MORE)
    weights = torch.stack([posterior.state(k)["weight"][0] for k in range(len(posterior))])
    best = most_probable(law)
    assert float((weights.mean(0) - best.weight.detach()[0]).abs().max()) < 0.15, "of a standard deviation of 0.08"
    found = posterior.regress(X)
    outputs = torch.stack([model(X).detach() for model in posterior]).double()
    torch.testing.assert_close(found.mean, outputs[..., 0].exp().mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.aleatoric, found.mean, rtol=1e-3, atol=1e-3)  # a Poisson's variance is its mean
    scores = posterior.evaluate(X, COUNTS)
    each = torch.stack([law.nll(one, COUNTS.double()) for one in outputs])
    mixed = -(torch.logsumexp(-each, 0) - torch.tensor(float(len(posterior))).log()).mean()
    assert scores["predictive"]["nll"] == pytest.approx(float(mixed), rel=1e-4)
    assert scores["predictive"]["rmse"] == pytest.approx(float((found.mean - COUNTS).square().mean().sqrt()), rel=1e-4)
    again = [
        Posterior.from_run(tmp_path / "run", net(), Poisson()),
        Posterior.load(posterior.save(tmp_path / "saved"), net(), likelihood=Poisson()),
    ]
    for other in again:
        assert other.evaluate(X, COUNTS)["predictive"] == pytest.approx(scores["predictive"])
    nameless = Posterior.load(tmp_path / "saved", net())
    with pytest.raises(InputError, match=r"the likelihood was Poisson, a person's own: pass it, as"):
        nameless.regress(X)
    with pytest.raises(InputError, match="the likelihood was Poisson, not Softmax: pass that one"):
        Posterior.load(tmp_path / "saved", net(), likelihood=Softmax())
    with pytest.raises(InputError, match="this run was begun with Poisson, a likelihood of your own"):
        sample(net(), (X, COUNTS), recipe=tmp_path / "run", test=test, out=tmp_path / "run", progress=None)
    longer = sample(net(), (X, COUNTS), likelihood=law, test=test, out=tmp_path / "run", **{**MORE, "epochs": 30})
    assert len(longer) > len(posterior)
    assert doctor(tmp_path / "run")[0].title
    assert command(["evaluate", str(tmp_path / "run")]) == 2
    assert "the likelihood was Poisson" in capsys.readouterr().err


def test_predict_evaluate_and_regress_do_not_send_people_round_in_circles() -> None:
    posterior = Posterior([net()], net(), likelihood=Poisson())
    with pytest.raises(InputError, match=r"use posterior\.regress\(x\)"):
        posterior.predict(X)
    assert posterior.regress(X).mean.shape == (120,)
    assert set(posterior.evaluate(X, COUNTS)["predictive"]) == {"nll", "rmse"}
    bare = Posterior([net()], net(), likelihood=OnlyNll())
    assert set(bare.evaluate(X, COUNTS)["predictive"]) == {"nll"}
    with pytest.raises(InputError, match=r"OnlyNll has no predict\(outputs\), which this needs"):
        bare.regress(X)
    assert len(sample(net(), (X, COUNTS), likelihood=OnlyNll(), **MORE)) > 4


def test_classes_are_the_same_as_ours() -> None:
    labels = (X[:, 0] > 0).long()
    ours, theirs = (sample(net(2), (X, labels), likelihood=law, **MORE) for law in (None, Softmax()))
    assert torch.equal(ours.state(-1)["weight"], theirs.state(-1)["weight"])
    assert ours.evaluate(X, labels) == theirs.evaluate(X, labels)
    torch.testing.assert_close(ours.predict(X).probs, theirs.predict(X).probs)
    x, potential = X[:10], [Potential(net(2), 120, priors.gaussian(1.0), law) for law in (None, Softmax())]
    torch.testing.assert_close(potential[0](x, labels[:10]), potential[1](x, labels[:10]))


class Mean(Poisson):
    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().nll(outputs, y).mean()


class Wide(Poisson):
    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[:, 5] - y


class Odd(Poisson):
    task = "ranking"


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (Mean(), r"Mean\.nll must return −log p of each example, \[2\], not \[\]: .* do not average over examples"),
        (Wide(), r"Wide\.nll failed for outputs \[2, 1\] and targets \[2\]: index 5 is out of bounds"),
        (Odd(), r'Odd\.task must be "classification" or "regression", not .ranking.'),
        (Poisson, "an object with nll.*not a Poisson"),
        (3, r"likelihood must be one of atmc\.likelihoods, or an object with nll\(outputs, y\), not a int"),
    ],
)
def test_a_likelihood_that_is_none_is_one_line(law: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        sample(net(), (X, COUNTS), likelihood=law, out=tmp_path / "run", **MORE)
    assert not (tmp_path / "run").exists()


def test_only_the_name_of_a_likelihood_is_written() -> None:
    known = likelihoods.own_likelihood(Poisson())
    assert replace(known, law=None) == likelihoods.OwnLikelihood("regression", "Poisson")
    assert atmc.likelihoods.is_law(Poisson())
    assert not atmc.likelihoods.is_law(Poisson)
