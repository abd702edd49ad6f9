"""Likelihoods: densities against references, the properties their docstrings claim, and bad input."""

import math

import pytest
import torch
from scipy import integrate
from torch.nn import functional

from atmc.common.errors import InputError
from atmc.target import likelihoods


def batch(classes: int = 10, size: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(size, classes, generator=generator, dtype=torch.float64) * 3
    return outputs, torch.randint(classes, (size,), generator=generator)


def test_categorical_is_cross_entropy_and_its_probabilities_sum_to_one():
    f, y = batch()
    nll = likelihoods.Categorical().nll(f, y)
    torch.testing.assert_close(nll, functional.cross_entropy(f, y, reduction="none"))
    # Normalised over the labels: the probabilities of all ten possible labels add up to one.
    every = torch.stack([likelihoods.Categorical().nll(f, torch.full_like(y, c)) for c in range(10)])
    torch.testing.assert_close(torch.exp(-every).sum(0), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(likelihoods.Categorical().probs(f), torch.exp(-every).T)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 2)])
def test_gaussian_is_the_normal_density_summed_over_components(shape):
    f, y = torch.randn(shape), torch.randn(shape)
    expected = -torch.distributions.Normal(f, 0.3).log_prob(y)
    nll = likelihoods.Gaussian(0.3).nll(f, y)
    torch.testing.assert_close(nll, expected.reshape(5, -1).sum(1))
    assert torch.equal(likelihoods.Gaussian(0.3).probs(f), f)
    assert likelihoods.Gaussian().task == "regression"


@pytest.mark.parametrize("alpha_eps", [1e-1, 1e-2, 1e-4])
def test_noisy_dirichlet_matches_the_gamma_moments_and_integrates_to_one(alpha_eps):
    likelihood = likelihoods.NoisyDirichlet(alpha_eps)
    for true_class, alpha in ((True, 1 + alpha_eps), (False, alpha_eps)):
        mean, variance = likelihood.moments(true_class)
        # A log-normal with these has the mean and the variance of Gamma(alpha, 1): alpha and alpha.
        assert math.exp(mean + variance / 2) == pytest.approx(alpha)
        assert (math.exp(variance) - 1) * math.exp(2 * mean + variance) == pytest.approx(alpha)
    f, y = batch(4)
    mean = torch.where(functional.one_hot(y, 4).bool(), likelihood.moments(True)[0], likelihood.moments(False)[0])
    var = torch.where(functional.one_hot(y, 4).bool(), likelihood.moments(True)[1], likelihood.moments(False)[1])
    expected = -torch.distributions.Normal(mean.double(), var.double().sqrt()).log_prob(f).sum(1)
    torch.testing.assert_close(likelihood.nll(f, y), expected, rtol=1e-6, atol=1e-6)

    # As a density it is symmetric in transformed label and output: for one class it integrates to one.
    def density(value: float) -> float:
        outputs = torch.tensor([[value]], dtype=torch.float64)
        return math.exp(-float(likelihood.nll(outputs, torch.zeros(1, dtype=torch.long))))

    assert integrate.quad(density, -20, 20, points=[likelihood.moments(True)[0]])[0] == pytest.approx(1.0, abs=1e-8)


def test_noisy_dirichlet_prefers_the_label_the_more_the_cleaner_labels_are():
    y = torch.tensor([2])
    confidence = []
    for alpha_eps in (1e-1, 1e-2, 1e-4):
        likelihood = likelihoods.NoisyDirichlet(alpha_eps)
        best = torch.full((1, 10), likelihood.moments(False)[0])
        best[0, 2] = likelihood.moments(True)[0]
        f = best.clone().requires_grad_()
        likelihood.nll(f, y).sum().backward()
        assert f.grad.abs().max() < 1e-6  # the optimum is where the docstring says
        confidence.append(float(likelihood.probs(best)[0, 2]))
    assert confidence == sorted(confidence)
    assert confidence[1] > 0.98


def test_dirclip_is_its_formula_and_categorical_at_alpha_one():
    f, y = batch()
    log_probs = torch.log_softmax(f, 1)
    likelihood = likelihoods.DirClip(alpha=0.85, clip=-5.0)
    expected = -log_probs[range(6), y] - (0.85 - 1) * torch.maximum(log_probs, torch.tensor(-5.0)).sum(1)
    torch.testing.assert_close(likelihood.nll(f, y), expected)
    torch.testing.assert_close(likelihoods.DirClip(1.0).nll(f, y), likelihoods.Categorical().nll(f, y))
    torch.testing.assert_close(likelihood.probs(f), log_probs.exp())


def test_dirclip_reward_is_bounded_and_flat_below_the_clip():
    likelihood = likelihoods.DirClip(alpha=0.9, clip=-10.0)
    y = torch.tensor([0])
    sure = torch.zeros(1, 10, dtype=torch.float64)
    sure[0, 0] = 500.0
    assert float(likelihood.nll(sure, y)) == pytest.approx(0.1 * 9 * -10.0)
    f = sure.clone().requires_grad_()
    likelihood.nll(f, y).backward()
    assert f.grad.abs().max() < 1e-12
    # Confident and wrong: the clipped prior is flat, and the label pulls with its full strength.
    f = sure.clone().requires_grad_()
    likelihood.nll(f, torch.tensor([3])).backward()
    assert float(f.grad[0, 3]) == pytest.approx(-1.0)


def test_dirclip_never_pulls_towards_a_wrong_class_at_the_safe_alpha():
    """Without clipping, α ≥ 1 − 1/C keeps the gradient of every wrong logit non-negative; below it need not be."""
    f, y = batch(10, 2_000, 4)
    wrong = ~functional.one_hot(y, 10).bool()
    for alpha, safe in ((0.9, True), (0.6, False)):
        x = f.clone().requires_grad_()
        likelihoods.DirClip(alpha, clip=-1e6).nll(x, y).sum().backward()
        towards = bool(((x.grad < -1e-12) & wrong & (torch.softmax(f, 1) > 0.5)).any())
        assert towards != safe


@pytest.mark.parametrize(
    "likelihood", [likelihoods.Categorical(), likelihoods.NoisyDirichlet(), likelihoods.DirClip()], ids=str
)
def test_half_precision_outputs_are_widened_and_bad_labels_named(likelihood):
    f, y = batch()
    assert likelihood.nll(f.bfloat16(), y).dtype == torch.float32
    assert likelihood.nll(f, y.int()).shape == (6,)
    assert likelihood.probs(f.bfloat16()).dtype == torch.float32
    likelihood.check_shapes(f, y)
    likelihood.check_values(f, y)
    for bad, message in ((10, "label 10 of example 3"), (-1, "label -1 of example 3")):
        labels = y.clone()
        labels[3] = bad
        with pytest.raises(InputError, match=message + ".*0 to 9"):
            likelihood.check_values(f, labels)
    for outputs, labels, message in (
        (f, y.double(), "must be integers"),
        (f, y[:4], r"labels must be \[6\]"),
        (f, functional.one_hot(y), r"labels must be \[6\]"),
        (f[0], y, r"must be \[batch, classes\]"),
    ):
        with pytest.raises(InputError, match=message):
            likelihood.check_shapes(outputs, labels)


def test_gaussian_never_broadcasts_and_notices_nan():
    with pytest.raises(InputError, match="one shape"):
        likelihoods.Gaussian().check_shapes(torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(InputError, match="NaN"):
        likelihoods.Gaussian().check_values(torch.zeros(2), torch.tensor([0.0, float("nan")]))


def test_likelihoods_by_the_name_a_recipe_uses():
    assert likelihoods.build("categorical") == likelihoods.Categorical()
    assert likelihoods.build("gaussian", scale=0.2) == likelihoods.Gaussian(0.2)
    assert likelihoods.build("noisy-dirichlet", alpha_eps=0.1) == likelihoods.NoisyDirichlet(0.1)
    assert likelihoods.build("dirclip", alpha=0.95, clip=-20.0) == likelihoods.DirClip(0.95, -20.0)
    with pytest.raises(InputError, match=r"unknown likelihood 'catgorical'; did you mean categorical"):
        likelihoods.build("catgorical")
    with pytest.raises(InputError, match=r"dirclip.*alpah"):
        likelihoods.build("dirclip", alpah=0.9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: likelihoods.Gaussian(0.0),
        lambda: likelihoods.NoisyDirichlet(-1.0),
        lambda: likelihoods.DirClip(alpha=0.0),
        lambda: likelihoods.DirClip(clip=1.0),
    ],
)
def test_bad_numbers_are_refused(make):
    with pytest.raises(InputError, match="must be"):
        make()


class Poisson:
    """A likelihood of a person's own."""

    def nll(self, outputs, y):
        return outputs[:, 0].exp() - y * outputs[:, 0] + torch.lgamma(y + 1.0)


SIZED = {
    "categorical": (likelihoods.Categorical(), (10,), None),
    "noisy-dirichlet": (likelihoods.NoisyDirichlet(), (10,), None),
    "dirclip": (likelihoods.DirClip(clip=-3.0), (10,), None),
    "gaussian": (likelihoods.Gaussian(0.3), (), ()),
    "gaussian, images": (likelihoods.Gaussian(0.3), (2, 3), (2, 3)),
    "learned-noise": (likelihoods.LearnedNoise((0.1, 0.2), (2.0, 3.0)), (4,), (2,)),
    "heteroscedastic": (likelihoods.Heteroscedastic(), (2,), ()),
    "student-t": (likelihoods.StudentT(0.5, 2.0), (2,), ()),
    "input-noise": (likelihoods.InputNoise(), (4,), (2,)),
    "custom": (likelihoods.own_likelihood(Poisson()), (1,), None),
}


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_are_the_lengths_of_each_examples_gradient(name, dtype):
    likelihood, outputs, targets = SIZED[name]
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(7, *outputs, generator=generator).to(dtype)
    y = torch.randint(f.shape[-1], (7,), generator=generator)
    y = y if targets is None else torch.randn(7, *targets, generator=generator)
    expected = []
    for one, label in zip(f.float(), y, strict=True):
        at = one[None].requires_grad_()
        (found,) = torch.autograd.grad(likelihood.nll(at, label[None])[0], at)
        expected.append(found.norm())
    with torch.no_grad():  # it asks for gradients itself
        sizes = likelihood.sizes(f.requires_grad_(), y)
    assert sizes.dtype == torch.float32
    assert not sizes.requires_grad
    assert f.grad is None
    torch.testing.assert_close(sizes, torch.stack(expected))


def test_every_likelihood_has_its_size_tested():
    assert set(likelihoods.LIKELIHOODS) <= set(SIZED)
