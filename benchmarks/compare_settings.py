"""Compare settings of a recipe on held-out training images, one run after another in one process.

    python benchmarks/compare_settings.py cifar10/atmc-settled --set schedule.epochs=100 --out runs/x \\
        --time-budget 500 --try "sampler.temperature=0.1" --try "sampler.temperature=0.03 sampler.speed=0.003"

Each `--try` is one run of the recipe with these settings on top of those of `--set`; without any, the recipe itself is
run. Runs hold out 5,000 training images and are scored on them: the test set is not touched. One process compiles once,
and runs that follow one another are faster than runs that share a GPU. `compared.json` in the folder is written after
each run: settings, scores of every sample, training loss and readings by epoch, what went wrong. A line for each run is
printed, with the NLL to be expected of many samples (`limit`), and where a run has several chains with what two of them
gain over one (`atmc.diagnose.convergence.gain_of_pairs`). Called again with the same folder it resumes runs that the
time budget cut short.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from atmc.common.errors import InputError, RunError
from atmc.diagnose.convergence import averaged_by_mode, gain_of_pairs
from atmc.diagnose.run_measurements import modes_of
from atmc.engine import run
from atmc.posterior import metrics
from atmc.recipe import load_recipe
from atmc.storage.run_directory import RunDir

HELD_OUT = ["data.validation=5000", 'run.evaluate=["validation"]', "run.checkpoint_minutes=30"]
SCORES = ("accuracy", "nll", "ece")
READINGS = ("kinetic_temperature", "thermostat_q50", "thermostat_q99")
SPARE = 15.0  # seconds: no run is begun with less time than that


def read(folder: Path) -> dict[str, Any]:
    """What a run says of itself: scores of its samples in the order of epochs, whatever chain they are of."""
    opened = RunDir.open(folder)
    found: dict[str, Any] = {"samples": [], "curve": [], "events": []}
    speeds, taken = [], {}
    for row in opened.metrics():
        kind = row["event"]
        if kind == "log":
            readings = {key: row[key] for key in ("chain", *READINGS) if key in row}
            found["curve"].append({"epoch": round(row["epoch"], 1), "loss": row["loss"], **readings})
            speeds += [row["images_per_second"]] if row.get("images_per_second") else []
            found["seconds"] = row["seconds"]
        elif kind == "sample":
            taken[row["chain"], row["index"]] = row
        elif kind not in ("start", "checkpoint", "end"):
            found["events"].append(row)
    found["images_per_second"] = statistics.median(speeds) if speeds else None
    entries = opened.bank.entries
    if entries:
        probs, labels = opened.predictions("validation").numpy(), opened.labels("validation").numpy()
        together = metrics.growing(probs, labels)
        for number, entry in enumerate(entries):
            row = taken[entry.chain, entry.meta["index"]]
            alone = metrics.scores(probs[number], labels)
            found["samples"].append(
                {
                    "epoch": round(row["epoch"], 1),
                    "chain": entry.chain,
                    "single": {score: alone[score] for score in SCORES},
                    "predictive": {score: float(together[score][number]) for score in SCORES},
                    **{key: row[key] for key in ("configurational_temperature", "silent_share") if key in row},
                }
            )
        modes, chains = probs, [entry.chain for entry in entries]
        if several := modes_of(opened):
            modes, chains = averaged_by_mode(probs, *zip(*several, strict=True))
            found["modes"] = [
                {"chain": chain, **{score: metrics.scores(mode, labels)[score] for score in SCORES}}
                for mode, chain in zip(modes, chains, strict=True)
            ]
            found["together"] = metrics.scores(metrics.predictive(modes), labels)["nll"]
        pairs = gain_of_pairs(modes, labels, chains)
        found["pairs"] = None if pairs is None else dataclasses.asdict(pairs)
    return found


def limit(result: dict[str, Any]) -> float | None:
    """The NLL that the average of ever more such samples tends to, from two or more; None from fewer.

    Of ever more modes, where each cycle gives several samples: those of one mode resemble each other.

    The NLL of the average of n samples is nearly a + b/n, so the mean of the single ones, a + b, and that of all,
    a + b/n, give a. (The 17 samples of the row atmc-cold-one: .254 alone, .209 in pairs, .195 in threes and .171
    together, which make a .165, .166 and .166: from few samples it comes out a little low.) From two samples on 5,000
    images it is known to a few per cent only.
    """
    samples, modes = result["samples"], result.get("modes")
    alone = [mode["nll"] for mode in modes] if modes else [sample["single"]["nll"] for sample in samples]
    n = len(alone)
    if n < 2:
        return None
    together = result["together"] if modes else samples[-1]["predictive"]["nll"]
    return float((n * together - statistics.mean(alone)) / (n - 1))


def line(name: str, result: dict[str, Any]) -> str:
    """One run in one line: training loss, the last sample, the average."""
    text = f"{name:48s} {result['status']:8s}"
    if result["curve"]:
        last = result["curve"][-1]
        text += f" epoch {last['epoch']:6.1f}  loss {last['loss']:.3f}"
    if result["samples"]:
        last = result["samples"][-1]
        for what in ("single", "predictive"):
            text += f"  {what} {100 * last[what]['accuracy']:.2f} / {last[what]['nll']:.3f}"
        text += f"  ({len(result['samples'])} samples)"
    if (expected := limit(result)) is not None:
        text += f"  many: {expected:.3f}"
    if gain := result.get("pairs"):
        text += f"  two together gain {gain['one']:.4f} (one chain), {gain['two']:.4f} (two; p = {gain['p_value']:.2g})"
    if result["events"]:
        text += f"  {len(result['events'])} × {result['events'][-1]['event']}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--try", action="append", default=[], dest="tries", metavar="'KEY=VALUE …'", help="one run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--time-budget", type=float, default=float("inf"), help="seconds for all runs together")
    options = parser.parse_args()
    began = time.monotonic()
    results: dict[str, Any] = {}
    try:
        recipes = {
            name or "as it is": load_recipe(options.recipe, [*HELD_OUT, *options.set, *name.split()])
            for name in options.tries or [""]
        }
        for number, (name, recipe) in enumerate(recipes.items()):
            left = options.time_budget - (time.monotonic() - began)
            if left < SPARE:
                break
            folder = options.out / f"{number:02d}"
            try:
                status = run(recipe, folder, None if left == float("inf") else left, None).status
            except RunError as error:  # a chain that diverged for good is a result as well
                status = f"stopped: {error}"
            results[name] = {"recipe": recipe.to_dict(), "status": status, **read(folder)}
            (options.out / "compared.json").write_text(json.dumps(results, indent=1) + "\n")
            print(line(name, results[name]), flush=True)
            if status == "interrupted":  # a signal means all of them
                break
    except InputError as error:
        sys.exit(str(error))
    lasts = {name: r["samples"][-1]["predictive"]["nll"] for name, r in results.items() if r["samples"]}
    if lasts:
        print(f"lowest NLL on held-out images: {min(lasts, key=lambda name: lasts[name])}")
    limits = {name: a for name, r in results.items() if (a := limit(r)) is not None}
    if limits:
        print(f"lowest to be expected of many samples: {min(limits, key=lambda name: limits[name])}")


if __name__ == "__main__":
    main()
