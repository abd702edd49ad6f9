"""Sentences of README and docs with numbers in them: each is in a file of results/ or follows from a formula."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from atmc.samplers import speed_settings

ROOT = Path(__file__).parents[1]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def results(path: str) -> Any:
    return json.loads((ROOT / "results" / path).read_text(encoding="utf-8"))


def test_readmes_three_lines_of_speed_are_measured():
    said = " ".join(text_of("README.md").split())
    speed = results("train/cuda-56x32-b128.json")["speed"]
    assert f"takes {speed['ratio']:.3f} times as long as SGD's: {speed['atmc']:,.0f} images a second" in said
    step = results("step/cuda.json")["milliseconds"]["resnet-50"]
    times = [step[key] for key in ("ATMC, fused", "AdamW, fused", "posteriors sgnht")]
    assert "takes {:.2f} ms; PyTorch's fused AdamW {:.2f} ms, `posteriors` (sgnht) {:.1f} ms".format(*times) in said
    row = results("cifar10/atmc-settled.row.json")
    shape = f"({row['chains']} chains × {row['epochs']} epochs, {row['samples']} samples)"
    assert f"{shape} takes {row['gpu_seconds']:.0f} s end to end" in said
    faq = " ".join(text_of("docs/faq.md").split())
    assert f"takes {times[0]:.2f} ms against {times[2]:.1f} ms" in faq
    assert f"one epoch takes {speed['ratio']:.3f} times" in faq


def test_what_is_said_of_cycles_on_the_small_posterior_is_in_its_table():
    said = " ".join(text_of("docs/hmc.md").split())
    found = {}
    for row in results("hmc/small.json"):
        found.setdefault(row["row"], []).append(row)

    def mean(name, key):
        return sum(row[key] for row in found[name]) / len(found[name])

    follow = ("cycles-0.007-follow", "cycles-0.002-follow")
    heat = sorted(mean(name, "noise_temperature") for name in follow)
    flat = sorted(mean(name, "curvature") for name in follow)
    assert f"It is {heat[0]:.1f} to {heat[1]:.1f} where samples are taken" in said
    assert f"λ is {round(flat[0], -3):,.0f} to {round(flat[1], -3):,.0f} (all data: 56,000 and more)" in said
    assert min(mean(name, "curvature") for name in ("full-0.007", "full-0.002")) > 56_000
    right = mean("full-0.002", "ambiguity")
    worst, friction, all_of_it = (
        mean("cycles-0.002-follow" + more, "ambiguity") for more in ("", "-noise16", "-kronecker16-importance")
    )
    assert 0.35 < (friction - worst) / (right - worst) < 0.65, "by a half"
    assert 0.0 <= right - all_of_it < 0.02
    constant, large = "mini-0.0014-kronecker16-importance", "cycles-0.007-follow-noise16"
    for key in ("training_loss", "nll_alone", "nll"):
        assert mean(constant, key) < min(mean(large, key), mean("cycles-0.007-follow", key))
    best, hot = (results(f"hmc/atmc-{name}-0.json")["validation"]["curve"] for name in ("corrected", "follow"))
    now = [f"{curve[key][9]:.3f}" for curve in (best, hot) for key in ("nll", "ambiguity")]
    assert "an NLL of {} and an ambiguity of {}, `atmc-follow` {} and {}.".format(*now) in said


def test_what_is_said_of_friction_along_each_example_is_in_its_rows():
    said = " ".join(text_of("docs/minibatches.md").split())
    rows = results("minibatch/law.json")

    def only(problem, **wanted):
        keys = {"problem": problem, "sampler": "ATMC", **wanted}
        (row,) = [row for row in rows if all(row.get(key) == value for key, value in keys.items())]
        return row

    digits = [
        only("digits", batch=20, rate=0.05, noise_rank="examples"),
        only("digits", batch=20, rate=0.05, noise_kronecker=True),
        only("digits", batch=600),
    ]
    losses = [f"{row['training_loss'][0]:.3f}" for row in digits]
    words = "is {} at batches of 20 and rate 0.05, where rank 16 with Kronecker factors has {} and all data {};"
    assert words.format(*losses) in said
    chains = results("hmc/small.json")
    names = ["batch64-0.002-examples", "batch64-0.002-kronecker16-importance", "full-0.002"]
    groups = [[row for row in chains if row["row"] == name] for name in names]
    nll = [f"{sum(row['nll'] for row in rows) / len(rows):.3f}" for rows in groups]
    assert "an NLL of {}, with Kronecker factors and importance {}, with all data {};".format(*nll) in said
    heat = [f"{sum(row['noise_temperature'] for row in rows) / len(rows):.1f}" for rows in groups[:2]]
    assert "T along the noise is {} there, and {} with Kronecker factors.".format(*heat) in said
    small = [row for row in chains if row.get("noise_examples") and row["batch"] == 64]
    share = {
        (row["step_size"], row["importance"]): round(100 * row["kick_excess"]) for row in small if row["seed"] == 0
    }
    words = "it is {} % at h = 0.002, with importance {} %, and {} % at h = 0.001."
    assert words.format(share[0.002, False], share[0.002, True], share[0.001, False]) in said
    truth, error = digits[2]["training_loss"]
    for batch, rate in ((20, 0.0125), (100, 0.05)):
        found, own = only("digits", batch=batch, rate=rate, noise_rank="examples")["training_loss"]
        assert abs(found - truth) < 2.5 * (error**2 + own**2) ** 0.5, "weaker noise"

    def stiffest(problem, rank, step=1.0):
        return "{:.2f} ± {:.2f}".format(*only(problem, noise_rank=rank, step=step)["stiffest_variance"])

    assert f"is {stiffest('logistic', 'examples')}, with rank 16 {stiffest('logistic', 16)}." in said
    deviation = only("linear", noise_rank="examples", step=1.0)["sd_ratio"][1]
    assert f"it is {stiffest('linear', 'examples')}, and standard deviations are {deviation:.2f} of the" in said
    halves = [stiffest(problem, "examples", 0.5) for problem in ("logistic", "linear")]
    assert "At half the steps it is {} and {}.".format(*halves) in said


def hmc_row(name):
    return results(f"hmc/atmc-{name}-0.json")


def test_what_corrections_of_gradient_noise_do_on_the_hmc_benchmark_is_in_its_rows():
    said = " ".join(text_of("docs/hmc.md").split())
    corrected, follow, half, double = (
        hmc_row(name) for name in ("corrected", "follow", "corrected-half", "corrected-double")
    )
    alike = [
        {key: row[key] for key in ("gradients", "samples", "temperature", "augment")} for row in (corrected, follow)
    ]
    assert alike[0] == alike[1] == {"gradients": 500_000, "samples": 100, "temperature": 1.0, "augment": "none"}
    curve, other = corrected["validation"]["curve"], follow["validation"]["curve"]
    pairs = [f"{curve['nll'][k - 1]:.3f} against {other['nll'][k - 1]:.3f} after {k}" for k in (10, 20, 100)]
    ahead = [f"{other['nll'][k - 1] - curve['nll'][k - 1]:.2f}".lstrip("0") for k in (10, 100)]
    assert f"by {ahead[0]} to {ahead[1]}: {pairs[0]} samples, {pairs[1]}, {pairs[2]}." in said
    best = next(row for row in results("hmc/published.json")["rows"] if row["row"].startswith("PX"))
    assert next(k for k, nll in enumerate(curve["nll"], 1) if nll < best["nll"]) == 15
    assert "passes the lowest of these NLLs after 15 samples" in said
    ambiguities = [row["validation"]["average"]["ambiguity"] for row in (corrected, follow)]
    assert "(ambiguity {:.3f} against {:.3f}), as HMC's do (0.484)".format(*ambiguities) in said
    assert f"{curve['nll'][49]:.3f} after 50, {curve['nll'][99]:.3f} after 100." in said
    alone = corrected["validation"]["singles"]["nll"]
    words = "at {:.3f} on average from the 11th to the 20th and {:.3f} among the last twenty"
    assert words.format(statistics.mean(alone[10:20]), statistics.mean(alone[80:])) in said
    (mixing,) = [row for row in results("hmc/mixing.json") if row["row"] == "atmc-corrected"]
    assert f"of an image's prediction is {mixing['ess_median']:.0f} of {mixing['draws']} samples;" in said
    assert f"R-hat between its halves is above {mixing['rhat_q95']:.2f} for 5 % of images" in said
    assert f"correlated by up to {max(mixing['slowest'].values()):.2f} from one sample to the next" in said
    rows = [half["validation"], corrected["validation"], double["validation"]]
    nll, apart = ([f"{row['curve'][key][9]:.3f}" for row in rows] for key in ("nll", "ambiguity"))
    assert "h = 0.0002 has {}, h = 0.0004 {} and h = 0.0008 {}.".format(*nll) in said
    single = [f"{statistics.mean(row['singles']['nll'][5:10]):.3f}" for row in rows]
    assert "({}, {} and {}) and a single one is worse ({}, {} and {} on average".format(*apart, *single) in said


def test_what_is_said_of_the_default_prior_is_in_its_results():
    said = " ".join(text_of("docs/tutorials/small-data.md").split())
    rows = results("small_data/default_prior.json")
    pairs = [[f"{row[name]['nll']:.3f}" for name in ("gaussian-limited", "gaussian")] for row in rows]
    assert f"has an NLL of {pairs[0][0]} with it and {pairs[0][1]} with Normal(0, 1)." in said
    assert "on 2,000 images has {} and {}, on 5,000 digits of MNIST {} and {},".format(*pairs[1], *pairs[2]) in said
    assert "a convolutional network on 10,000 images {} and {};".format(*pairs[3]) in said
    apart = sorted(abs(row["gaussian"]["nll"] - row["gaussian-limited"]["nll"]) for row in rows[4:])
    assert len(apart) == 4
    assert apart[2] < 0.01 < apart[3]


def test_what_corrections_do_with_the_same_steps_is_in_its_rows():
    said = " ".join(text_of("docs/hmc.md").split())
    plain, corrected = hmc_row("constant-small"), hmc_row("corrected-half")
    assert plain["settings"]["lr"] == corrected["settings"]["lr"] == 0.0002
    assert plain["settings"]["friction"] == corrected["settings"]["friction"]
    nll, apart = (
        " to ".join(f"{row['validation']['curve'][key][9]:.3f}" for row in (plain, corrected))
        for key in ("nll", "ambiguity")
    )
    assert f"average of ten samples from {nll} and their ambiguity from {apart};" in said
    assert f"noise T is {corrected['noise_temperature']:.1f} instead of {plain['noise_temperature']:.0f}." in said
    larger = hmc_row("constant"), hmc_row("constant-kronecker16-importance")
    assert {row["gradients"] for row in larger} == {50_080}
    averages = [row["validation"]["average"] for row in larger]
    pairs = [" to ".join(f"{row[key]:.3f}" for row in averages) for key in ("nll", "ambiguity")]
    assert "with D = 30, {} and {}.".format(*pairs) in said
    large = hmc_row("follow-kronecker16-importance")["validation"]["curve"]["nll"]
    assert f"{min(large):.3f} after {'seven' if large[6] == min(large) else '?'} samples and {large[9]:.3f}" in said


def test_scores_against_hmc_are_those_of_results():
    ours, cycles, other = hmc_row("corrected"), hmc_row("follow"), results("hmc/sghmc-0.json")
    held, test = ours["validation"]["average"], ours["test"]["average"]
    words = (
        f"an error of {held['error']:.3f} and an NLL of {held['nll']:.3f} on held-out images (one seed; on the test "
    )
    words += f"set {test['error']:.3f} and {test['nll']:.3f})"
    said, readme = (" ".join(text_of(name).split()) for name in ("docs/hmc.md", "README.md"))
    assert words in said
    assert (
        f"an NLL of {held['nll']:.3f} where published SGHMC has 0.409, PX-SGHMC 0.376 and full-batch HMC 0.309"
        in readme
    )
    assert f"gives an NLL of {held['nll']:.3f}, where published SGHMC" in " ".join(
        text_of("docs/minibatches.md").split()
    )
    held = cycles["validation"]["average"]
    assert f"at {held['error']:.3f} / {held['nll']:.3f}." in said
    mine, theirs = cycles["validation"]["curve"]["nll"], other["validation"]["curve"]["nll"]
    pairs = [f"{mine[k - 1]:.3f} against {theirs[k - 1]:.3f} after {k}" for k in (10, 20, other["samples"])]
    assert f"at equal gradients**: {pairs[0]} samples, {pairs[1]}, {pairs[2]}." in said
    assert f"the training loss of `atmc-follow` is {cycles['training_loss']:.3f} after" in said
    assert f"`atmc-corrected` has a training loss of {ours['training_loss']:.3f}." in said


def test_times_and_accuracies_that_are_said_of_cifar10():
    rows = {row["run"]: row for row in results("cifar10/table.json") if row["kind"] != "last sample"}
    ours = [rows[run]["gpu_seconds"] for run in ("atmc-zero", "atmc-settled", "ensemble-sgd")]
    assert {round(seconds / 60) for seconds in ours} == {8, 9}
    assert round(rows["ensemble-sgd-batchnorm"]["gpu_seconds"] / 60) == 13
    behind = [
        100 * (rows["atmc-zero"]["accuracy"] - rows[f"{name}-settled"]["accuracy"])
        for name in ("atmc", "sgnht", "sghmc")
    ]
    said = " ".join(text_of("docs/concepts/when-it-pays.md").split())
    assert f"they are {min(behind):.1f} to {max(behind):.1f} points behind" in said
    nll = [abs(rows[f"{name}-settled"]["nll"] - rows["atmc-zero"]["nll"]) for name in ("atmc", "sgnht", "sghmc")]
    assert max(nll) < 2 * rows["atmc-zero"]["spread"]["nll"]


def test_numbers_that_follow_from_formulas():
    said = text_of("docs/tutorials/own-network.md")
    assert f"D is {speed_settings(lr=1e-3, speed=1.0, momentum=0.9)['friction']:.0f}" in said
    lines = text_of("docs/tutorials/regression.md").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("| K |"))
    counts, _, errors = (line.strip("|").split("|") for line in lines[at : at + 3])
    expected = [f"{100 * math.sqrt(2 / (int(k) - 1)):.0f} %" for k in counts[1:]]
    assert [cell.strip() for cell in errors[1:]] == expected


def test_the_page_of_pretrained_networks_says_what_was_measured():
    said = " ".join(text_of("docs/tutorials/pretrained.md").split())
    rows = results("pretrained/cpu.json")["rows"]

    def mean(row: str, score: str) -> str:
        return f"{statistics.mean(seed[score] for seed in rows[row].values()):.3f}".replace("0.", ".")

    net, one = "the network", "T = 1"
    nll, ece = (f"{mean(net, score)} to {mean(one, score)}" for score in ("nll", "ece"))
    assert f"lowers the NLL from {nll} and the ECE from {ece}." in said
    assert f"more NLL ({mean('the network, logits scaled', 'nll')})" in said
    assert f"the most ({mean('the networks of all seeds together', 'nll')})" in said
