"""The CIFAR-10 table, from the stored probabilities alone: beside the paper's numbers, as JSON and as Markdown.

Every row of table.json follows one rule: average `probs` over the samples of each of its files, score that, and average
the scores over the files (the seeds). `spread` is one standard deviation of such a run: that over
seeds, or, of one run with several chains, what the jackknife makes of leaving out each of them. The Markdown stands in
README and docs between two comments, where `fill` puts it and a test compares it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atmc.recipe.settings import recipe_from_dict, temperature_before, temperature_said
from atmc.report.table import epochs_said
from cifar10_rows import SCORES, Predictor, Row, by_predictor, load_predictors, load_rows, save_json, save_predictor

NETWORK, LAST, PREDICTIVE, ENSEMBLE = "network", "last sample", "posterior predictive", "ensemble"
METHODS = {"sgd": "SGD", "atmc": "ATMC", "sgnht": "SGNHT", "sghmc": "SGHMC", "sgld": "SGLD"}
LIKELIHOODS = {"noisy-dirichlet": "noisy Dirichlet", "dirclip": "DirClip"}
NETWORKS = {"resnetpp": "ResNet++", "resnet": "ResNet", "mlp": "MLP"}
# The paper's table: accuracy and NLL of ResNet++-56×32, and of ResNet-56×32 where there is BatchNorm.
PAPER = {
    ("sgd", "none", NETWORK): (0.915, 0.370),
    ("sgd", "bn", NETWORK): (0.944, 0.243),
    ("atmc", "none", LAST): (0.924, 0.303),
    ("atmc", "none", PREDICTIVE): (0.939, 0.194),
    ("sgnht", "none", LAST): (0.917, 0.343),
    ("sgnht", "none", PREDICTIVE): (0.935, 0.211),
}


def build(folder: Path) -> list[Row]:
    """The rows of the table, in the paper's order, from everything that was collected in `folder`."""
    rows = [row for collected in load_rows(folder) for row in rows_of(collected, folder)]
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple[Any, ...]:
    kinds = (NETWORK, LAST, PREDICTIVE, ENSEMBLE)
    hottest_first = -(row["temperature"] or 0.0)
    return (
        row["kind"] == ENSEMBLE,
        list(METHODS).index(row["sampler"]),
        row["norm"] != "none",
        hottest_first,
        row["run"],
        kinds.index(row["kind"]),
    )


def rows_of(collected: Row, folder: Path) -> list[Row]:
    """One row for a trained network or an ensemble; for a sampled one the last sample, then the predictive."""
    recipe = tomllib.loads((folder / collected["recipe"]).read_text(encoding="utf-8"))
    predictors = load_predictors(folder, collected)
    several = min(len(found.probs) for found in predictors) > 1
    if recipe["sampler"]["name"] == "sgd":
        return [_row(collected, recipe, predictors, ENSEMBLE if several else NETWORK)]
    kinds = (LAST, PREDICTIVE) if several else (LAST,)
    return [_row(collected, recipe, predictors, kind) for kind in kinds]


def _row(collected: Row, recipe: dict[str, Any], predictors: Sequence[Predictor], kind: str) -> Row:
    each = [found.scores(last=kind == LAST) for found in predictors]
    last = [file for files in _last_files(collected, predictors) for file in files]
    before = temperature_before(recipe_from_dict(recipe))
    row = {
        "row": title(collected, recipe, kind),
        "run": collected["row"],
        "made_of": collected.get("made_of"),
        "kind": kind,
        "sampler": recipe["sampler"]["name"],
        "norm": recipe["model"]["norm"],
        "likelihood": recipe["target"]["likelihood"],
        "aside": collected.get("aside", False),
        **{key: collected[key] for key in ("temperature", "augment")},
        **({} if before is None else {"temperature_before": before}),
        **{score: float(np.mean([scores[score] for scores in each])) for score in SCORES},
        "spread": _spread(each) or _spread_over_chains(collected, predictors[0], kind),
        "samples": 1 if kind == LAST else collected["samples"],
        "chains": 1 if kind == LAST else collected["chains"],
        **{key: collected[key] for key in ("epochs", "status", "seeds", "gpu_seconds", "device", "versions", "recipe")},
        "probabilities": last if kind == LAST else collected["probabilities"],
        "paper": paper_numbers(recipe, kind),
    }
    if kind != LAST:
        row["outside"] = _outside(predictors)
    if kind in (PREDICTIVE, ENSEMBLE):
        row["by_samples"] = by_samples(predictors)
    return row


def title(collected: Row, recipe: dict[str, Any], kind: str) -> str:
    """What a row is called: the label it was collected with, or method and network; and which of its predictions."""
    model, likelihood = recipe["model"], recipe["target"]["likelihood"]
    name = "SGD in cycles" if _is_control(recipe) else METHODS[recipe["sampler"]["name"]]
    name += {"bn": " + BatchNorm", "frn": " + FRN"}.get(model["norm"], "")
    name += f", {NETWORKS.get(model['name'], model['name'])}-{model['depth']}"
    name += f"×{model['width']}" if "width" in model else ""
    name += "" if likelihood == "categorical" else f", {LIKELIHOODS.get(likelihood, likelihood)}"
    if _is_control(recipe):
        kind = {LAST: "last network", PREDICTIVE: "average"}[kind]
    name = collected["label"] or name
    done = "" if collected["status"] == "done" else ", unfinished"
    if kind == ENSEMBLE:
        return f"Deep ensemble of {collected['samples']}: {name}{done}"
    return f"{name}{'' if kind == NETWORK else f', {kind}'}{done}"


def _is_control(recipe: dict[str, Any]) -> bool:
    """At T = 0 all samplers are SGD with momentum, and sample nothing."""
    return recipe["sampler"]["name"] != "sgd" and recipe["sampler"].get("temperature") == 0


def _spread(each: Sequence[dict[str, float]]) -> dict[str, float] | None:
    """Standard deviation of each score over the seeds; one seed has none."""
    if len(each) < 2:
        return None
    return {score: float(np.std([scores[score] for scores in each], ddof=1)) for score in SCORES}


def _spread_over_chains(collected: Row, one: Predictor, kind: str) -> dict[str, float] | None:
    """One standard deviation of a run of as many chains, from those of one run; two chains cannot say.

    Chains share nothing but the data. The jackknife's variance is, if anything, too large on average (Efron and Stein,
    1981); from four chains it is a rough number all the same.
    """
    chains = collected["chains"]
    if chains < 3 or kind == NETWORK:
        return None
    each = [found.scores(last=kind == LAST) for found in one.without_each(chains)]
    if not each:
        return None
    return {score: float((chains - 1) ** 0.5 * np.std([scores[score] for scores in each])) for score in SCORES}


def paper_numbers(recipe: dict[str, Any], kind: str) -> dict[str, float] | None:
    """Accuracy and NLL of the paper's row, where this is its network and one of its rows."""
    model = recipe["model"]
    if (recipe["data"]["name"], model["depth"], model.get("width")) != ("cifar10", 56, 32) or _is_control(recipe):
        return None
    found = PAPER.get((recipe["sampler"]["name"], model["norm"], kind))
    return None if found is None else {"accuracy": found[0], "nll": found[1]}


def _outside(predictors: Sequence[Predictor]) -> dict[str, dict[str, float]]:
    """AUROC against other data sets, averaged over the predictors; only those that all of them were shown."""
    each = [found.detection() for found in predictors]
    names = [name for name in each[0] if all(name in other for other in each)]
    return {name: {kind: float(np.mean([e[name][kind] for e in each])) for kind in each[0][name]} for name in names}


def by_samples(predictors: Sequence[Predictor]) -> dict[str, list[float]]:
    """Scores against the number of samples averaged, the mean over predictors, as far as the shortest goes."""
    curves = [found.growing() for found in predictors]
    length = min(len(curve["samples"]) for curve in curves)
    means = {score: np.mean([curve[score][:length] for curve in curves], axis=0).tolist() for score in SCORES}
    return {"samples": list(range(1, length + 1)), **means}


# -- writing -----------------------------------------------------------------------------------------------------------


def save(folder: Path, rows: Sequence[Row]) -> None:
    """table.json, and the last samples in files of their own, so that the one rule holds for their rows too."""
    stale = {path.name for path in folder.glob("*.last*.npz")}
    for collected in load_rows(folder):
        if any(row["run"] == collected["row"] and row["kind"] == LAST for row in rows):
            predictors = load_predictors(folder, collected)
            for found, files in zip(predictors, _last_files(collected, predictors), strict=True):
                stale -= set(files)
                for sample, file in zip(found.final, files, strict=True):
                    alone = Predictor(sample[None], found.labels, found.epochs[-1:], found.trace[:0])
                    save_predictor(folder, file.removesuffix(".npz"), alone)
    for name in stale:
        (folder / name).unlink()
    save_json(folder / "table.json", rows)


def _last_files(collected: Row, predictors: Sequence[Predictor]) -> list[list[str]]:
    """For each predictor the files of its last samples, one for each chain."""
    return [
        [f"{collected['row']}-{i}.last{k if len(found.final) > 1 else ''}.npz" for k in range(len(found.final))]
        for i, found in enumerate(predictors)
    ]


def _count(row: Row) -> int:
    """Predictors of a row: its seeds, or one where they were averaged to an ensemble."""
    return len(
        {re.sub(r"\.last\d*$", "", names[0].removesuffix(".npz")) for names in by_predictor(row["probabilities"])}
    )


def table_markdown(rows: Sequence[Row]) -> str:
    """The table as README shows it, with the GPU time of all runs below; nothing where there are no rows."""
    if not rows:
        return ""
    head = (
        "| CIFAR-10 | T | augmentation | accuracy % | NLL | ECE | Brier | samples | epochs | seeds | GPU time | paper |"
    )
    lines = [head, "|" + " --- |" * 12]
    for row in rows:
        paper = row["paper"]
        cells = [
            row["row"],
            temperature(row),
            row["augment"],
            *(shown(row, score) for score in SCORES),
            str(row["samples"]),
            epochs_said(row["epochs"], row["chains"]),
            str(_count(row)),
            duration(row["gpu_seconds"]),
            "–" if paper is None else f"{100 * paper['accuracy']:.1f} / {paper['nll']:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    total = f"The runs of these rows together: {duration(total_seconds(rows))} on {', '.join(devices(rows))}."
    return "\n".join([*lines, "", total])


def outside_markdown(rows: Sequence[Row]) -> str:
    """AUROC in percent of telling CIFAR-10's test images from other data by the entropy of the prediction."""
    shown_to = list(dict.fromkeys(name for row in rows for name in row.get("outside", {})))
    if not shown_to:
        return ""
    lines = [f"| AUROC % against | T | {' | '.join(shown_to)} |", "|" + " --- |" * (2 + len(shown_to))]
    for row in rows:
        if found := row.get("outside"):
            cells = [f"{100 * found[name]['entropy']:.1f}" if name in found else "–" for name in shown_to]
            lines.append(f"| {row['row']} | {temperature(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def temperature(row: Row) -> str:
    """At which temperature samples were taken, and at which cycles begin: that they come down from, or explore at."""
    if row["temperature"] is None:
        return "–"
    return temperature_said(row["temperature"], row.get("temperature_before"))


def shown(row: Row, score: str) -> str:
    """A score as people read it, with its spread over seeds or chains."""
    scale, digits = (100, 2) if score == "accuracy" else (1, 3)
    text = f"{scale * row[score]:.{digits}f}"
    if row["spread"] is None:
        return text
    error = scale * row["spread"][score]
    return f"{text} ± {error:.{digits if round(error, digits) else digits + 1}f}"  # an error of zero says too much


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def total_seconds(rows: Sequence[Row]) -> float:
    """Time of all runs, each once: the last sample and the predictive are of one, and a row may be made of another."""
    names = {row["run"] for row in rows}
    return float(sum({row["run"]: row["gpu_seconds"] for row in rows if row["made_of"] not in names}.values()))


def devices(rows: Sequence[Row]) -> list[str]:
    """What they ran on."""
    return sorted({device for row in rows for device in row["device"]})


# -- the table in README and docs --------------------------------------------------------------------------------------


def blocks(rows: Sequence[Row]) -> dict[str, str]:
    """What stands between `<!-- NAME -->` and `<!-- /NAME -->`: `cifar10 main` leaves out the rows set aside."""
    return {
        "cifar10 table": table_markdown(rows),
        "cifar10 main": table_markdown([row for row in rows if not row["aside"]]),
        "cifar10 outside": outside_markdown(rows),
    }


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)


def found_blocks(text: str) -> dict[str, str]:
    """The blocks that a page holds, whatever is in them."""
    return {name: found[0].strip() for name in blocks([]) if (found := _between(name).search(text))}


def fill(text: str, rows: Sequence[Row]) -> str:
    """A page with its blocks replaced by those of `rows`; a page without any is returned as it is."""
    for name, body in blocks(rows).items():
        line = "\n" if body else ""
        if found := _between(name).search(text):
            text = f"{text[: found.start()]}{body}{line}{text[found.end() :]}"
    return text
