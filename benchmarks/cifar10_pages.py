"""What README and docs/ show of results/cifar10: Markdown made from table.json, the rows and exploration.json."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atmc.recipe.settings import temperature_said
from atmc.report.table import epochs_said
from cifar10_history import history_table
from cifar10_scores import SCORES
from cifar10_store import Row, load_rows
from cifar10_table import ABLATION, LAST, total_seconds
from pages import markdown

ATMC, ATMC_AT_ONE, EQUILIBRIUM = "atmc-settled-T0.05", "atmc-settled-one", "atmc"
FIVE, TWO = "ensemble-sgd", "ensemble-sgd-batchnorm"
# Runs of earlier settings, on the page of more tables.
OLDER = ("atmc-cold", "atmc-cold-one", "atmc-short", "sgnht-cold", "sgnht-settled-one", "sghmc-settled-one")
SHOWN = ("accuracy", "nll", "calibrated_nll", "ece")
NAMES = {"accuracy": "accuracy %", "nll": "NLL", "calibrated_nll": "calibrated NLL", "ece": "ECE", "brier": "Brier"}


def blocks(folder: Path, rows: Sequence[Row]) -> dict[str, str]:
    """Every generated passage by its name; only tables that `rows` can fill."""
    averaged = sorted((row for row in rows if row["kind"] != LAST), key=lambda row: row["nll"])
    last = sorted((row for row in rows if row["kind"] == LAST), key=lambda row: row["nll"])
    collected = {row["row"]: row for row in load_rows(folder)}
    by_run = {row["run"]: row for row in averaged}
    main = [row for row in averaged if row["run"] not in OLDER]
    found = {
        "predictions": scores_table(main),
        "older": scores_table([row for row in averaged if row["run"] in OLDER]),
        "last": last_table(last),
        "paper": paper_table(averaged),
        "cost": cost_table(averaged),
        "ood": ood_table(averaged),
        "ablation": ablation_table(main),
        "modes": modes_table(averaged, collected),
    }
    if all(run in by_run for run in (ATMC, ABLATION, FIVE, TWO, ATMC_AT_ONE, EQUILIBRIUM)):
        found["answer"] = answer(by_run, collected)
    if (folder / "exploration.json").exists():
        found["history"] = history_table(json.loads((folder / "exploration.json").read_text(encoding="utf-8"))["runs"])
    return {f"cifar10 {name}": text for name, text in found.items()}


# -- tables ------------------------------------------------------------------------------------------------------------


def scores_table(rows: Sequence[Row]) -> str:
    """Scores and costs, lowest NLL first: at most eight columns."""
    columns = [best(rows, score) for score in SHOWN]
    cells = [
        [row["name"], temperature(row), *(column[i] for column in columns), str(row["samples"]), time(row)]
        for i, row in enumerate(rows)
    ]
    return markdown(["CIFAR-10", "T", *(NAMES[s] for s in SHOWN), "forward passes", "GPU time"], cells)


def last_table(rows: Sequence[Row]) -> str:
    """Single samples: all scores beside the paper's."""
    columns = [best(rows, score) for score in SCORES]
    cells = [
        [row["name"], temperature(row), *(column[i] for column in columns), paper(row)] for i, row in enumerate(rows)
    ]
    return markdown(["CIFAR-10", "T", *NAMES.values(), "paper: accuracy % / NLL"], cells)


def paper_table(rows: Sequence[Row]) -> str:
    """The rows that the paper has too."""
    cells = [[row["name"], temperature(row), said(row), paper(row)] for row in rows if row["paper"] is not None]
    return markdown(["CIFAR-10, accuracy % / NLL", "T", "here", "paper"], cells)


def cost_table(rows: Sequence[Row]) -> str:
    """How long each row trained, and the sum below."""
    cells = [[row["name"], temperature(row), epochs_said(row["epochs"], row["chains"]), seeds(row)] for row in rows]
    devices = sorted({device for row in rows for device in row["device"]})
    total = f"All runs together: {duration(total_seconds(rows))} on {', '.join(devices)}."
    return f"{markdown(['CIFAR-10', 'T', 'epochs', 'seeds'], cells)}\n\n{total}"


def ood_table(rows: Sequence[Row]) -> str:
    """How well OOD data sets are told from the test images, by the entropy of the prediction."""
    rows = [row for row in rows if row.get("ood")]
    sets = list(dict.fromkeys(name for row in rows for name in row["ood"]))
    cells = []
    for row in rows:
        both = [
            f"{100 * row['ood'][s][key]:.1f}" if s in row["ood"] else "–" for key in ("auroc", "fpr95") for s in sets
        ]
        cells.append([row["name"], temperature(row), *both])
    return markdown(["CIFAR-10 against", "T", *(f"AUROC % {s}" for s in sets), *(f"FPR95 % {s}" for s in sets)], cells)


def ablation_table(rows: Sequence[Row]) -> str:
    """Image by image against the same cycles at T = 0: positive is better than T = 0."""
    cells = []
    for row in (row for row in rows if "ahead_of_ablation" in row):
        found = row["ahead_of_ablation"]
        points = [100 * value for value in found["accuracy"]]
        cells.append(
            [
                row["name"],
                temperature(row),
                error(*points, 2),
                *(error(*found[s], 4) for s in ("nll", "calibrated_nll")),
            ]
        )
    return markdown(["ahead of the ablation by", "T", "accuracy, points", "NLL", "calibrated NLL"], cells)


def modes_table(rows: Sequence[Row], collected: dict[str, Row]) -> str:
    """NLL and calibrated NLL of ever more modes of different chains."""
    cells = []
    for row in rows:
        curves = collected[row["run"]]["curves"][0]
        modes = curves.get("modes")
        if not modes or "3" not in modes:
            continue
        one = " / ".join(f"{np.mean(modes[key]):.4f}" for key in ("nll", "calibrated_nll"))
        some = [f"{modes[n]['nll']:.4f} / {modes[n]['calibrated_nll']:.4f}" for n in ("2", "3")]
        both = f"{row['nll']:.4f} / {row['calibrated_nll']:.4f}"
        alone = f"{np.mean(curves['single']['nll']):.3f}"
        cells.append([row["name"], temperature(row), alone, one, *some, both, f"{modes['limit'][0]:.3f}"])
    head = ["NLL / calibrated NLL", "T", "one sample", "one mode", "two modes", "three modes", "all modes", "limit"]
    return markdown(head, cells)


# -- the answer in words -----------------------------------------------------------------------------------------------


def answer(rows: dict[str, Row], collected: dict[str, Row]) -> str:
    """The first paragraphs of docs/cifar10.md."""
    ours, ablation, five, two = (rows[run] for run in (ATMC, ABLATION, FIVE, TWO))
    behind = {key: error(-value, se, 4) for key, (value, se) in ours["ahead_of_ablation"].items() if key != "accuracy"}
    points = error(*(100 * abs(value) for value in ours["ahead_of_ablation"]["accuracy"]), 2)
    modes = {
        key: [np.mean(collected[run]["curves"][0]["modes"][key], axis=1) for run in (ABLATION, ATMC)]
        for key in ("nll", "calibrated_nll")
    }
    gain, loss = between(*modes["nll"]), between(*reversed(modes["calibrated_nll"]))
    parts = [
        f"**Sampling gives no gain over the same cycles of SGD at T = 0.** These reach {said(ablation)}, ATMC with "
        f"{ours['samples']} samples {said(ours)} (ECE {ours['ece']:.3f}). Image by image ATMC at T = 0.05 is behind by "
        f"{behind['nll']} in NLL, by {behind['calibrated_nll']} in calibrated NLL and by {points} points of accuracy. "
        f"Within one mode T = 0.05 has {gain} less NLL than T = 0, but that is calibration: with a temperature fitted "
        f"to both, T = 0.05 is {loss} behind.",
        f"**Averaging over cycles pays.** Both are ahead of the paper's 93.9 % / 0.194, and of a deep ensemble of five "
        f"SGD networks of the same kind with as many epochs ({said(five)}). Each takes 8 to 9 min on one "
        f"{ours['device'][0]}.",
        f"**The network matters more.** Two SGD networks with BatchNorm reach {said(two)} and a calibrated NLL of "
        f"{two['calibrated_nll']:.3f} (ablation: {ablation['calibrated_nll']:.3f}) with two forward passes instead of "
        f"{ablation['samples']}. Training them takes {time(two)}.",
        f"**T = 1** with the noisy Dirichlet likelihood reaches {said(rows[EQUILIBRIUM])} if each cycle stays at T for "
        f"20 epochs, which is behind the paper, and {said(rows[ATMC_AT_ONE])} if it stays for three, too short "
        "for equilibrium.",
    ]
    return "\n\n".join("\n".join(textwrap.wrap(part, 120)) for part in parts)


def between(one: Any, two: Any) -> str:
    """The difference of two groups of chains with its standard error: they are not pairs."""
    se = np.sqrt(np.var(one, ddof=1) / len(one) + np.var(two, ddof=1) / len(two))
    return error(float(np.mean(one) - np.mean(two)), float(se), 4)


def said(row: Row) -> str:
    """A row's accuracy and NLL in a sentence."""
    return f"{100 * row['accuracy']:.2f} % / {row['nll']:.3f}"


# -- cells -------------------------------------------------------------------------------------------------------------


def best(rows: Sequence[Row], score: str) -> list[str]:
    """A column with its best bold: the highest accuracy, the lowest of all else; all that show the same number."""
    cells = [shown(row, score) for row in rows]
    numbers = [float(cell.split(" ")[0]) for cell in cells]
    top = max(numbers, default=0.0) if score == "accuracy" else min(numbers, default=0.0)
    return [f"**{cell}**" if number == top else cell for cell, number in zip(cells, numbers, strict=True)]


def shown(row: Row, score: str) -> str:
    """A score as people read it, with its spread over seeds or chains."""
    scale, digits = (100, 2) if score == "accuracy" else (1, 3)
    text = f"{scale * row[score]:.{digits}f}"
    if row["spread"] is None:
        return text
    wide = scale * row["spread"][score]
    return f"{text} ± {wide:.{digits if round(wide, digits) else digits + 1}f}"  # an error of zero says too much


def error(value: float, se: float, digits: int) -> str:
    """Mean ± standard error."""
    rounded = round(value, digits) + 0.0  # no minus before a zero
    return f"{rounded:.{digits}f} ± {se:.{digits}f}".replace("-", "−")


def paper(row: Row) -> str:
    """The paper's numbers."""
    found = row["paper"]
    return "–" if found is None else f"{100 * found['accuracy']:.1f} / {found['nll']:.3f}"


def temperature(row: Row) -> str:
    """At which temperature samples were taken; a cycle explores at T = 0 before, where nothing else is said."""
    if row["temperature"] is None:
        return "–"
    before = row.get("temperature_before")
    return f"{row['temperature']:g}" if not before else temperature_said(row["temperature"], before)


def seeds(row: Row) -> str:
    """How many predictors a row is the mean of: its seeds, or one where they were averaged to an ensemble."""
    return str(len(row["probabilities"]))


def time(row: Row) -> str:
    """GPU time of one predictor of a row, training and evaluation; of several seeds the mean."""
    return duration(row["gpu_seconds"] / (1 if row["kind"] == LAST else len(row["probabilities"])))


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def short_name(row: Row) -> str:
    """As in the tables, with the temperature: a line of a figure."""
    name = re.sub(r", ResNet(\+\+)?-\d+×\d+", "", str(row["name"]))
    return name if row["temperature"] is None or row["run"] == ABLATION else f"{name}, T = {temperature(row)}"
