"""The tables of docs/imagenet.md, from results/imagenet/, results/input/ and results/data_parallel/.

`docs_tables.py` writes them into the page. The paper's numbers are of ImageNet-1k with 1,000 epochs: another data set,
so they say how rows lie to each other and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_recipes import LONG, SETS
from pages import ROOT, markdown

RESULTS = ROOT / "results"
NONE, NOT_RUN = "–", "Not run yet."
TITLES = {
    "imagenette": "Imagenette",
    "imagewoof": "Imagewoof",
    "tiny-imagenet": "Tiny-ImageNet",
    "imagenet-mini": "imagenet-mini",
}
# The paper's order, with the rows that it does not have where they belong.
NAMES = {
    "ensemble-gn": "SGD, and a deep ensemble of it",
    "ensemble-bn": "SGD + BatchNorm, and a deep ensemble of it",
    "zero": "Cycles without sampling",
    "atmc": "ATMC",
    "sgnht": "SGNHT",
    "zero-pp": "Cycles without sampling, ResNet++",
    "atmc-pp": "ATMC, ResNet++",
    f"ensemble-bn{LONG}": "SGD + BatchNorm, twice the epochs",
    f"atmc{LONG}": "ATMC, twice the epochs",
}
# Accuracy % / NLL on ImageNet-1k of one network or sample, and of the average.
PAPER = {
    "ensemble-gn": ("70.9 / 1.24", NONE),
    "ensemble-bn": ("76.2 / 0.947", NONE),
    "atmc-pp": ("74.2 / 1.08", "77.5 / 0.883"),
    "sgnht": ("73.1 / 1.15", "76.4 / 0.941"),
}
RIVALS = {
    "ensemble-bn": "deep ensemble, BatchNorm",
    "ensemble-gn": "deep ensemble, GroupNorm",
    "zero": "cycles without sampling",
    "sgnht": "SGNHT",
    "zero-pp": "cycles without sampling, ResNet++",
    f"ensemble-bn{LONG}": "deep ensemble, BatchNorm, twice the epochs",
}
CONTESTS = {"atmc": tuple(RIVALS)[:4], "atmc-pp": ("zero-pp",), f"atmc{LONG}": (f"ensemble-bn{LONG}",)}
TARGETS = {"imagenette": 0.955, "imagewoof": 0.915}  # accuracy of the average


def rows(folder: Path = RESULTS / "imagenet") -> list[dict[str, Any]]:
    path = folder / "table.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def of_set(name: str, table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The finished rows of a set, in the order of `NAMES`."""
    found = [row for row in table if row["set"] == name and row["status"] == "done"]
    return sorted(found, key=lambda row: list(NAMES).index(row["kind"]))


def scores(name: str, table: list[dict[str, Any]]) -> str:
    """One set: a network or sample alone, the average, and the paper's numbers on another data set."""
    found = of_set(name, table)
    if not found:
        return NOT_RUN
    last = "OOD AUROC %" if SETS[name].other else "top-5 %"
    columns = {
        "average, %": (lambda row: 100 * row["accuracy"], 2, max),
        "NLL": (lambda row: row["nll"], 3, min),
        "ECE": (lambda row: row["ece"], 3, min),
        last: (lambda row: 100 * (row["ood"]["auroc"] if SETS[name].other else row["top5"]), 1, max),
    }
    texts = {head: _best(found, *how) for head, how in columns.items()}
    lines = []
    for at, row in enumerate(found):
        alone = f"{100 * row['single']['accuracy']:.2f} / {row['single']['nll']:.3f}"
        heat = NONE if row["temperature"] is None else f"{row['temperature']:g}"
        paper = " → ".join(PAPER[row["kind"]]) if row["kind"] in PAPER else NONE
        lines.append([NAMES[row["kind"]], heat, alone, *(cells[at] for cells in texts.values()), paper])
    heads = [TITLES[name], "T", "one, % / NLL", *texts, "*paper, ImageNet-1k*: one → average"]
    ended = [f" {row['row']} {row['status']}." for row in table if row["set"] == name and row not in found]
    return f"{markdown(heads, lines)}\n\n{_how(found)}{''.join(ended)}"


def _best(
    found: list[dict[str, Any]], of: Callable[[dict[str, Any]], float], digits: int, better: Callable[..., float]
) -> list[str]:
    values = [of(row) for row in found]
    return [f"**{v:.{digits}f}**" if v == better(values) and len(values) > 1 else f"{v:.{digits}f}" for v in values]


def _how(found: list[dict[str, Any]]) -> str:
    """What all rows of a set share, and what they cost."""
    first = found[0]
    images = f" Images: {first['images']}." if first.get("images") else ""
    usual = [row for row in found if not row["kind"].endswith(LONG)] or found
    epochs = usual[0]["epochs"] // usual[0]["chains"]
    took = [row["gpu_seconds"] for row in found]
    seconds = f"{min(took):,.0f}" if len(took) == 1 else f"{min(took):,.0f} to {max(took):,.0f}"
    return (
        f"`{first['data']}`, crops of {first['crop']} pixels, {usual[0]['chains']} × {epochs} epochs, batch "
        f"{first['batch']}, seed {first['seeds'][0]}; {seconds} s a row on {first['device']}.{images}"
    )


def paired(table: list[dict[str, Any]], folder: Path = RESULTS / "imagenet") -> str:
    """Image by image: how far ATMC's average is ahead of each rival's at the same epochs."""
    lines = []
    for name, title in TITLES.items():
        found = {row["kind"]: row for row in of_set(name, table)}
        for ours, rivals in CONTESTS.items():
            for rival in rivals if ours in found else ():
                if rival in found:
                    (right, nll), (his, other) = (_by_image(found[kind], folder) for kind in (ours, rival))
                    ece = f"{found[rival]['ece'] - found[ours]['ece']:+.3f}".replace("-", "−")
                    differences = [_error(right - his, 2), _error(other - nll, 4), ece]
                    lines.append([title, NAMES[ours], RIVALS[rival], *differences])
    if not lines:
        return NOT_RUN
    return markdown(["set", "row", "ahead of", "by points of accuracy", "NLL", "ECE"], lines)


def _by_image(row: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """Percent right and NLL of every image."""
    stored = np.load(folder / row["probabilities"][0])
    probs, labels = stored["probs"].astype(np.float64).mean(0), stored["labels"]
    return 100.0 * (probs.argmax(1) == labels), -np.log(probs[np.arange(len(labels)), labels])


def _error(values: Any, digits: int) -> str:
    return f"{values.mean():+.{digits}f} ± {values.std(ddof=1) / len(values) ** 0.5:.{digits}f}".replace("-", "−")


def targets(table: list[dict[str, Any]]) -> str:
    """What was to be reached, and whether it was."""
    lines = []
    for name, title in TITLES.items():
        found = {row["kind"]: row for row in of_set(name, table)}
        ours = found.get("atmc")
        if ours is None or name == "imagenet-mini":
            continue
        if name in TARGETS:
            best = max(row["accuracy"] for kind, row in found.items() if kind.startswith("atmc"))
            wanted = f"accuracy ≥ {100 * TARGETS[name]:.1f} %"
            lines.append([title, wanted, f"{100 * best:.2f} %", _yes(best >= TARGETS[name])])
        for rival in ("ensemble-bn", "ensemble-gn"):
            for key in ("nll", "ece") if rival in found else ():
                held = ours[key] < found[rival][key]
                what = f"{key.upper()} below that of the {RIVALS[rival]}"
                lines.append([title, what, f"{ours[key]:.3f} against {found[rival][key]:.3f}", _yes(held)])
    return markdown(["set", "to reach", "here", ""], lines) if lines else NOT_RUN


def _yes(held: bool) -> str:
    return "reached" if held else "not reached"


def calibration(folder: Path = RESULTS / "imagenet") -> str:
    """The calibration figures that there are (`imagenet_figures.py`)."""
    found = [name for name in TITLES if (folder / f"calibration-{name}.svg").exists()]
    return "\n".join(f"![Calibration on {TITLES[n]}](../results/imagenet/calibration-{n}.svg)" for n in found)


def every_set(table: list[dict[str, Any]]) -> str:
    """The tables of the sets that were run, and the names of those that were not."""
    waiting = [title for name, title in TITLES.items() if not of_set(name, table)]
    parts = [scores(name, table) for name, title in TITLES.items() if title not in waiting]
    return "\n\n".join(parts + ([f"{NOT_RUN[:-1]}: {', '.join(waiting)}."] if waiting else []))


def comparison(table: list[dict[str, Any]], folder: Path = RESULTS / "imagenet") -> str:
    """What was to be reached, differences image by image, calibration; nothing where nothing was run."""
    parts = {
        "What was to be reached:": targets(table),
        "Image by image, with standard errors over images; positive is better. There is one seed.": paired(
            table, folder
        ),
        "Calibration, in 8 bins of equal size with 95 % intervals:": calibration(folder),
    }
    return "\n\n".join(f"{lead}\n\n{part}" for lead, part in parts.items() if part and part != NOT_RUN)


BLOCKS: dict[str, Callable[[], str]] = {
    "imagenet rows": lambda: every_set(rows()),
    "imagenet comparison": lambda: comparison(rows()),
}
