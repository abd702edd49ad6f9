"""Report facts for tests, computed from simulated probabilities by a few independent lines of numpy."""

import io

import numpy as np
from PIL import Image

from atmc.posterior.calibration import CalibrationBins
from atmc.posterior.class_scores import confidence_levels
from atmc.posterior.intervals import constant_scores, spreads
from atmc.posterior.ood_detection import RiskCoverage
from atmc.report.report_data import Finding, Growth, ImageCard, OodScores, ReportData, RunFacts, Trace


def simulate(rng, samples, examples=500, classes=10, sharp=4.0, spread=1.2):
    """Probabilities of `samples` networks that are right for most examples and disagree on the hard ones."""
    labels = rng.integers(0, classes, examples)
    ease = rng.gamma(2.0, sharp, examples)
    logits = np.eye(classes)[labels] * ease[:, None] + rng.normal(size=(examples, classes))
    logits = logits[None] + spread * rng.normal(size=(samples, examples, classes))
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    return probs / probs.sum(-1, keepdims=True), labels


def scores(p, y):
    hit = p.argmax(1) == y
    conf = p.max(1)
    edges = np.digitize(conf, np.linspace(0, 1, 16)[1:-1])
    gaps = [abs(hit[edges == b].mean() - conf[edges == b].mean()) * (edges == b).mean() for b in set(edges)]
    nll = -np.log(p[np.arange(len(y)), y])
    brier = float(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean())
    return {"accuracy": float(hit.mean()), "nll": float(nll.mean()), "brier": brier, "ece": float(sum(gaps))}


def bins(p, y):
    order = np.array_split(np.argsort(p.max(1)), 8)
    acc = np.array([(p.argmax(1) == y)[o].mean() for o in order])
    half = np.array([1.96 * np.sqrt(max(a * (1 - a), 0.01) / len(o)) for a, o in zip(acc, order, strict=True)])
    ends = np.array([(p.max(1)[o].min(), p.max(1)[o].max()) for o in order])
    return CalibrationBins(
        np.array([p.max(1)[o].mean() for o in order]),
        acc,
        (acc - half).clip(0),
        (acc + half).clip(max=1),
        np.array([len(o) for o in order]),
        ends[:, 0],
        ends[:, 1],
    )


def risk(p, y):
    wrong = (p.argmax(1) != y)[np.argsort(-p.max(1))]
    n = np.arange(1, len(y) + 1)
    curve = np.cumsum(wrong) / n
    oracle = np.cumsum(np.sort(wrong)) / n
    return RiskCoverage(n / len(y), curve, float(curve.mean()), float((curve - oracle).mean()))


def counted(labels, answers, classes=10):
    """The confusion matrix, counted one by one."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    for truth, answer in zip(labels, answers, strict=True):
        counts[truth, answer] += 1
    return counts


def card(rng, bars, truth):
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(buffer, "png")
    return ImageCard(buffer.getvalue(), truth, bars, 0.3)


def run(name="digits-atmc", method="ATMC", samples=12, seed=0, sharp=4.0, temperature=1.0, before=None, **changes):
    rng = np.random.default_rng(seed)
    probs, labels = simulate(rng, samples, sharp=sharp)
    mean = probs.mean(0)
    epoch = np.linspace(0, 120, 900)
    growth = [scores(probs[: k + 1].mean(0), labels) for k in range(samples)]
    thermostat = (
        20 * (1 - np.exp(-epoch / 30)) + rng.normal(size=900) if temperature is not None else np.full(900, np.nan)
    )
    trace = Trace(
        chain=0,
        epoch=epoch,
        loss=0.05 + np.exp(-epoch / 15) * 2 + 0.01 * rng.random(900),
        temperature=1 + 0.1 * rng.normal(size=900) if temperature is not None else np.full(900, np.nan),
        thermostat=thermostat,
        thermostat_low=thermostat - 15,
        thermostat_high=thermostat + 40,
    )
    entropy = -(mean * np.log(mean)).sum(1)
    values = {
        "name": name,
        "method": method,
        "network": "ResNet++-8×16, 0.08 M parameters",
        "data": "digits",
        "split": "test",
        "examples": 500,
        "temperature": temperature,
        "temperature_before": before,
        "augment": "none",
        "samples": samples,
        "chains": 1,
        "epochs": 120,
        "seconds": 41.0,
        "device": "cpu, 2 threads",
        "seed": seed,
        "single": scores(probs[-1], labels),
        "predictive": scores(mean, labels),
        "bins_single": bins(probs[-1], labels),
        "bins": bins(mean, labels),
        "risk": risk(mean, labels),
        "risk_single": risk(probs[-1], labels),
        "growth": Growth(
            np.arange(1.0, samples + 1),
            np.array([s["accuracy"] for s in growth]),
            np.array([s["nll"] for s in growth]),
            np.array([s["ece"] for s in growth]),
        ),
        "nll_each": -np.log(mean[np.arange(500), labels]),
        "traces": (trace,),
        "surest": tuple(card(rng, (("4", 1.0), ("9", 0.0), ("1", 0.0)), "4") for _ in range(6)),
        "least_sure": tuple(card(rng, (("8", 0.41), ("1", 0.32), ("9", 0.2)), t) for t in "189815"),
        "recipe": 'name = "digits-atmc"\nseed = 0\n\n[sampler]\nname = "atmc"\nlr = 0.001\n',
        "facts": {"Seed": "0", "Python, torch": "3.11, 2.13"},
        "single_spreads": spreads(probs[-1], labels),
        "spreads": spreads(mean, labels),
        "constant": constant_scores(labels, 10),
        "classes": tuple("0123456789"),
        "confusion": counted(labels, mean.argmax(1)),
        "levels": confidence_levels(mean, labels),
    }
    if temperature is not None:
        values["ood"] = (
            OodScores(
                "letters",
                "Capital letters drawn with Pillow's own font.",
                rng.gamma(4, 0.3, 300),
                entropy,
                0.97,
                0.96,
                0.1,
                0.93,
            ),
            OodScores(
                "noise", "Every pixel drawn afresh from the test set's pixels.", rng.gamma(6, 0.2, 300), entropy, 0.95
            ),
        )
        values["findings"] = (Finding("ok", "The kinetic temperature is right.", "1.01 where 1 was asked."),)
    return RunFacts(**(values | changes))


def report(**changes):
    sgd = run("digits-sgd", "SGD", samples=1, seed=1, sharp=5.0, temperature=None)
    return ReportData(**({"runs": (run(), sgd), "made_on": "2026-01-02", "version": "0.1.0"} | changes))
