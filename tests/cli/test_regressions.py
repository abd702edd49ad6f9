"""A regression's way through the commands: what can be had is given, and what cannot is named with what can."""

import json
import re
import shlex

import numpy as np
import pytest
import torch
from PIL import Image
from shell import atmc, fails, fingerprint
from torch import nn

from atmc import Posterior, likelihoods
from atmc.api.sampling import sample
from atmc.common.errors import InputError


def numbers(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator) * 2 - 1
    return x, torch.sin(3 * x) + 0.2 * torch.randn(n, 1, generator=generator)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of two chains that was evaluated, and one that was not."""
    folder = tmp_path_factory.mktemp("regressions")
    noise = likelihoods.Gaussian(0.2)
    more = {"epochs": 12, "likelihood": noise, "progress": None}
    sample(network(), numbers(96), out=folder / "line", test=numbers(40, 1), chains=2, **more)
    sample(network(), numbers(96), out=folder / "bare", **more)
    return folder


def test_evaluate_gives_the_scores_that_python_gives(made):
    before = fingerprint(made / "line")
    result = atmc("evaluate", made / "line", "--json")
    assert result.code == 0, result
    found = json.loads(result.out)
    expected = Posterior.from_run(made / "line", network()).evaluate(*numbers(40, 1))
    assert found.pop("scale") == pytest.approx(0.2)
    low, high = found.pop("intervals")["rmse"]
    assert low < found["predictive"]["rmse"] < high
    assert found.keys() == expected.keys()
    for kind in ("single", "predictive", "mean_single"):
        assert found[kind] == pytest.approx(expected[kind], rel=1e-4)
    said = atmc("evaluate", made / "line").out
    assert "on 40 test examples (noise of the targets: 0.2, augmentation in training: none, T = 1)" in said
    assert re.search(r"RMSE +NLL nats +in 90 % interval %", said)
    assert f"predictive of {found['samples']} samples" in said
    assert f"{found['predictive']['nll']:.3f}" in said
    assert fingerprint(made / "line") == before


def test_targets_that_lack_an_axis_are_scored_as_the_run_scored_them(made, tmp_path):
    x, y = numbers(40, 1)
    more = {"epochs": 12, "likelihood": likelihoods.Gaussian(0.2), "progress": None, "chains": 2}
    sample(network(), numbers(96), out=tmp_path / "flat", test=(x, y[:, 0]), **more)
    found, expected = (json.loads(atmc("evaluate", run, "--json").out) for run in (tmp_path / "flat", made / "line"))
    assert found["predictive"] == expected["predictive"]
    with pytest.raises(InputError, match=r"pass y\[:, None\]"):
        Posterior.from_run(made / "line", network()).evaluate(x, y[:, 0])


def test_the_next_command_of_each_verb_works(made):
    """The doctor names the report, which names predictions and not the doctor again."""
    [following] = re.findall(r"^Next: atmc (.*)$", atmc("doctor", made / "line").out, re.MULTILINE)
    result = atmc(*shlex.split(following))
    assert result.code == 0, following
    assert f"Next: in Python, atmc.Posterior.from_run('{made / 'line'}', model).regress(x)" in result.out
    assert len(Posterior.from_run(made / "line", network()).regress(numbers(5)[0])) == 5


def test_a_report_has_scores_intervals_and_coverage(made, tmp_path):
    found = json.loads(atmc("report", made / "line", "--figures", tmp_path / "figures", "--json").out)
    page = (made / "line" / "report.html").read_text()
    scores = json.loads(atmc("evaluate", made / "line", "--json").out)
    assert found["rows"][0]["predictive"] == pytest.approx(scores["predictive"])
    assert f"{scores['predictive']['rmse']:.3g}" in page
    assert str(tmp_path) not in page
    names = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert {"predicted", "residuals", "coverage", "loss"} <= names
    said = atmc("report", made / "line")
    assert said.code == 0
    assert found["rows"][0]["intervals"] == scores["intervals"]
    assert f"{100 * scores['predictive']['coverage90']:.1f} % of the true values lie in their 90 %" in said.out
    fails("report", made / "line", "--ood", "noise", match="--ood is for images with classes")


def test_what_no_command_can_do_is_said_with_what_can(made):
    fails("predict", made / "line", "x.png", match=f"from_run('{made / 'line'}', model).regress(x)")
    before = fingerprint(made / "line")
    line = fails("export", made / "line", "out", match="a network of your own")
    assert f"from_run('{made / 'line'}', model).export('out', inputs=x[:16])" in line
    Posterior.from_run(made / "line", network()).save("out")
    assert "posterior.onnx" in atmc("export", "out", "again").out
    line = fails("distill", made / "line", "student", match="distilling is for classifiers")
    assert "labels" not in line
    assert fingerprint(made / "line") == before
    fails("evaluate", made / "line", "--on", "digits", match="is a regression, and --on names images with classes")
    fails("evaluate", made / "bare", match="has no test labels: give test=(x, y)")
    fails("report", made / "bare", match="has no test labels: give test=(x, y)")
    assert f"Next: in Python, atmc.Posterior.from_run('{made / 'bare'}', model).evaluate(x, y)" in (
        atmc("doctor", made / "bare").out
    )


def test_numbers_read_off_pictures_are_a_regression_too(tmp_path):
    """Neither their shape nor targets that are whole numbers make classes of them."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 1, 4, 4), dtype=np.uint8)
    count = torch.from_numpy((pixels > 127).sum((1, 2, 3))).long()
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Flatten(0))
    given = (pixels, count)
    p = sample(model, given, epochs=4, out="dots", test=given, likelihood=likelihoods.Gaussian(3.0), progress=None)
    Image.fromarray(pixels[0, 0]).save("x.png")
    fails("predict", "dots", "x.png", match="from_run('dots', model).regress(x)")
    assert atmc("report", "dots").code == 0
    assert json.loads(atmc("evaluate", "dots", "--json").out)["predictive"] == pytest.approx(
        p.evaluate(*given)["predictive"], rel=1e-4
    )
    p.save("saved")
    fails("predict", "saved", "x.png", match="atmc.Posterior.load('saved').regress(x)")
    assert atmc("export", "saved", "copy", "--no-onnx").code == 0
