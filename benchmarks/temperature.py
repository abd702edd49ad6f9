"""A small network on few images at several temperatures, compared with SGD.

    python benchmarks/temperature.py --out runs/temperature     # minutes a row on one core; resumes where it stopped

`recipes/fashion-atmc.toml` at each T, at T = 1 with likelihoods that ask for more confident predictions, the same
cycles at 0 (SGD with momentum under the same prior), and a deep ensemble of as many epochs: 2,000 images, no
augmentation, scored on the other 58,000. The rows that decide have three seeds (of weights, batches and noise; the
images are the same). Writes results/temperature/ and fills the tables of docs/temperature.md. With `--only ROW` (and
`--seeds`) some rows are made again and go to calibrated.json, for their NLL after temperature scaling.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import platform
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atmc.engine import run
from atmc.posterior import metrics
from atmc.recipe import load_recipe
from atmc.recipe.settings import Recipe, SamplerSection, ScheduleSection, TargetSection
from atmc.recipe.validation import check_recipe
from atmc.report.output_files import write
from atmc.report.plot_style import WIDE, Ink, sheet, svg
from atmc.storage.manifest import versions
from atmc.storage.run_directory import RunDir
from cifar10_store import save_json
from compare_settings import read
from pages import fill_pages, markdown, pages

RESULTS = Path(__file__).resolve().parents[1] / "results" / "temperature"
TEMPERATURES = (1.0, 0.3, 0.1, 0.03)
SLOW = "sampler.speed=0.002 sampler.max_speed=0.0067"  # where a network is wrong this likelihood pulls hard
SURE = {
    "noisy Dirichlet 0.003": f"target.likelihood=noisy-dirichlet target.likelihood_options={{alpha_eps=0.003}} {SLOW}",
    "noisy Dirichlet 0.01": f"target.likelihood=noisy-dirichlet target.likelihood_options={{alpha_eps=0.01}} {SLOW}",
    "noisy Dirichlet 0.1": f"target.likelihood=noisy-dirichlet target.likelihood_options={{alpha_eps=0.1}} {SLOW}",
    "DirClip": "target.likelihood=dirclip target.likelihood_options={alpha=0.9,clip=-10.0}",
}
SUREST = "noisy Dirichlet 0.003"
BEST = f"T = 1, {SUREST}"
ENSEMBLE = "deep ensemble of SGD"
MEMBERS = 5
SEEDS = (0, 1, 2)
DECISIVE = ("T = 0.3", BEST, "T = 0", ENSEMBLE)


def recipes() -> dict[str, Recipe]:
    """Every row with how it is made."""
    base = load_recipe("fashion-atmc")
    found = {f"T = {t:g}": load_recipe("fashion-atmc", [f"sampler.temperature={t}"]) for t in TEMPERATURES}
    for name, settings in SURE.items():
        found[f"T = 1, {name}"] = load_recipe("fashion-atmc", ["sampler.temperature=1.0", *settings.split()])
    # As many epochs in four chains, in shorter cycles: 2 samples of each instead of 4 of one.
    several = (
        "chains=4 schedule.epochs=75 schedule.cycle_epochs=25 schedule.cycle_warmup_epochs=2 schedule.burn_in_epochs=25"
    )
    found["T = 0.3, four chains"] = load_recipe("fashion-atmc", ["sampler.temperature=0.3", *several.split()])
    # As the ensemble: one cycle of 60 epochs in each of five chains, one sample of each.
    apart = f"chains={MEMBERS} schedule.epochs=60 schedule.burn_in_epochs=0"
    for name, settings in (("T = 0.3", "sampler.temperature=0.3"), (BEST, f"sampler.temperature=1.0 {SURE[SUREST]}")):
        found[f"{name}, five chains"] = load_recipe("fashion-atmc", [*settings.split(), *apart.split()])
    cold = dataclasses.replace(base.sampler, temperature=0.0)
    found["T = 0"] = dataclasses.replace(base, sampler=cold)
    found[ENSEMBLE] = dataclasses.replace(
        base,
        chains=MEMBERS,
        target=TargetSection(prior="none"),
        sampler=SamplerSection(name="sgd", lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
        schedule=ScheduleSection(epochs=base.schedule.epochs // MEMBERS, kind="cosine", warmup_epochs=2),
    )
    return {name: check_recipe(recipe) for name, recipe in found.items()}


def measured(name: str, folder: Path) -> dict[str, Any]:
    """A row: scores of one sample on average and of all together, and how well the training images are fitted."""
    found, opened = read(folder), RunDir.open(folder)
    probs, labels = opened.predictions("validation").numpy(), opened.labels("validation").numpy()
    alone = [sample["single"] for sample in found["samples"]]
    ends = {row["chain"]: row["loss"] for row in found["curve"]}  # the last of each chain
    return {
        "row": name,
        "samples": len(alone),
        **{f"single {score}": sum(one[score] for one in alone) / len(alone) for score in ("accuracy", "nll")},
        "each nll": [round(one["nll"], 4) for one in alone],
        **found["samples"][-1]["predictive"],
        "calibrated nll": float(metrics.calibrated_nll_each(metrics.predictive(probs), labels).mean()),
        "training_loss": sum(ends.values()) / len(ends),
        "seconds": round(found["seconds"], 1),
        "rollbacks": sum(row["event"] == "rollback" for row in found["events"]),
        "recipe": opened.recipe.to_dict(),
    }


def blocks(rows: Sequence[dict[str, Any]], again: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The tables of docs/temperature.md: `rows` are those of cpu.json, `again` those of calibrated.json."""
    first = [row for row in rows if row["recipe"]["seed"] == 0]
    return {
        "temperature rows": table(first),
        "temperature seeds": of_seeds(rows),
        "temperature calibrated": calibrated(again),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, lowest NLL of all samples first."""
    cells = []
    for row in sorted(rows, key=lambda row: row["nll"]):
        scores = (f"{100 * row[f'{of}accuracy']:.1f} / {row[f'{of}nll']:.3f}" for of in ("single ", ""))
        loss = f"{row['training_loss']:.3f}" if row["recipe"]["target"]["likelihood"] == "categorical" else "–"
        cells.append([row["row"], *scores, f"{row['ece']:.3f}", str(row["samples"]), loss])
    return markdown(["accuracy % / NLL", "one sample", "all samples", "ECE", "samples", "training loss"], cells)


def of_seeds(rows: Sequence[dict[str, Any]]) -> str:
    """The NLL of all samples by seed as Markdown, with mean and standard deviation."""
    cells = []
    for name in DECISIVE:
        nll = {row["recipe"]["seed"]: row["nll"] for row in rows if row["row"] == name}
        mean, spread = statistics.mean(nll.values()), statistics.stdev(nll.values())
        cells.append([name, *(f"{nll[seed]:.3f}" for seed in SEEDS), f"{mean:.3f} ± {spread:.3f}"])
    return markdown(["NLL of all samples", *(f"seed {seed}" for seed in SEEDS), "mean ± standard deviation"], cells)


def calibrated(rows: Sequence[dict[str, Any]]) -> str:
    """NLL before and after temperature scaling as Markdown."""
    cells = [
        [row["row"], str(row["recipe"]["seed"]), f"{100 * row['accuracy']:.1f}"]
        + [f"{row[key]:.3f}" for key in ("nll", "calibrated nll", "ece")]
        for row in rows
    ]
    text = markdown(["repeated", "seed", "accuracy %", "NLL", "calibrated NLL", "ECE"], cells)
    by = {name: [row for row in rows if row["row"] == name] for name in ("T = 0", "T = 0.3")}
    if not all(by.values()):
        return text
    before, left = (
        statistics.mean(row[key] for row in by["T = 0"]) - statistics.mean(row[key] for row in by["T = 0.3"])
        for key in ("nll", "calibrated nll")
    )
    share = f"{before:.3f} in NLL {left:.3f} is left once both are calibrated: {100 * (1 - left / before):.0f} %"
    return f"{text}\n\nOf the gap of {share} of it is calibration."


def figure(rows: Sequence[dict[str, Any]]) -> str:
    """NLL against T, of one sample and of all, for one chain: T = 0 and the ensemble are levels."""
    ink = Ink.paper()
    sampled = {
        row["recipe"]["sampler"]["temperature"]: row
        for row in rows
        if row["recipe"]["chains"] == 1 and row["recipe"]["target"]["likelihood"] == "categorical"
    }
    title = "NLL on held-out images, nats"
    with sheet(ink, (WIDE[0], WIDE[1] + 0.5), "Temperature", title) as (drawing, axes):
        for colour, key, what in ((1, "single nll", "one sample"), (2, "nll", "all samples")):
            points = sorted((t, row[key]) for t, row in sampled.items() if t > 0)
            axes.plot(*zip(*points, strict=True), color=ink.series(colour), marker="o", markersize=3.5, label=what)
            axes.axhline(sampled[0.0][key], color=ink.series(colour), linestyle=(0, (1, 1.5)), label=f"{what}, T = 0")
        [ensemble] = [row for row in rows if row["row"] == ENSEMBLE]
        axes.axhline(ensemble["nll"], color=ink.series(0), linestyle=(0, (4, 2)), label=ENSEMBLE)
        axes.set_xscale("log")
        axes.set_xticks(sorted(TEMPERATURES), [f"{t:g}" for t in sorted(TEMPERATURES)])
        axes.minorticks_off()
        drawing.legend(loc="outside lower left", ncols=2)
    return svg(drawing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", metavar="ROW", help="make these rows again, for calibrated.json")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    options = parser.parse_args()
    rows = []
    for seed, (name, recipe) in itertools.product(options.seeds, recipes().items()):
        if (seed and name not in DECISIVE) or (options.only and name not in options.only):
            continue
        folder = options.out / (re.sub(r"[ =,]", "", name) + (f"-seed{seed}" if seed else ""))
        run(dataclasses.replace(recipe, seed=seed), folder, None, None)
        rows.append(measured(name, folder))
        print(calibrated(rows[-1:]).splitlines()[-1], flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    kept = {"versions": versions(), "machine": platform.machine(), "rows": rows}
    save_json(options.results / ("calibrated.json" if options.only else "cpu.json"), kept)
    show(options.results)


def show(folder: Path) -> None:
    """Draw the figure and fill the pages from what is kept in `folder`."""
    rows, again = (
        json.loads((folder / name).read_text(encoding="utf-8"))["rows"] if (folder / name).exists() else []
        for name in ("cpu.json", "calibrated.json")
    )
    if rows:
        write(folder / "nll.svg", figure([row for row in rows if row["recipe"]["seed"] == 0]))
        found = blocks(rows, again)
        print("\n\n".join(found.values()))
        if folder == RESULTS:
            fill_pages(found, pages())


if __name__ == "__main__":
    main()
