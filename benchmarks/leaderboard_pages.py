"""What docs/ show of results/leaderboard: Markdown made from table.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pages import ROOT, markdown

Row = dict[str, Any]
SCORES = {"accuracy": "accuracy %", "nll": "NLL", "calibrated_nll": "calibrated NLL", "ece": "ECE"}
MAIN, MOST = ("wrn16", 160.0), 45_000
PENDING = "Not run yet."


def methods(network: str, images: int, epochs: Sequence[float] = ()) -> list[list[Row]]:
    """Scored rows with all networks, the seeds of a method together, lowest NLL first."""
    path = ROOT / "results" / "leaderboard" / "table.json"
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    own = [row for row in rows if (row["network"], row["images"]) == (network, images) and row["all"] and "test" in row]
    wanted = [row for row in own if not epochs or row["epochs"] in epochs]
    by: dict[tuple[str, float], list[Row]] = {}
    for row in wanted:
        by.setdefault((row["method"], row["epochs"]), []).append(row)
    return sorted(by.values(), key=lambda seeds: mean(seeds, "nll"))


def mean(seeds: Sequence[Row], score: str) -> float:
    return float(np.mean([row["test"][score] for row in seeds]))


def temperatures(seeds: Sequence[Row]) -> str:
    found = sorted({row["temperature"] for row in seeds if row["temperature"] is not None})
    return ", ".join(f"{t:g}" for t in found) or "–"


def cell(seeds: Sequence[Row], score: str) -> str:
    """The mean over seeds, with its standard error."""
    values = np.array([row["test"][score] for row in seeds]) * (100 if score == "accuracy" else 1)
    places = 2 if score == "accuracy" else 3
    wide = f" ± {values.std(ddof=1) / len(values) ** 0.5:.{places}f}" if len(values) > 1 else ""
    return f"{values.mean():.{places}f}{wide}"


def scores_table(found: Sequence[Sequence[Row]]) -> str:
    best = {s: (max if s == "accuracy" else min)(mean(seeds, s) for seeds in found) for s in SCORES}
    lines = []
    for seeds in found:
        marks = {s: "**" if mean(seeds, s) == best[s] else "" for s in SCORES}
        cells = [f"{marks[s]}{cell(seeds, s)}{marks[s]}" for s in SCORES]
        cost = [str(seeds[0]["networks"]), f"{np.mean([row['gpu_seconds'] for row in seeds]):.0f} s"]
        lines.append([seeds[0]["method"], temperatures(seeds), *cells, *cost])
    return markdown(["method", "T", *SCORES.values(), "forward passes", "GPU time"], lines)


def ahead(seeds: Sequence[Row], of: str, score: str) -> str:
    """The mean over seeds of paired differences. Seeds share the test images, so they do not lower the error."""
    pairs = [row[f"ahead_of_{of}"][score] for row in seeds if f"ahead_of_{of}" in row]
    if not pairs:
        return "–"
    value, error = (round(float(each), 4) + 0.0 for each in np.mean(pairs, axis=0))  # + 0.0: never −0
    return f"{value:.4f} ± {error:.4f}".replace("-", "−")


def rows() -> str:
    found = methods(MAIN[0], MOST, [MAIN[1]])
    return scores_table(found) if found else ""


def paired() -> str:
    found = [seeds for seeds in methods(MAIN[0], MOST) if seeds[0]["epochs"] >= MAIN[1]]
    lines = [
        [
            seeds[0]["method"],
            temperatures(seeds),
            f"{seeds[0]['epochs']:g}",
            *(ahead(seeds, "ablation", score) for score in ("nll", "calibrated_nll")),
            *(ahead(seeds, "ensemble", score) for score in ("nll", "calibrated_nll")),
        ]
        for seeds in found
        if any("ahead_of_ablation" in row or "ahead_of_ensemble" in row for row in seeds)
    ]
    heads = [f"{score} ahead of {other}" for other in ("T = 0", "the ensemble") for score in ("NLL", "calibrated NLL")]
    return markdown(["method", "T", "epochs", *heads], lines) if lines else ""


def shifted() -> str:
    found = [seeds for seeds in methods(MAIN[0], MOST, [MAIN[1]]) if seeds[0]["ood"] or seeds[0]["shift"]]
    if not found:
        return ""
    names = sorted(found[0][0]["ood"])
    lines = []
    for seeds in found:
        ood = [f"{np.mean([row['ood'][name]['auroc'] for row in seeds]):.3f}" for name in names]
        nll = [
            f"{np.mean([row['shift'][at]['nll'] for row in seeds]):.3f}" if seeds[0]["shift"] else "–"
            for at in ("1", "3", "5")
        ]
        lines.append([seeds[0]["method"], *ood, *nll])
    heads = [*(f"AUROC, {name}" for name in names), *(f"NLL, severity {at}" for at in (1, 3, 5))]
    return markdown(["method", *heads], lines)


def few() -> str:
    lines = []
    for images in (1000, 5000, 20_000):
        for seeds in methods(MAIN[0], images):
            scores = [cell(seeds, score) for score in ("accuracy", "nll", "calibrated_nll")]
            paired = ahead(seeds, "ablation", "calibrated_nll")
            said = [f"{images:,}", seeds[0]["method"], temperatures(seeds), f"{seeds[0]['epochs']:g}"]
            lines.append([*said, *scores, paired])
    heads = ["images", "method", "T", "epochs", "accuracy %", "NLL", "calibrated NLL", "ahead of T = 0 in it"]
    return markdown(heads, lines) if lines else ""


WORDS = (
    """WRN-16-4 with GroupNorm, 45,000 images, crops and flips, 160 epochs in all for each row; standard errors over
seeds. Every sampler begins at the modes of the same four cycles, three epochs before their end, so it differs from
T = 0 in these epochs alone. On 5,000 held-out images T is chosen from 0.01, 0.05 and 0.2 for every sampler, and the
size of ensembles. Only what was chosen meets the test set. GPU time: training alone; processes side by side have an
equal share of it.""",
    """Image by image, positive is ahead; standard errors over the test images, which all seeds share. *From the mean*:
begins at the mean of three iterates. *For long*: stays for twelve epochs, with a mass for each weight. *Means of
modes*: the samples of a mode are averaged to one network.""",
    "Out-of-distribution inputs, told apart by entropy, and corrupted test images.",
    "From few images, two modes:",
)


def section() -> str:
    """All tables that have rows, each under the words that explain it."""
    tables = (rows(), paired(), shifted(), few())
    return "\n\n".join(f"{words}\n\n{table}" for words, table in zip(WORDS, tables, strict=True) if table) or PENDING


BLOCKS: dict[str, Callable[[], str]] = {"leaderboard": section}
