"""The benchmark with a known answer: T = 1, no augmentation, ResNet-20-FRN-SiLU, against full-batch HMC.

    ATMC_DATA=data python benchmarks/hmc_benchmark.py --out results/hmc [--only sghmc atmc …] [--steps 100000]
        [--jobs 4] [--seeds 0 1 2] [--time-budget 560] [--precision bf16|tf32|float32] [--keep]

40,960 training and 9,040 validation images of CIFAR-10, batch 256, one sample every 5,000 steps; 500,000 steps are a
full row of 100 samples, and `--steps 100000` a short one of 20, for comparing settings on validation images. Rows run
side by side as processes (`--jobs`), which pays under NVIDIA's MPS (`nvidia-cuda-mps-control -d`): two corrected rows
together then made a step every 1.5 ms, and one by itself every 1.9 ms. With a time budget they stop in time, and the
same command resumes them. Every row leaves NAME-SEED.json and .npz in --out: scores of the growing average,
temperatures by layer, autocorrelations, the averaged probabilities, and with --keep those of every sample (float16).
The table comes last; `--dry-run` does all of it in seconds on a CPU, with synthetic images.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hmc_scores
from atmc.engine import run
from atmc.recipe.settings import Recipe, recipe_from_dict
from atmc.storage.run_directory import RunDir

ROOT = Path(__file__).parents[1]
TRAIN, CYCLE = 40_960, 5_000
S02, S05, S2 = 0.02**0.5, 0.05**0.5, 0.2**0.5  # standard deviations of the priors
COOL = {"sampler.lr": 0.0001, "sampler.friction": 45.0}  # as friction that follows the step has it at a tenth of h
FOLLOW = {"sampler.friction_follows_step": True}
RANK16 = {"sampler.noise_rank": 16, "sampler.noise_kronecker": True}
IMPORTANCE = {"data.draw": "importance"}
BY_RANK = {"sampler.noise_kronecker": False}
BY_EXAMPLE = {"sampler.noise_rank": 0, "sampler.noise_kronecker": False, "sampler.noise_examples": True}
UNIFORM = {"data.draw": "auto"}
NO_FRICTION = {"sampler.noise_rank": 0, "sampler.noise_kronecker": False}
WARM = {"schedule.warm_start_epochs": 62, "schedule.warm_start_lr": 0.1}  # two cycles' steps, which give no samples


def scaled(prior: float, lr: float) -> dict[str, float]:
    """Another prior: before FRN only directions count, so step size and 1/friction go with the prior."""
    return {"target.prior_scale": prior, "sampler.lr": lr * prior / S2, "sampler.friction": 2 / prior}


# Name: recipe, and what differs from it.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    # As published: the first is to be reproduced before anything else is believed.
    "sghmc": ("sghmc", {}),
    "sghmc-05": ("sghmc-05", {}),
    "sgnht": ("sgnht", {}),
    "sgld": ("sgld", {}),
    # ATMC with HMC's prior, variance 1/5: cycles, and steps of one size with corrected gradient noise.
    "atmc": ("atmc", {}),
    "atmc-follow": ("atmc", FOLLOW),  # cools the gradient's noise as cycles end
    "atmc-corrected": ("atmc-corrected", {}),
    # One change each.
    "atmc-uncorrected": ("atmc-corrected", {**NO_FRICTION, **UNIFORM}),  # and drawn in permuted epochs
    "atmc-corrected-half": ("atmc-corrected", {"sampler.lr": 0.0002}),
    "atmc-corrected-double": ("atmc-corrected", {"sampler.lr": 0.0008}),
    "atmc-corrected-chains4": ("atmc-corrected", {"chains": 4}),  # of a quarter of the steps each
    "atmc-corrected-rank": ("atmc-corrected", BY_RANK),
    "atmc-corrected-uniform": ("atmc-corrected", UNIFORM),
    "atmc-corrected-examples": ("atmc-corrected", BY_EXAMPLE),
    "atmc-corrected-examples-uniform": ("atmc-corrected", {**BY_EXAMPLE, **UNIFORM}),
    "atmc-corrected-05": ("atmc-corrected", scaled(S05, 0.0004)),
    "atmc-corrected-02": ("atmc-corrected", scaled(S02, 0.0004)),
    "atmc-05-follow": ("atmc", {**scaled(S05, 0.001), **FOLLOW}),
    "atmc-follow-kronecker16-importance": ("atmc", {**FOLLOW, **RANK16, **IMPORTANCE}),
    "atmc-constant": ("atmc-constant", {}),
    "atmc-constant-kronecker16-importance": ("atmc-constant", {**RANK16, **IMPORTANCE}),
    "atmc-constant-small": ("atmc-constant", {"sampler.lr": 0.0002, "sampler.friction": 4.5}),
    # From SGD's solution, where gradient noise is small: a chain in equilibrium forgets from which side it came.
    "atmc-corrected-warm": ("atmc-corrected", WARM),
    "atmc-constant-cool-warm": ("atmc-constant", {**COOL, **WARM}),
}


def recipe_of(name: str, seed: int, steps: int, precision: str, dry: bool) -> Recipe:
    """The recipe of a row. Read without pydantic, which a GPU machine may lack; the run checks its values."""
    file, settings = ROWS[name]
    values = tomllib.loads((ROOT / "recipes" / "hmc-benchmark" / f"{file}.toml").read_text())
    values |= {"name": name, "seed": seed}
    for key, value in settings.items():
        section, _, own = key.rpartition(".")
        (values[section] if section else values)[own] = value
    values["run"]["precision"] = "bf16" if precision == "bf16" else "float32"
    plan, batch = values["schedule"], values["data"]["batch_size"]
    cycle, train = CYCLE, TRAIN
    if dry:
        train, cycle, batch = 256, 10, 32 * batch // 256
        values["data"] |= {"name": f"synthetic:3x8x8?train={train + 128}&test=128", "validation": 128}
        values["data"]["batch_size"], steps = batch, 12 * cycle
        values["model"] |= {"depth": 8, "width": 4}
        values["run"] |= {"log_steps": 5, "device": "cpu", "threads": 1}
    of_batches = batch * (8 if dry else 1) / 256  # a larger batch makes fewer steps, with as many examples
    each = steps / of_batches / values.get("chains", 1)
    if dry and "warm_start_epochs" in plan:
        plan["warm_start_epochs"] = 2
    plan["epochs"] = math.ceil(each * batch / train - 1e-9) - plan.get("warm_start_epochs", 0)
    if "cycle_epochs" in plan:
        plan["cycle_epochs"] = cycle / of_batches * batch / train
    else:
        plan["sample_every_steps"] = cycle
    return recipe_from_dict(values)


def measure(name: str, seed: int, options: argparse.Namespace) -> None:
    """Run, or resume, one row, and write what it says so far."""
    if options.precision == "float32":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    began = time.monotonic()
    recipe = recipe_of(name, seed, options.steps, options.precision, options.dry_run)
    folder = options.runs / f"{name}-{seed}-{options.precision}-{options.steps}"
    result = run(recipe, folder, options.time_budget, None)
    opened = RunDir.open(folder)
    if not result.samples:
        print(f"{name}-{seed}: no sample yet after {result.steps} steps", flush=True)
        return
    epoch = (256 if options.dry_run else TRAIN) / recipe.data.batch_size
    cycle = round(recipe.schedule.cycle_epochs * epoch) if recipe.schedule.cycle_epochs else None
    found, kept = hmc_scores.summary(opened, cycle, round(recipe.schedule.warm_start_epochs * epoch))
    row = {
        "row": name,
        "seed": seed,
        "sampler": recipe.sampler.name,
        "settings": {key: value for key, value in vars(recipe.sampler).items() if isinstance(value, float | int | str)},
        "prior_variance": round((recipe.target.prior_scale or 0.0) ** 2, 4),
        "temperature": recipe.sampler.temperature,
        "augment": recipe.data.augment,
        "schedule": recipe.schedule.kind,
        "batch": recipe.data.batch_size,
        "precision": options.precision,
        "chains": recipe.chains,
        "steps": result.steps,
        "gradients": result.steps * recipe.data.batch_size // 256,
        "wanted_steps": options.steps,
        "status": result.status,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "seconds": round(sum(r["seconds"] for r in opened.metrics() if r["event"] == "end"), 1),
        "this_call_seconds": round(time.monotonic() - began, 1),
        **found,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.keep:
        kept = {key: value for key, value in kept.items() if not key.endswith("_probs")}
    np.savez_compressed(options.out / f"{name}-{seed}.npz", **kept)
    (options.out / f"{name}-{seed}.json").write_text(json.dumps(row) + "\n")


def show(rows: list[dict[str, Any]], split: str) -> None:
    """The table, of one split."""
    print(f"{split}, averages of all samples; T = 1, no augmentation; HMC .101 / .309 / ambiguity .484")
    print(
        f"{'row':18}{'':>3} {'steps':>7} {'K':>4}  error    NLL    ECE  ambig | one: err    NLL |   loss   kinT"
        "  noiseT  (end)   lag1     ms rollbacks"
    )
    for row in rows:
        mean, alone = row[split]["average"], row[split]["singles"]
        half = len(alone["nll"]) // 2
        numbers = [mean["error"], mean["nll"], mean["ece"], mean["ambiguity"]]
        one = [float(np.mean(alone[key][half:])) for key in ("error", "nll")]
        rest = [row.get(key, float("nan")) for key in ("training_loss", "kinetic_temperature", "noise_temperature")]
        end, lag = row.get("noise_temperature_end", float("nan")), row["autocorrelation"].get("1", float("nan"))
        print(
            f"{row['row']:18}{row['seed']:>3} {row['steps']:>7} {row['samples']:>4} "
            + " ".join(f"{v:6.4f}" for v in numbers)
            + " |   "
            + " ".join(f"{v:6.4f}" for v in one)
            + " | "
            + f"{rest[0]:6.4f} {rest[1]:6.3f} {rest[2]:7.2f}{end:7.2f} {lag:6.3f} {row['ms_per_step'] or 0:6.2f} "
            + str(row["rollbacks"]),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=["sghmc", "atmc"], choices=list(ROWS), help="rows, in this order")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=500_000, help="gradients of batch 256 of a row")
    parser.add_argument("--jobs", type=int, default=1, help="rows side by side on one GPU")
    parser.add_argument("--time-budget", type=float, help="seconds of this call")
    parser.add_argument("--precision", choices=["bf16", "tf32", "float32"], default="bf16", help="of activations")
    parser.add_argument("--runs", type=Path, default=Path("runs/hmc"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="also the probabilities of every sample")
    parser.add_argument("--dry-run", action="store_true", help="tiny synthetic images on a CPU")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, _, seed = options.child.rpartition(":")
        measure(name, int(seed), options)
        return
    deadline = None if options.time_budget is None else time.monotonic() + options.time_budget
    shared = [word for word in sys.argv[1:] if word in ("--keep", "--dry-run")]
    for key in ("steps", "precision", "runs", "out"):
        shared += [f"--{key}", str(getattr(options, key))]

    def start(task: str) -> int:
        words = [sys.executable, __file__, "--child", task, *shared]
        if deadline is not None:
            left = deadline - time.monotonic() - 15.0  # for start-up of others, scores and files
            if left < 20.0:
                return 0
            words += ["--time-budget", str(left)]
        return subprocess.run(words, check=False).returncode

    tasks = [f"{name}:{seed}" for seed in options.seeds for name in options.only]
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(start, tasks))
    rows = [json.loads(path.read_text()) for path in sorted(options.out.glob("*-*.json"))]
    for split in ("test", "validation"):
        show(rows, split)
    if any(codes):
        sys.exit("failed: " + ", ".join(task for task, code in zip(tasks, codes, strict=True) if code))


if __name__ == "__main__":
    main()
