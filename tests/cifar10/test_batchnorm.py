"""What docs/cifar10.md tells of SGD's networks with BatchNorm, alone and together, is what is kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from .rescored import RESULTS, ROOT, ahead, calibration_error, costs, probabilities
from .told import TEXT, bare, said_of


def doubt_of_noise(file: str) -> float:
    """AUROC, in per cent, of the entropy: how much likelier noise is to be doubted than a test image."""
    stored = np.load(RESULTS / file)
    seen, noise = (p.astype(np.float64) for p in (stored["probs"].mean(0), stored["outside.noise"]))
    entropy = [-(p * np.log(np.maximum(p, 1e-300))).sum(-1) for p in (seen, noise)]
    return float(100 * stats.mannwhitneyu(entropy[1], entropy[0]).statistic / (len(seen) * len(noise)))


def test_networks_with_batchnorm(labels, rows):
    network, both = rows["sgd-batchnorm", "network"], rows["ensemble-sgd-batchnorm", "ensemble"]
    seeds = [np.load(RESULTS / f"sgd-batchnorm-{seed}.npz")["probs"][0].astype(np.float64) for seed in network["seeds"]]
    assert len(seeds) == 3
    assert np.allclose(probabilities("ensemble-sgd-batchnorm"), seeds[:2], rtol=1e-3, atol=1e-7)  # stored in float16
    said = f"has three seeds, which have {said_of(network)} on average. The first two have {said_of(both, ece=True)}"
    assert f"{said.replace(', ECE', ' together, ECE')}: the ensemble of the table" in TEXT
    pairs = [np.mean(pair, 0) for pair in itertools.combinations(seeds, 2)]
    right = [100 * np.mean(pair.argmax(-1) == labels) for pair in pairs]
    assert right[0] == max(right)  # "the luckiest"
    mean = f"{np.mean(right):.2f} / {np.mean([costs(pair).mean() for pair in pairs]):.3f}"
    assert bare(f"the three pairs have {mean} on average") in TEXT
    best = max(row["accuracy"] for (run, _), row in rows.items() if "batchnorm" not in run)
    said = f"and {min(right) - 100 * best:.1f} to {max(right) - 100 * best:.1f} points (three pairs) more accuracy than"
    assert said in TEXT
    nll, points = ahead("ensemble-sgd-batchnorm", "atmc-zero")
    words = f"({nll} less than that of the control), their accuracy is ahead of it by {points} points"
    assert words in TEXT
    assert rows["atmc-zero", "posterior predictive"]["accuracy"] == best
    assert f"took {both['gpu_seconds'] / 60:.0f} minutes" in TEXT
    all_three = np.mean(seeds, 0)
    scores = bare(f"{100 * np.mean(all_three.argmax(-1) == labels):.2f} / {costs(all_three).mean():.3f}")
    error = bare(f"ECE {calibration_error(all_three, labels):.3f}")
    less = costs(probabilities("atmc-zero").mean(0)) - costs(all_three)
    ahead_by = bare(f"{less.mean():.4f} ± {less.std(ddof=1) / len(labels) ** 0.5:.4f}")
    minutes = f"in {network['gpu_seconds'] / 60:.0f} minutes"
    assert f"All three have {scores} together, {error}, {minutes}: {ahead_by} less NLL than the control." in TEXT
    assert f"**Two SGD networks with BatchNorm have {said_of(both)} together, and three {scores}.**" in TEXT
    lead = min(row["nll"] for row in rows.values()) - costs(all_three).mean()
    assert bare(f"three are ahead of all rows by {lead:.3f}.") in TEXT
    assert bare(f"(ECE {both['ece']:.3f} and {error.removeprefix('ECE ')})") in TEXT
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"({mean} on average over three pairs), at one and a half times" in readme
    assert f"Three, at more than twice, have {scores.replace('/ .', '/ 0.')}." in readme
    assert 2 < network["gpu_seconds"] / rows["atmc-zero", "posterior predictive"]["gpu_seconds"] < 2.5
    hits = [seed.argmax(-1) == labels for seed in seeds]
    unlike = [np.sum(one != two) for one, two in itertools.combinations(hits, 2)]
    chance = 100 * np.sqrt(np.mean(unlike) / 2) / len(labels)
    said = f"differ on {min(unlike)} to {max(unlike)} images in whether they are right, which would make"
    assert bare(f"{said} {chance:.2f} of it") in TEXT
    differ = [100 * np.mean(one.argmax(-1) != two.argmax(-1)) for one, two in itertools.combinations(seeds, 2)]
    assert f"The pairs disagree on {min(differ):.1f} to {max(differ):.1f} % of the images" in TEXT
    single = [doubt_of_noise(f"sgd-batchnorm-{seed}.npz") for seed in network["seeds"]]
    together = 100 * both["outside"]["noise"]["entropy"]
    assert together == pytest.approx(doubt_of_noise("ensemble-sgd-batchnorm-0.npz"), abs=0.01)
    others = [
        100 * row["outside"]["noise"]["entropy"]
        for row in rows.values()
        if row["kind"] == "posterior predictive" and row["row"].startswith("ATMC")
    ]
    said = "an AUROC of {:.1f} %, {:.1f} % and {:.1f} %, the first two together with {:.1f} %".format(*single, together)
    assert f"{said}, where the rows of ATMC have {min(others):.0f} to {max(others):.0f} %" in TEXT
