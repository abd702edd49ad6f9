"""The potential: its value, its parts, its unbiasedness under mini-batching, and one clear error for each bad input."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from atmc.common.errors import InputError
from atmc.nn import WNConv2d, WNLinear
from atmc.target import Potential, likelihoods, priors


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = WNConv2d(2, 4, 3)
        self.head = WNLinear(4, 3)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.selu(self.conv(x)).mean((2, 3)))


def data(n: int = 24, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 2, 6, 6, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(3, (n,), generator=generator)


def gradients(potential: Potential, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(potential(x, y), potential.parameters()))


def test_value_and_parts():
    net, (x, y) = Net(), data()
    potential = Potential(net, 24, priors.resnetpp())
    value = potential(x, y)
    nll = functional.cross_entropy(net(x), y)
    log_prior = sum(potential.prior_set[name].log_prob(p) for name, p in net.named_parameters())
    torch.testing.assert_close(value, 24 * nll - log_prior)
    assert value.shape == ()
    torch.testing.assert_close(potential.nll, nll.detach())
    torch.testing.assert_close(potential.log_prior, log_prior.detach())
    assert not potential.nll.requires_grad
    assert not potential.log_prior.requires_grad


def test_gradient_is_that_of_the_written_out_potential():
    net, (x, y) = Net(), data()
    potential = Potential(net, 24, priors.resnetpp())
    written_out = 24 * functional.cross_entropy(net(x), y)
    for name, p in net.named_parameters():
        written_out = written_out - potential.prior_set[name].log_prob(p)
    expected = torch.autograd.grad(written_out, list(net.parameters()))
    torch.testing.assert_close(gradients(potential, x, y), list(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("likelihood", [likelihoods.Categorical(), likelihoods.NoisyDirichlet(), likelihoods.DirClip()])
def test_minibatches_of_a_partition_average_to_the_full_batch_exactly(likelihood):
    net, (x, y) = Net(), data()
    potential = Potential(net, 24, priors.resnetpp(), likelihood)
    full, value = gradients(potential, x, y), potential(x, y).item()
    parts = [gradients(potential, x[i : i + 6], y[i : i + 6]) for i in range(0, 24, 6)]
    values = [potential(x[i : i + 6], y[i : i + 6]).item() for i in range(0, 24, 6)]
    assert np.mean(values) == pytest.approx(value, rel=1e-13)
    assert np.std(values) > 0.01  # the batches do differ
    for k, expected in enumerate(full):
        torch.testing.assert_close(torch.stack([part[k] for part in parts]).mean(0), expected, rtol=1e-11, atol=1e-11)


def test_the_two_step_way_gives_the_same_gradient():
    """nll_mean · data_weight, then the prior's gradient added in place: what a fused loop does."""
    net, (x, y) = Net(), data()
    potential = Potential(net, 24, priors.resnetpp(), temper=1.5)
    expected = gradients(potential, x, y)
    log_prior = potential.log_prior
    with pytest.raises(InputError, match=r"conv\.direction has no gradient yet"):
        potential.add_prior_grad_()
    (potential.data_weight * potential.nll_mean(x, y)).backward()
    torch.testing.assert_close(potential.add_prior_grad_(), log_prior)
    torch.testing.assert_close([p.grad for p in net.parameters()], expected, rtol=1e-12, atol=1e-12)


def test_linear_regression_has_its_exact_posterior_and_evidence():
    """−U(θ) = log p(y, θ), every constant included: less the exact log posterior it is the log evidence at every θ."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(12, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    noise, scale = 0.4, 1.3
    potential = Potential(model, 12, priors.Normal(scale), likelihoods.Gaussian(noise))
    precision = x.T @ x / noise**2 + torch.eye(3, dtype=torch.float64) / scale**2
    mean = torch.linalg.solve(precision, x.T @ y[:, 0] / noise**2)
    posterior = torch.distributions.MultivariateNormal(mean, precision_matrix=precision)
    cover = noise**2 * torch.eye(12, dtype=torch.float64) + scale**2 * x @ x.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(12, dtype=torch.float64), cover).log_prob(y[:, 0])
    for _ in range(3):
        with torch.no_grad():
            model.weight.normal_(generator=generator)
        log_posterior = posterior.log_prob(model.weight.detach()[0])
        torch.testing.assert_close(-potential(x, y).detach() - log_posterior, evidence)


def test_temper_is_a_power_on_the_likelihood_alone():
    net, (x, y) = Net(), data()
    plain, cold = (Potential(net, 24, priors.gaussian(), temper=t) for t in (1.0, 4.0))
    torch.testing.assert_close(cold(x, y) - plain(x, y), 3 * 24 * plain.nll)


def test_hessian_vector_products_go_through():
    net, (x, y) = Net(), data()
    potential = Potential(net, 24, priors.resnetpp())
    params = potential.parameters()
    grads = torch.autograd.grad(potential(x, y), params, create_graph=True)
    vector = [torch.randn_like(p) for p in params]
    product = torch.autograd.grad(sum((g * v).sum() for g, v in zip(grads, vector, strict=True)), params)
    eps = 1e-6
    with torch.no_grad():
        for p, v in zip(params, vector, strict=True):
            p.add_(eps * v)
    moved = gradients(potential, x, y)
    for base, after, expected in zip(grads, moved, product, strict=True):
        torch.testing.assert_close((after - base.detach()) / eps, expected, rtol=1e-3, atol=1e-3)


def test_bf16_activations_and_float32_parameters():
    net = Net(torch.float32)
    x, y = data(dtype=torch.bfloat16)
    potential = Potential(net, 24, priors.resnetpp())
    value = potential(x, y)
    value.backward()
    assert value.dtype == torch.float32
    assert potential.nll.dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 for p in net.parameters())


def test_parameters_put_in_place_later_are_the_ones_used():
    net, (x, y) = Net(), data()
    potential = Potential(net, 24, priors.resnetpp())
    net.load_state_dict({name: value.clone() + 0.1 for name, value in net.state_dict().items()}, assign=True)
    potential(x, y).backward()
    assert all(p.grad is not None for p in net.parameters())
    assert [id(p) for p in potential.parameters()] == [id(p) for p in net.parameters()]


def test_a_prior_may_be_a_rule_a_set_or_one_prior():
    net, (x, y) = Net(), data()
    values = {
        Potential(net, 24, prior)(x, y).item()
        for prior in (priors.gaussian(0.5), priors.gaussian(0.5).assign(net), priors.Normal(0.5))
    }
    assert len(values) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"likelihood": torch.nn.CrossEntropyLoss()}, r"likelihood must be .*Categorical\(\).*, not CrossEntropyLoss"),
        ({"likelihood": likelihoods.Categorical}, "likelihood must be .*, not Categorical$"),
        ({"likelihood": "categorical"}, r"likelihood must be .*an object with nll.*, not str"),
        ({"model": torch.relu}, r"model must be a torch\.nn\.Module"),
        ({"temper": "cold"}, "temper must be a positive, finite number, not 'cold'"),
        ({"prior": priors.gaussian}, r"prior must be a rule, as atmc\.priors\.gaussian\(1\.0\)"),
    ],
)
def test_what_is_no_part_of_a_potential_is_told_at_once(given, message):
    with pytest.raises(InputError, match=message):
        Potential(**({"model": Net(), "num_data": 24, "prior": priors.gaussian()} | given))


def test_num_data_accepts_numpy_integers():
    assert Potential(Net(), np.int64(24), priors.gaussian()).num_data == 24


@pytest.mark.parametrize("num_data", [0, -5, 2.5, True, None])
def test_num_data_must_be_a_count(num_data):
    with pytest.raises(InputError, match="num_data must be the number of training examples"):
        Potential(Net(), num_data, priors.gaussian())


def test_num_data_smaller_than_a_batch():
    x, y = data()
    with pytest.raises(InputError, match="num_data=10 is smaller than a batch of 24"):
        Potential(Net(), 10, priors.gaussian())(x, y)


def bad_batches() -> dict[str, tuple[torch.Tensor, torch.Tensor, str]]:
    x, y = data()
    holes = x.clone()
    holes[5, 0, 2, 2] = float("nan")
    high, low = y.clone(), y.clone()
    high[7], low[2] = 3, -1
    return {
        "label too high": (x, high, "label 3 of example 7 is out of range.*0 to 2"),
        "label negative": (x, low, "label -1 of example 2 is out of range"),
        "nan": (holes, y, "NaN or infinite values, first in example 5"),
        "infinite": (x / 0.0, y, "NaN or infinite values, first in example 0"),
        "fewer labels": (x, y[:-1], r"24 inputs but targets of shape \[23\]"),
        "one-hot labels": (x, functional.one_hot(y, 3), r"labels must be \[24\]"),
        "float labels": (x, y.double(), "labels must be integers"),
        "empty": (x[:0], y[:0], "non-empty batch"),
        "scalar label": (x, y[0], "one target per input"),
    }


@pytest.mark.parametrize("case", bad_batches())
def test_bad_batches_give_one_clear_error(case):
    x, y, message = bad_batches()[case]
    with pytest.raises(InputError, match=message) as caught:
        Potential(Net(), 24, priors.gaussian())(x, y)
    assert "\n" not in str(caught.value)


def test_a_model_with_the_wrong_output():
    x, y = data()
    with pytest.raises(InputError, match=r"must be \[batch, classes\], not \[24, 4, 4, 4\]"):
        Potential(WNConv2d(2, 4, 3).double(), 24, priors.gaussian())(x, y)


def test_validation_can_be_switched_off():
    x, y, _ = bad_batches()["nan"]
    assert torch.isnan(Potential(Net(), 24, priors.gaussian(), validate=False)(x, y))


def test_a_parameter_without_a_prior_and_an_improper_one():
    rule = priors.PriorRule([priors.on(priors.Normal(1.0), name="direction")])
    with pytest.raises(InputError, match=r"no prior for conv\.scale, conv\.bias"):
        Potential(Net(), 24, rule)
    with pytest.raises(InputError, match=r"improper prior on conv\.direction"):
        Potential(Net(), 24, priors.Flat())
    x, y = data()
    flat = Potential(Net(), 24, priors.Flat(), improper_ok=True)
    torch.testing.assert_close(flat(x, y), 24 * flat.nll)


def test_a_prior_set_of_another_model_is_refused():
    other = priors.gaussian().assign(nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"made for another model.*conv\.direction"):
        Potential(Net(), 24, other)
    with pytest.raises(InputError, match="prior must be a rule"):
        Potential(Net(), 24, 0.5)


def test_an_ordinary_training_loop_lowers_the_potential():
    net, (x, y) = Net(torch.float32), data(dtype=torch.float32)
    potential = Potential(net, 24, priors.resnetpp())
    optimizer = torch.optim.SGD(net.parameters(), lr=5e-3)
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        value = potential(x, y)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0] - 1.0


def test_a_parameter_thawed_later_has_no_prior() -> None:
    """It would be sampled under a flat one, which nobody asked for."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    potential = Potential(model, 10, priors.gaussian())
    x, y = torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    potential(x, y)
    model[0].bias.requires_grad_(True)
    with pytest.raises(InputError, match=r"0\.bias has no prior"):
        potential(x, y)


def test_arrays_are_named() -> None:
    potential = Potential(nn.Linear(3, 2), 10, priors.gaussian())
    with pytest.raises(InputError, match="inputs must be a tensor, not ndarray"):
        potential(torch.zeros(5, 3).numpy(), torch.zeros(5, dtype=torch.long))


def noisy() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    return model, torch.randn(5, 3), torch.zeros(5, dtype=torch.long)


@pytest.mark.parametrize("call", ["__call__", "nll_mean"])
def test_a_network_that_cannot_be_sampled_gives_one_warning(call: str) -> None:
    """In the words of `atmc.sample`, with the cure; the potential is still made: SGD may want it."""
    model, x, y = noisy()
    potential = Potential(model, 200, priors.gaussian())
    with pytest.warns(UserWarning, match=r"sampled: 1: BatchNorm1d.*atmc\.nn\.convert.*\(and 1 more\)") as seen:
        getattr(potential, call)(x, y).backward()
    assert [w.filename for w in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(potential, call)(x, y).backward()


def test_layers_that_are_idle_give_no_warning_until_they_are_not() -> None:
    model, x, y = noisy()
    potential = Potential(model.eval(), 200, priors.gaussian())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        potential(x, y)
        Potential(nn.Linear(3, 2), 200, priors.gaussian())(x, y)
    model.train()
    with pytest.warns(UserWarning, match="cannot be sampled: 1: BatchNorm1d"):
        potential(x, y)
    bare = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)).eval()
    with pytest.warns(UserWarning, match="has no running statistics"):
        Potential(bare, 200, priors.gaussian())(x, y)
