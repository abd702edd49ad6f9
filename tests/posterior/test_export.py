"""ONNX through onnxruntime against PyTorch, on digits; refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from atmc import likelihoods
from atmc.common.errors import InputError
from atmc.nn.resnetpp import resnetpp
from atmc.nn.with_noise import WithNoise
from atmc.posterior import Posterior
from atmc.posterior import export as exporting

onnxruntime = pytest.importorskip("onnxruntime")


def digits(n: int) -> Tensor:
    return torch.from_numpy(load_digits().images[:n] * (255 / 16)).to(torch.uint8)[:, None]


def small_resnet(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return resnetpp(8, 4, classes=10, in_channels=1)


def test_the_graph_averages_resnets_on_real_pixels(tmp_path: Path) -> None:
    images = digits(24)
    posterior = Posterior([small_resnet(i) for i in range(3)], small_resnet(0), mean=[0.3], std=[0.37], example=images)
    posterior = posterior.weighted([1.0, 2.0, 5.0])
    posterior.export(tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "posterior.onnx"))
    more = digits(200)[100:]
    probs, entropy, epistemic = session.run(None, {"input": more.numpy()})
    expected = posterior.predict(more, device="cpu")
    np.testing.assert_allclose(probs, expected.probs, atol=1e-5)
    np.testing.assert_allclose(entropy, expected.entropy, atol=1e-5)
    np.testing.assert_allclose(epistemic, expected.epistemic, atol=1e-5)
    assert float(np.abs(probs[0] - probs[1]).max()) > 1e-3  # the outputs do depend on the inputs
    about = json.loads((tmp_path / "posterior.json").read_text())["onnx"]
    assert about["checked_on"] == 24
    assert about["largest_difference"] < 1e-5
    assert about["input"] == {"dtype": "uint8", "shape": [1, 8, 8]}
    again = Posterior.load(tmp_path, model=small_resnet(0))
    torch.testing.assert_close(again.predict(more, device="cpu").probs, expected.probs, rtol=0, atol=0)


def perceptron(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def test_floats_go_in_as_they_are(tmp_path: Path) -> None:
    posterior = Posterior([perceptron(i) for i in range(2)], perceptron(0))
    x = torch.randn(5, 2, 3)
    posterior.export(tmp_path, inputs=x)
    session = onnxruntime.InferenceSession(str(tmp_path / "posterior.onnx"))
    found = session.run(["probs"], {"input": x.numpy()})[0]
    np.testing.assert_allclose(found, posterior.predict(x, device="cpu").probs, atol=1e-6)


def regression(law: likelihoods.RegressionLikelihood, outputs: int) -> Posterior:
    samples = []
    for seed in range(3):
        torch.manual_seed(seed)
        net = law.network(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)))
        if isinstance(net, WithNoise):
            nn.init.normal_(net.log_scale, -1.0)
        samples.append(net)
    return Posterior(samples, samples[0], likelihood=law).weighted([1.0, 2.0, 5.0])


@pytest.mark.parametrize(
    ("law", "outputs"),
    [
        (likelihoods.Gaussian(0.3), 2),
        (likelihoods.LearnedNoise(center=1000.0, spread=20.0), 1),
        (likelihoods.LearnedNoise(center=[5.0, -3.0], spread=[2.0, 0.1]), 2),
        (likelihoods.Heteroscedastic(center=5.0, spread=2.0), 2),
        (likelihoods.StudentT(center=5.0, spread=2.0, df=5), 1),
        (likelihoods.InputNoise(center=5.0, spread=2.0, df=5), 1),
    ],
)
def test_a_regression_has_mean_and_both_variances(
    tmp_path: Path, law: likelihoods.RegressionLikelihood, outputs: int
) -> None:
    posterior = regression(law, outputs)
    posterior.export(tmp_path, inputs=torch.randn(6, 4))
    session = onnxruntime.InferenceSession(str(tmp_path / "posterior.onnx"))
    x = torch.randn(9, 4)
    found = dict(zip(("mean", "std", "aleatoric", "epistemic"), session.run(None, {"input": x.numpy()}), strict=True))
    expected = posterior.regress(x, device="cpu")
    for name, values in found.items():
        want = getattr(expected, name).numpy()
        assert values.shape == want.shape
        np.testing.assert_allclose(values, want, rtol=2e-4, err_msg=name)
    again = Posterior.load(tmp_path)
    torch.testing.assert_close(again.regress(x, device="cpu").mean, expected.mean, rtol=0, atol=0)


def test_a_wrong_graph_is_not_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = Posterior([perceptron(i) for i in range(2)], perceptron(0))
    from atmc.posterior import onnx_graph

    real = onnx_graph.build
    monkeypatch.setattr(onnx_graph, "build", lambda p, x: real(p.weighted([3.0, 1.0]), x))
    with pytest.raises(RuntimeError, match="differ by"):
        posterior.export(tmp_path, inputs=torch.randn(5, 2, 3))
    assert not (tmp_path / "posterior.onnx").exists()


class Odd:
    """A likelihood that is no softmax."""

    def probs(self, outputs: Tensor) -> Tensor:
        return torch.softmax(2 * outputs, dim=-1)


def test_refusals(tmp_path: Path) -> None:
    posterior = Posterior([perceptron(0)], perceptron(0))
    with pytest.raises(InputError, match="real inputs"):
        posterior.export(tmp_path)
    with pytest.raises(InputError, match="Odd is not a softmax"):
        Posterior([perceptron(0)], perceptron(0), likelihood=Odd()).export(tmp_path, inputs=torch.randn(2, 6))
    with pytest.raises(ValueError, match="no samples"):
        posterior[:0].export(tmp_path)
    posterior.export(tmp_path, onnx=False)
    assert not (tmp_path / exporting.NAME).exists()
    assert len(Posterior.load(tmp_path)) == 1
