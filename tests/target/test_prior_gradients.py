"""Closed-form gradients agree with autograd of the log-density in float64, in every layout and on every path."""

import pytest
import torch

from atmc.target import priors

PRIORS = [
    priors.Normal(0.7, loc=0.1),
    priors.Laplace(0.4, loc=-0.2),
    priors.StudentT(3.0, 0.5, loc=0.3),
    priors.Horseshoe(0.3, loc=0.05),
    priors.GroupLaplace(1.5),
    priors.Direction(),
]


def layouts() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    filters = torch.randn(6, 5, 3, 3, generator=generator, dtype=torch.float64) * 0.2
    return {
        "contiguous": filters,
        "channels_last": filters.to(memory_format=torch.channels_last),
        "transposed": torch.randn(7, 4, generator=generator, dtype=torch.float64).t(),
        "gaps": torch.randn(4, 10, generator=generator, dtype=torch.float64)[:, ::3],
        "vector": torch.randn(9, generator=generator, dtype=torch.float64),
        "scalar": torch.randn((), generator=generator, dtype=torch.float64),
        "one_by_one": torch.randn(4, 3, 1, 1, generator=generator, dtype=torch.float64).to(
            memory_format=torch.channels_last
        ),
    }


def autograd_of(prior: priors.Prior, x: torch.Tensor) -> torch.Tensor:
    y = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    (grad,) = torch.autograd.grad(-prior.log_prob(y), y)
    return grad


@pytest.mark.parametrize("layout", layouts())
@pytest.mark.parametrize("prior", PRIORS, ids=lambda p: type(p).__name__)
def test_closed_form_agrees_with_autograd(prior, layout):
    x = layouts()[layout]
    expected = autograd_of(prior, x)
    torch.testing.assert_close(prior.neg_grad(x), expected, rtol=1e-12, atol=1e-12)
    start = torch.full_like(x, 0.25)
    torch.testing.assert_close(prior.grad_(x, start.clone(), 1.5), start + 1.5 * expected, rtol=1e-12, atol=1e-12)
    out = torch.full(x.shape, 0.25, dtype=x.dtype)  # a gradient laid out differently from its parameter
    prior.foreach_grad_([x, x], [out, out], 0.5)
    torch.testing.assert_close(out, 0.25 + expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", PRIORS, ids=lambda p: type(p).__name__)
def test_foreach_energy_is_the_log_density(prior):
    xs = list(layouts().values())
    total = -prior.foreach_energy(xs) - sum(prior.log_normaliser(x.shape) for x in xs)
    torch.testing.assert_close(total, torch.stack([prior.log_prob(x) for x in xs]).sum(), rtol=1e-12, atol=1e-12)


def test_gradients_at_the_kinks_are_finite():
    zero = torch.zeros(3, 4)
    for prior in [priors.Laplace(1.0), priors.GroupLaplace(1.0), priors.Horseshoe(1.0), priors.Direction()]:
        assert torch.equal(prior.neg_grad(zero), zero)
    assert torch.equal(priors.GroupLaplace(1.0).neg_grad(torch.zeros(5)), torch.zeros(5))


class Quartic(priors.Prior):
    """A user's prior: an energy and a normaliser, nothing else."""

    def energy(self, x):
        return x.pow(4).sum()

    def log_normaliser(self, shape):
        return 0.0


def test_a_prior_of_ones_own_gets_its_gradient_from_autograd():
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    torch.testing.assert_close(Quartic().neg_grad(x), 4 * x**3)


def test_log_prob_of_a_set_supports_first_and_second_derivatives():
    entries = {f"p{i}": (prior, (3, 4)) for i, prior in enumerate([*PRIORS, Quartic()])}
    prior_set = priors.PriorSet(entries)
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in entries]

    def log_prob(*tensors):
        return prior_set.log_prob(tensors)

    assert torch.autograd.gradcheck(log_prob, xs)
    assert torch.autograd.gradgradcheck(log_prob, xs)
    # A scaled backward (loss scaling, a chain rule) scales the closed form.
    (scaled,) = torch.autograd.grad(-3.0 * prior_set.log_prob(xs), xs[:1])
    torch.testing.assert_close(scaled, 3.0 * PRIORS[0].neg_grad(xs[0].detach()))
