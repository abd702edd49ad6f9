"""Every prior's log-density is normalised: by quadrature, by a closed form, or by a high-precision integral."""

import itertools
import math

import mpmath
import pytest
import torch
from scipy import integrate, special, stats

from atmc.common.errors import InputError
from atmc.target import priors
from atmc.target.priors import radial_law

ELEMENTWISE = [
    priors.Normal(0.7),
    priors.Normal(2.0, loc=-1.5),
    priors.Laplace(0.4),
    priors.Laplace(3.0, loc=0.5),
    priors.StudentT(1.0, 0.5),
    priors.StudentT(4.0, 2.0, loc=1.0),
    priors.Horseshoe(0.3),
    priors.Horseshoe(2.0, floor=0.2),
    priors.GroupLaplace(5.0),
]


def density(prior: priors.Prior, *shape: int):
    """x ↦ p(x·1) as a float function of one number, on a tensor with one element."""
    return lambda x: math.exp(float(prior.log_prob(torch.full(shape, x, dtype=torch.float64))))


@pytest.mark.parametrize("prior", ELEMENTWISE, ids=str)
def test_elementwise_density_integrates_to_one(prior):
    p = density(prior, 1)
    loc, scale = getattr(prior, "loc", 0.0), prior.scale
    # Split at the features (peak, kink, shoulder), and take the tails in the variable 1/x.
    points = [loc + s * scale * f for s in (-1, 1) for f in (0.0, 0.003, 0.03, 0.3, 3.0, 30.0)]
    edges = sorted(set(points))
    inside = sum(integrate.quad(p, a, b, epsabs=1e-12)[0] for a, b in itertools.pairwise(edges))
    tails = integrate.quad(p, -math.inf, edges[0])[0] + integrate.quad(p, edges[-1], math.inf)[0]
    assert inside + tails == pytest.approx(1.0, abs=1e-8)


def test_densities_equal_known_ones():
    x = torch.linspace(-3, 3, 31, dtype=torch.float64)
    known = [
        (priors.Normal(0.7, loc=0.2), stats.norm(0.2, 0.7)),
        (priors.Laplace(1.3), stats.laplace(0, 1.3)),
        (priors.StudentT(3.0, 0.6), stats.t(3.0, 0, 0.6)),
    ]
    for prior, reference in known:
        assert float(prior.log_prob(x)) == pytest.approx(reference.logpdf(x.numpy()).sum(), rel=1e-12)


def test_horseshoe_without_floor_is_the_horseshoe_like_density():
    """floor = 0: log(1 + a²/x²)/2πa, with its pole; its Cauchy tail is a/2πx²."""
    p = density(priors.Horseshoe(0.5, floor=0.0), 1)
    assert p(0.2) == pytest.approx(math.log1p(0.25 / 0.04) / (math.pi), rel=1e-12)
    assert p(1e6) * 1e12 == pytest.approx(0.5 / (2 * math.pi), rel=1e-6)
    # A tail far beyond float32's digits of 1 + a²/x² keeps its slope, −log p ~ 2 log x.
    far = torch.tensor([1e7], dtype=torch.float32)
    assert float(priors.Horseshoe(0.5).neg_grad(far)) == pytest.approx(2e-7, rel=1e-5)


@pytest.mark.parametrize("d", [2, 3, 7])
def test_group_laplace_integrates_to_one_on_rows(d):
    """Radially: ∫ S_d r^(d−1) p(r e₁) dr."""
    prior = priors.GroupLaplace(1.7)
    area = 2 * math.pi ** (d / 2) / math.gamma(d / 2)

    def radial_density(r: float) -> float:
        row = torch.zeros(1, d, dtype=torch.float64)
        row[0, 0] = r
        return area * r ** (d - 1) * math.exp(float(prior.log_prob(row)))

    assert integrate.quad(radial_density, 0, math.inf)[0] == pytest.approx(1.0, abs=1e-7)


def test_group_laplace_on_a_scale_is_laplace():
    scale = torch.randn(12, dtype=torch.float64)
    assert torch.equal(priors.GroupLaplace(5.0).log_prob(scale), priors.GroupLaplace(5.0).log_prob(scale[:, None]))
    torch.testing.assert_close(priors.GroupLaplace(5.0).log_prob(scale), priors.Laplace(5.0).log_prob(scale))


def test_direction_integrates_to_one_in_one_and_two_dimensions():
    prior = priors.Direction()
    assert 2 * integrate.quad(density(prior, 1, 1), 0, 8)[0] == pytest.approx(1.0, abs=1e-9)
    # Two dimensions in Cartesian coordinates, on a grid: the integrand is smooth and has decayed at the edges.
    axis = torch.linspace(-3, 3, 601, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    energy = (grid.square().sum(1) - 1).square()  # d/2 = 1
    total = torch.exp(-energy - prior.log_normaliser((1, 2))).sum() * (axis[1] - axis[0]) ** 2
    assert float(total) == pytest.approx(1.0, abs=1e-9)
    assert float(prior.log_prob(grid[:5])) == pytest.approx(float(-energy[:5].sum() - 5 * prior.log_normaliser((1, 2))))


@pytest.mark.parametrize("d", [1, 2, 3, 9, 27, 40])
def test_direction_normaliser_equals_the_parabolic_cylinder_form(d):
    """Z = π^(d/2)/Γ(d/2) · ∫ s^(d/2−1) e^(−(d/2)(s−1)²) ds; the integral is d^(−d/4) Γ(d/2) e^(−d/4) D_(−d/2)(−√d)."""
    value, _ = special.pbdv(-d / 2, -math.sqrt(d))
    log_z = 0.5 * d * math.log(math.pi) - 0.25 * d * math.log(d) - 0.25 * d + math.log(value)
    assert radial_law.log_normaliser(d) == pytest.approx(log_z, abs=1e-7)


@pytest.mark.parametrize("d", [1, 5, 288, 4_608, 50_000])
def test_direction_normaliser_at_high_precision(d):
    """The radial integral in 40 digits, for the dimensions of real layers and beyond."""
    with mpmath.workdps(40):
        peak = mpmath.log((1 + mpmath.sqrt(3)) / 2) / 2

        def f(t):
            return t - (mpmath.exp(2 * t) - 1) ** 2 / 2

        width = mpmath.sqrt(mpmath.mpf(12) / d)
        nodes = [peak + width * k for k in ([-60, -30, -12, -6, -3] if d < 20 else [-3]) + [-2, -1, 0, 1, 2, 3]]
        inner = mpmath.quad(lambda t: mpmath.exp(d * (f(t) - f(peak))), nodes)
        area = mpmath.log(2) + mpmath.mpf(d) / 2 * mpmath.log(mpmath.pi) - mpmath.loggamma(mpmath.mpf(d) / 2)
        exact = float(area + d * f(peak) + mpmath.log(inner))
    assert radial_law.log_normaliser(d) == pytest.approx(exact, rel=1e-13, abs=1e-9)


def test_log_prob_shapes_and_dtypes():
    for prior in [*ELEMENTWISE, priors.Direction()]:
        assert prior.log_prob(torch.randn(3, 4)).dtype == torch.float32
        assert prior.log_prob(torch.randn(3, 4, dtype=torch.bfloat16)).dtype == torch.float32
        value = prior.log_prob(torch.randn(3, 2, 2, 2, dtype=torch.float64))
        assert value.shape == ()
        assert value.dtype == torch.float64


@pytest.mark.parametrize(
    "make",
    [
        lambda: priors.Normal(0.0),
        lambda: priors.Laplace(-1.0),
        lambda: priors.StudentT(0.0, 1.0),
        lambda: priors.Horseshoe(1.0, floor=-0.1),
        lambda: priors.GroupLaplace(float("nan")),
    ],
)
def test_bad_numbers_are_refused(make):
    with pytest.raises(InputError, match=r"must (be|lie)"):
        make()
