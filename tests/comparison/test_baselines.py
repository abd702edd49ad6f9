"""Each baseline does what its paper says, and every gradient is counted."""

import numpy as np
import pytest
import torch
from torch import nn

import atmc
from atmc.common.errors import InputError
from atmc.comparison import baselines, swag
from atmc.comparison.dropout import Dropout
from atmc.comparison.last_layer import GRID, find_last_layer, laplace_samples, noise_hessian, softmax_hessian
from atmc.comparison.task import Task, cosine
from atmc.data import ImageData


def data(count, classes=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    y = (x[:, 0] > 0).long() if classes else (x[:, :1] + 0.1 * torch.randn(count, 1, generator=generator))
    return ImageData.from_tensors(x, y)


def task(classes=True, steps=40, **more):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2 if classes else 1))
    kind = atmc.likelihoods.Categorical() if classes else atmc.likelihoods.Gaussian(0.1)
    return Task(net, data(64, classes), data(30, classes, 1), kind, atmc.priors.gaussian(1.0), 16, steps, **more)


def test_gradients_are_counted_where_they_are_computed():
    made = task()
    calls = []
    net = made.fresh()
    net.register_forward_hook(lambda module, given, out: calls.append(len(given[0])))
    made.descend(net, 10, cosine, 0.05)
    assert made.counter.gradients == sum(calls) == 10 * 16
    made.outputs(net)
    assert made.counter.gradients == 160, "predictions need no gradient"


@pytest.mark.parametrize("classes", [True, False])
def test_every_method_spends_the_same_and_learns(classes):
    fits = baselines.Fits(task(classes, steps=200))
    spent, error = {}, {}
    for method in baselines.METHODS:
        fit = fits.fit(method)
        spent[method] = fit.gradients
        mean = fit.outputs.double().mean(0)
        truth = fits.task.test.labels
        error[method] = float((mean.argmax(1) != truth).double().mean() if classes else (mean - truth).square().mean())
        assert fit.outputs.shape[1:] == (30, 2 if classes else 1)
    assert len(set(spent.values())) == 1, spent
    assert spent["SGD"] == 200 * 16 + fits.search[0]
    assert all(value < 0.2 for value in error.values()), error


def test_members_begin_at_different_weights_and_seeds_change_them():
    first, second, other = task().fresh(), task().fresh(1), task(seed=1).fresh(1)
    assert torch.equal(first[0].weight, task().model[0].weight)
    assert not torch.equal(first[0].weight, second[0].weight)
    assert not torch.equal(second[0].weight, other[0].weight)
    assert torch.equal(second[0].weight, task().fresh(1)[0].weight)


def test_swag_has_the_moments_of_what_it_saw():
    net = nn.Linear(3, 2)
    found = swag.Swag(net)
    seen = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(swag.COLUMNS + 5):
        for p in net.parameters():
            p.data = torch.randn(p.shape, generator=generator)
        found.collect()
        seen.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    every = torch.stack(seen)
    torch.testing.assert_close(found.mean, every.mean(0))
    torch.testing.assert_close(found.square - found.mean**2, every.var(0, correction=0), atol=1e-5, rtol=1e-4)
    assert len(found.deviations) == swag.COLUMNS
    drawn = torch.stack(
        [torch.cat([p.detach().flatten() for p in found.sample(generator).parameters()]) for _ in range(4000)]
    )
    columns = torch.stack(found.deviations)
    expected = 0.5 * every.var(0, correction=0) + 0.5 * columns.square().sum(0) / (swag.COLUMNS - 1)
    assert (drawn.var(0) / expected - 1).abs().max() < 0.12, "4000 draws: 2.2 % each, five standard errors"
    assert swag.schedule(0.0) == 1.0
    assert swag.schedule(0.9) == swag.LEVEL


def test_dropout_is_random_in_prediction_and_leaves_the_first_layer():
    net = nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 2)).eval()
    dropout = Dropout(net)
    x = torch.randn(3, 4)
    assert dropout.layers == 1
    assert not torch.equal(net(x), net(x))
    dropout.on = False
    assert torch.equal(net(x), net(x))
    with pytest.raises(InputError, match="no linear layer"):
        Dropout(nn.Sequential(nn.Conv2d(1, 2, 3)))


def test_laplace_is_exact_for_linear_regression():
    """With a Gaussian likelihood the posterior of the last layer is Gaussian: its variance is known in closed form."""
    torch.manual_seed(0)
    phi, test, sigma = torch.randn(40, 3), torch.randn(5, 3), 0.5
    layer = nn.Linear(3, 1)
    found = find_last_layer(nn.Sequential(nn.Tanh(), layer), phi)
    assert found.module is layer
    draws = laplace_samples(found, phi, noise_hessian(torch.full((40, 1), sigma)), test, 20_000, 0)[..., 0]
    design = torch.cat([phi, torch.ones(40, 1)], 1).double()
    theta = torch.cat([layer.weight[0], layer.bias]).double().detach()
    curvature = design.T @ design / sigma**2

    def evidence(precision):
        whole = torch.logdet(curvature + precision * torch.eye(4, dtype=torch.float64))
        return 0.5 * 4 * np.log(precision) - 0.5 * precision * float(theta @ theta) - 0.5 * float(whole)

    precision = max(GRID.tolist(), key=evidence)
    covariance = torch.linalg.inv(curvature + precision * torch.eye(4, dtype=torch.float64))
    asked = torch.cat([test, torch.ones(5, 1)], 1).double()
    torch.testing.assert_close(draws.mean(0), asked @ theta, atol=0.02, rtol=0.02)
    torch.testing.assert_close(draws.var(0), ((asked @ covariance) * asked).sum(1), rtol=0.05, atol=1e-4)


def test_the_hessian_of_the_softmax_is_that_of_autograd():
    z = torch.randn(3, dtype=torch.float64)
    expected = torch.autograd.functional.hessian(lambda z: torch.logsumexp(z, 0), z)
    torch.testing.assert_close(softmax_hessian(z[None])[0], expected)


@pytest.mark.parametrize("law", [atmc.likelihoods.Heteroscedastic(), atmc.likelihoods.StudentT(df=5.0)])
def test_the_hessian_of_a_learned_noise_is_the_fisher_information(law):
    """The mean of the squared score over targets drawn from the law itself, for location and log scale."""
    torch.manual_seed(0)
    scale, count = 0.7, 200_000
    z = torch.distributions.StudentT(5.0).sample((count, 1)) if law.degrees() else torch.randn(count, 1)
    outputs = torch.tensor([[0.0, np.log(scale)]]).double().repeat(count, 1).requires_grad_()
    law.nll(outputs, scale * z.double()).sum().backward()
    expected = noise_hessian(torch.full((1, 1), scale), law.degrees(), log_scales=True)[0]
    torch.testing.assert_close(outputs.grad.T @ outputs.grad / count, expected, atol=0.03, rtol=0.03)


def test_last_layers_of_our_networks_are_found_and_others_refused():
    net = atmc.nn.mlp(depth=2, width=8)
    x = torch.randn(4, 64)
    found = find_last_layer(net, x)
    hidden = found.features(lambda: net(x))
    torch.testing.assert_close(hidden @ found.weight.T + found.bias, net(x), atol=1e-5, rtol=1e-4)
    assert find_last_layer(atmc.nn.resnetpp(8, 4, in_channels=1), torch.randn(2, 1, 8, 8)).weight.shape[0] == 10
    with pytest.raises(InputError, match="does not end in a linear layer"):
        find_last_layer(nn.Sequential(nn.Linear(4, 2), nn.Tanh()), torch.randn(3, 4))
