"""Which temperature? One small network and few images, sampled at several, beside SGD without a sampler.

    python benchmarks/temperature.py --out runs/temperature     # minutes a row on one core; goes on where it stopped

`recipes/fashion-atmc.toml` at each T, at T = 1 with likelihoods that ask for surer predictions, the same cycles at 0
(SGD with momentum under the same prior), and a deep ensemble of as many epochs: 2,000 images, no augmentation, scored
on the other 58,000. The rows that decide have three seeds (of weights, batches and noise; the images are the same).
Writes results/temperature/ and prints the two tables that docs/temperature.md has.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import platform
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atmc.chain import load_recipe, run
from atmc.chain.manifest import versions
from atmc.chain.recipe_rules import check_recipe
from atmc.chain.rundir import RunDir
from atmc.chain.settings import Recipe, SamplerSection, ScheduleSection, TargetSection
from atmc.report.files import write
from atmc.report.ink import WIDE, Ink, sheet, svg
from cifar10_store import save_json
from explore import read

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
    cold = dataclasses.replace(base.sampler, temperature=0.0, thermostat_spread=None)  # at 0 there is none to spread
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
    found = read(folder)
    alone = [sample["single"] for sample in found["samples"]]
    ends = {row["chain"]: row["loss"] for row in found["curve"]}  # the last of each chain
    return {
        "row": name,
        "samples": len(alone),
        **{f"single {score}": sum(one[score] for one in alone) / len(alone) for score in ("accuracy", "nll")},
        "each nll": [round(one["nll"], 4) for one in alone],
        **found["samples"][-1]["predictive"],
        "training_loss": sum(ends.values()) / len(ends),
        "seconds": round(found["seconds"], 1),
        "rollbacks": sum(row["event"] == "rollback" for row in found["events"]),
        "recipe": RunDir.open(folder).recipe.to_dict(),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| | one sample: accuracy % / NLL | all together | ECE | samples | training loss at the end |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        scores = (f"{100 * row[f'{of}accuracy']:.1f} / {row[f'{of}nll']:.3f}" for of in ("single ", ""))
        loss = f"{row['training_loss']:.3f}" if row["recipe"]["target"]["likelihood"] == "categorical" else "–"
        cells = [row["row"], *scores, f"{row['ece']:.3f}", str(row["samples"]), loss]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def of_seeds(rows: Sequence[dict[str, Any]]) -> str:
    """The NLL of all samples together by seed as Markdown, with mean and standard deviation."""
    lines = [
        f"| NLL of all together | {' | '.join(f'seed {seed}' for seed in SEEDS)} | mean ± standard deviation |",
        f"|{' --- |' * (len(SEEDS) + 2)}",
    ]
    for name in DECISIVE:
        nll = {row["recipe"]["seed"]: row["nll"] for row in rows if row["row"] == name}
        cells = [f"{nll[seed]:.3f}" for seed in SEEDS]
        mean, spread = statistics.mean(nll.values()), statistics.stdev(nll.values())
        lines.append(f"| {' | '.join([name, *cells, f'{mean:.3f} ± {spread:.3f}'])} |")
    return "\n".join(lines)


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
        for colour, key, what in ((1, "single nll", "one sample"), (2, "nll", "all together")):
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
    options = parser.parse_args()
    rows = []
    for seed, (name, recipe) in itertools.product(SEEDS, recipes().items()):
        if seed and name not in DECISIVE:
            continue
        folder = options.out / (re.sub(r"[ =,]", "", name) + (f"-seed{seed}" if seed else ""))
        run(dataclasses.replace(recipe, seed=seed), folder, None, None)
        rows.append(measured(name, folder))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    first = [row for row in rows if row["recipe"]["seed"] == 0]
    options.results.mkdir(parents=True, exist_ok=True)
    kept = {"versions": versions(), "machine": platform.machine(), "rows": rows}
    save_json(options.results / "cpu.json", kept)
    write(options.results / "nll.svg", figure(first))
    print(f"\n{table(first)}\n\n{of_seeds(rows)}")


if __name__ == "__main__":
    main()
