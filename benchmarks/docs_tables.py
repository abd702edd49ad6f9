"""Tables of README and docs that need no run: speed, and short ones of CIFAR-10 and of small data, from results/.

    python benchmarks/docs_tables.py    # fill them anew

`tests/test_docs.py` compares, so that a page never shows a number that results/ does not hold.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from cifar10_pages import scores_table
from hmc_pages import BLOCKS as OF_HMC
from imagenet_pages import BLOCKS as OF_IMAGENET
from imagenet_speed_pages import BLOCKS as OF_IMAGENET_SPEED
from leaderboard_pages import BLOCKS as OF_LEADERBOARD
from network_pages import BLOCKS as OF_NETWORKS
from network_speed_pages import BLOCKS as OF_SPEED
from pages import ROOT, fill, fill_pages, friction, markdown, pages

NETWORKS = {"resnetpp-56x32": "ResNet++-56×32", "resnet-50": "ResNet-50"}
SHARED = {
    "ATMC, speed limit, gradients checked": "ATMC, fused",
    "ATMC": "ATMC Gaussian, fused",
    "SGNHT": "SGNHT Gaussian, fused",
    "SGHMC": "SGHMC Gaussian, fused",
    "SGLD": "SGLD, fused",
}


def _results(path: str) -> Any:
    return json.loads((ROOT / "results" / path).read_text(encoding="utf-8"))


def _steps(path: str, reference: tuple[str, str], contestants: dict[str, str]) -> str:
    times = _results(path)["milliseconds"]
    rows = [[reference[0], *(f"{times[net][reference[1]]:.3g} ms" for net in NETWORKS)]]
    for name, key in contestants.items():
        rows.append([name, *(f"{times[net][key] / times[net][reference[1]]:.2f} ×" for net in NETWORKS)])
    return markdown(["one step", *NETWORKS.values()], rows)


def step_gpu() -> str:
    others = {"SGD with momentum, fused": "SGD momentum, fused", "posteriors, sgnht": "posteriors sgnht"}
    return _steps("step/cuda.json", ("AdamW, fused", "AdamW, fused"), {**SHARED, **others})


def step_cpu() -> str:
    others = {
        "drawing the noise alone, `torch.randn`": "torch.randn alone",
        "AdamW, foreach": "AdamW, foreach",
        "AdamW, fused": "AdamW, fused",
        "SGD with momentum, foreach": "SGD momentum, foreach",
    }
    return _steps("step/cpu.json", ("posteriors, sgnht", "posteriors sgnht"), {**SHARED, **others})


def chains() -> str:
    speed = _results("train/cuda-56x32-b128.json")["speed"]
    plain = _results("networks/cuda.json")["rows"][0]["images_per_second"]["resnet"]
    rows = {
        "ATMC, one chain": speed["atmc"],
        "SGD with momentum, the same network": speed["sgd"],
        "ATMC, four chains together": speed["together"]["4"],
        "SGD, ResNet-56×32 with BatchNorm": plain,
    }
    return markdown(["one H200", "images a second"], [[name, f"{value:,.0f}"] for name, value in rows.items()])


def predictions() -> str:
    rows = [
        [row["way"], f"{row['seconds']:.2f} s", f"{row['ratio']:.2f}"] for row in _results("predict/cuda.json")["rows"]
    ]
    return markdown(["way", "time", "ratio"], rows)


SHORT = {
    "SGD + BatchNorm, one network (ResNet-56×32)": ("sgd-batchnorm", "network"),
    "Deep ensemble of 5: SGD": ("ensemble-sgd", "ensemble"),
    "Deep ensemble of 2: SGD + BatchNorm (ResNet-56×32)": ("ensemble-sgd-batchnorm", "ensemble"),
    "Cycles without sampling (T = 0)": ("atmc-zero", "posterior predictive"),
    "ATMC": ("atmc-settled", "posterior predictive"),
}
LONG = {
    "SGD, one network": ("sgd", "network"),
    **SHORT,
    "SGNHT": ("sgnht-settled", "posterior predictive"),
    "SGHMC": ("sghmc-settled", "posterior predictive"),
    "ATMC at T = 1, noisy Dirichlet, three epochs a cycle": ("atmc-settled-one", "posterior predictive"),
    "ATMC at T = 1, noisy Dirichlet, 20 epochs a cycle": ("atmc", "posterior predictive"),
}


def cifar10(chosen: dict[str, tuple[str, str]]) -> str:
    """Rows of the CIFAR-10 table under shorter names, the best of each column in bold."""
    found = {(row["run"], row["kind"]): row for row in _results("cifar10/table.json")}
    return scores_table([{**found[key], "name": name} for name, key in chosen.items()])


def small_data() -> str:
    names = {
        "T = 1, noisy Dirichlet 0.003": "ATMC, T = 1, noisy Dirichlet",
        "T = 0.3": "ATMC, T = 0.3, categorical",
        "deep ensemble of SGD": "five short SGD networks",
    }
    rows = _results("temperature/cpu.json")["rows"]
    nll = {said: [row["nll"] for row in rows if row["row"] == name] for name, said in names.items()}
    best = min(statistics.mean(each) for each in nll.values())
    lines = []
    for name, each in nll.items():
        mark = "**" if statistics.mean(each) == best else ""
        seeds = [f"{value:.3f}" for value in each]
        lines.append([name, *seeds, f"{mark}{statistics.mean(each):.3f}{mark} ± {statistics.stdev(each):.3f}"])
    return markdown(["NLL", "seed 0", "seed 1", "seed 2", "mean ± standard deviation"], lines)


def minibatch_regressions() -> str:
    names = {
        "logistic": "logistic regression, 31 weights, batches of 32",
        "linear": "linear regression, 50 weights, batches of 32",
    }
    lines = []
    for row in _results("minibatch/law.json"):
        if row["problem"] in names:
            step = "" if row["step"] == 1.0 else f", step × {row['step']:g}"
            step += ", in epochs" if row.get("epochs") else ""
            wide, error = row["stiffest_variance"]
            lines.append(
                [
                    f"{names[row['problem']]}{step}",
                    row["sampler"],
                    friction(row),
                    " … ".join(f"{value:.2f}" for value in row["sd_ratio"][::2]),
                    f"{row['sd_ratio'][1]:.3f}",
                    f"{wide:.2f} ± {error:.2f}",
                    f"{row['kinetic_temperature']:.2f}",
                    f"{row['noise_temperature']:.2f}",
                ]
            )
    heads = [
        "T = 1",
        "sampler",
        "friction along noise",
        "sd / reference",
        "mean",
        "stiffest variance",
        "kinetic T",
        "T along noise",
    ]
    return markdown(heads, lines)


def minibatch_digits() -> str:
    lines = []
    for row in _results("minibatch/law.json"):
        if row["problem"] == "digits":
            noise = row["noise_temperature"]
            scores = [f"{row[key][0]:.3f} ± {row[key][1]:.3f}" for key in ("training_loss", "nll")]
            said = (
                f"all 600 (reference), {row['rate']:g}" if row["batch"] == 600 else f"{row['batch']}, {row['rate']:g}"
            )
            hot = [f"{row['kinetic_temperature']:.2f}", "–" if noise is None else f"{noise:.2f}"]
            lines.append([said, friction(row), *scores, *hot])
    heads = [
        "digits, T = 1: batch, rate",
        "friction along noise",
        "training loss",
        "NLL of the average",
        "kinetic T",
        "T along noise",
    ]
    return markdown(heads, lines)


def thermometer() -> str:
    lines = []
    for row in _results("minibatch/thermometer.json")["off"]:
        said = f"{row['reading']:.2f} ± {row['error']:.2f}"
        lines.append([row["name"], str(row["batch"]), str(row["noise_rank"]), said, "yes" if row["warned"] else "no"])
    return markdown(["T = 1", "batch", "`noise_rank`", "T along noise", "`atmc.sample` warns"], lines)


def batch_growth() -> str:
    names = {"logistic": "logistic regression", "digits": "digits, 64–50–10", "regression": "regression, 8–50–1"}
    said = {"grown": "batches that grow", "bound": "smallest batch, bounded step", "all data": "all data"}
    lines = []
    for row in _results("minibatch/batch_growth.json"):
        mean = {key: statistics.mean(row[key]) for key in ("batch", "rate", "seconds")}
        noise = "–" if row["noise"][0] is None else f"{statistics.mean(row['noise']):.2f}"
        low, middle, high = (f"{value:.2f}" for value in row["sd_ratio"])
        size = f"{mean['batch']:.0f}, {mean['rate']:.2g}"
        spread = f"{middle} ({low} … {high})"
        lines.append([names[row["problem"]], said[row["how"]], size, noise, spread, f"{mean['seconds']:.1f} s"])
    heads = ["T = 1, 600 epochs", "", "batch, rate", "T along noise", "sd / reference", "CPU time"]
    return markdown(heads, lines)


def minibatch_ess() -> str:
    lines = []
    for row in sorted(_results("minibatch/ess.json"), key=lambda row: -row["ess_per_1000_passes"]):
        ratios = " … ".join(f"{value:.2f}" for value in row["sd_ratio"][::2])
        rates = [f"{row[key]:,.{0 if row[key] >= 100 else 1}f}" for key in ("ess_per_1000_passes", "ess_per_second")]
        lines.append([row["method"], ratios, f"{row['sd_ratio'][1]:.2f}", *rates])
    heads = ["logistic regression, T = 1", "sd / reference", "mean", "ESS per 1,000 passes", "ESS per second"]
    return markdown(heads, lines)


def minibatch_cifar10() -> str:
    rows = [row for row in _results("minibatch/cifar10.json") if row["row"] != "shipped"]
    slow = {"slow": "a third of the step", "follow": "more friction", "dirichlet": "noisy Dirichlet"}

    def settings(row: dict[str, Any]) -> list[str]:
        seed = f"seed {row['seeds'][0]}"
        return [said for key, said in slow.items() if key in row["row"]] + ([seed] if row["seeds"] != [0] else [])

    rows.sort(key=lambda row: (row["likelihood"], settings(row), row["temperature"], row["noise_rank"]))
    best = {key: min(row["all"][key] for row in rows) for key in ("nll", "calibrated_nll")}
    lines = []
    for row in rows:
        scores = {key: f"{row['all'][key]:.3f}" for key in best}
        scores |= {key: f"**{text}**" for key, text in scores.items() if row["all"][key] == best[key]}
        noise = row["noise_temperature"]
        hot = ["–", "–"] if noise is None else [f"{row['kinetic_temperature']:.3g}", f"{noise:.3g}"]
        one = f"{100 * row['one']['accuracy']:.1f} / {row['one']['nll']:.3f}"
        name = ", ".join([f"{row['temperature']:g}", *settings(row)])
        lines.append([name, str(row["noise_rank"]), one, f"{100 * row['all']['accuracy']:.1f}", *scores.values(), *hot])
    heads = ["T", "`noise_rank`", "one sample, % / NLL", "five samples, %", "NLL", "calibrated NLL"]
    return markdown([*heads, "kinetic T", "T along noise"], lines)


__all__ = ["BLOCKS", "fill"]

BLOCKS: dict[str, Callable[[], str]] = {
    "readme cifar10": lambda: cifar10(SHORT),
    "when cifar10": lambda: cifar10(LONG),
    "when small": small_data,
    "speed step gpu": step_gpu,
    "speed step cpu": step_cpu,
    "speed chains": chains,
    "speed predict": predictions,
    "minibatches regressions": minibatch_regressions,
    "minibatches digits": minibatch_digits,
    "minibatches ess": minibatch_ess,
    "minibatches thermometer": thermometer,
    "minibatches growth": batch_growth,
    "temperature mini-batches": minibatch_cifar10,
    **OF_HMC,
    **OF_IMAGENET,
    **OF_IMAGENET_SPEED,
    **OF_LEADERBOARD,
    **OF_NETWORKS,
    **OF_SPEED,
}


if __name__ == "__main__":
    for page in fill_pages({name: make() for name, make in BLOCKS.items()}, pages()):
        print(f"filled {page.relative_to(ROOT)}")
