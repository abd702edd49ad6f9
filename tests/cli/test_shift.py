"""`--shift corruptions` of evaluate and report, on real runs of digits."""

import json

import pytest
from shell import atmc, fails


@pytest.fixture(scope="module")
def found(tiny):
    return json.loads(atmc("evaluate", tiny, "--shift", "corruptions", "--json").out)


def test_scores_by_severity_and_by_corruption(tiny, found):
    assert (found["shift"], found["images"], found["samples"]) == ("corruptions", 500, 3)
    assert list(found["corruptions"]) == ["noise", "blur", "contrast", "brightness", "jpeg", "pixelate", "fog"]
    plain = json.loads(atmc("evaluate", tiny, "--json").out)
    for part in ("predictive", "single"):
        clean = found["severity"][0][part]
        assert clean == pytest.approx({score: plain[part][score] for score in clean}, abs=1e-4)
        for at in range(1, 6):
            for score in ("accuracy", "nll", "ece"):
                each = [kind[part][at - 1][score] for kind in found["corruptions"].values()]
                assert found["severity"][at][part][score] == pytest.approx(sum(each) / 7)
    nll = [row["predictive"]["nll"] for row in found["severity"]]
    assert nll[0] < nll[2] < nll[5]


def test_evaluate_for_people_and_the_report(tiny, found, tmp_path):
    out = atmc("evaluate", tiny, "--shift", "corruptions").out
    worst = found["severity"][5]["predictive"]
    row = next(line for line in out.splitlines() if line.startswith("severity 5"))
    assert row.split()[2:] == [f"{100 * worst['accuracy']:.1f}", f"{worst['nll']:.3f}", f"{worst['ece']:.3f}"]
    assert f"Next: atmc report {tiny} --shift corruptions" in out
    assert atmc("report", tiny, "--out", tmp_path / "r.html", "--shift", "corruptions").code == 0
    page = (tmp_path / "r.html").read_text()
    assert "<h2>Corrupted images</h2>" in page
    assert page.count('aria-label="NLL [nats] against the severity of corruptions"') == 1
    for name in found["corruptions"]:
        assert f'<th scope="row">{name}</th>' in page


def test_what_cannot_be_shifted_is_said(tiny):
    fails("evaluate", tiny, "--shift", "weather", match="there is only corruptions")
    fails("evaluate", tiny, "--shift", "corruptions", "--on", "mnist", match="leave out mnist")
    fails("report", tiny, "--shift", "weather", match="there is only corruptions")
