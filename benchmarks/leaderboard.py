"""CIFAR-10 at equal compute: deep ensembles, SWA, SWAG, MC dropout, Laplace, cycles at T = 0 and samplers.

    ATMC_DATA=data python benchmarks/leaderboard.py run --store runs/leaderboard --time-budget 540 --jobs 3 \\
        [--rows 'wrn16-*-s0'] [--ood fashion-mnist mnist noise NAME=folder:PATH] [--shift 300]
    python benchmarks/leaderboard.py list [--rows ...]      # epochs and seconds of each, in the order in which they run
    python benchmarks/leaderboard.py table --store runs/leaderboard    # results/leaderboard, and tables of the docs
    python benchmarks/leaderboard.py run --data digits --store runs/tiny    # one of each kind on a CPU, to try it

`run` trains (`leaderboard_rows.py`), `--jobs` processes at a time, until the time budget is spent. It resumes what was
cut short, and does not repeat what is in the store. Of every training run the store has NAME.json and NAME.npz, the
probabilities of each network (`leaderboard_networks.py`), about a tenth of a megabyte for each network: these two are
all that `table` needs, so they are what has to be brought back from another machine, in any number of sessions. A
sampler begins at the weights of a `cycles` run, so both belong into one session.
Every network is trained by the engine: its step is one CUDA graph, for the baselines too.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from leaderboard_rows import CORRUPTED, IMAGES, KEPT, MOST_OOD, TRAININGS, Training, recipe_of, tiny
from network_table import CLOSING, SPARE

RESULTS = Path(__file__).resolve().parents[1] / "results" / "leaderboard"


def train(training: Training, options: argparse.Namespace) -> dict[str, Any]:
    """Run or resume one training run, and store what its networks say once it is done."""
    import torch

    from atmc.common.errors import DivergedError
    from atmc.data import load
    from atmc.engine import run
    from atmc.recipe.build import chain_seed
    from atmc.recipe.toml_files import recipe_to_toml
    from atmc.report.output_files import write
    from atmc.storage.run_directory import RunDir
    from cifar10_store import packed
    from leaderboard_networks import network, predictions, starts
    from network_rows import decay_on_weights, dynamics

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    examples = IMAGES if options.data == "cifar10" else len(load(options.data, "train"))
    images = load(options.data, "test")
    runs = options.store / "runs"
    found: dict[str, Any] = {"name": training.name, **training.__dict__, "side_by_side": options.jobs}
    found |= {"gpu_seconds": 0.0, "torch": torch.__version__}
    own: Any = None
    if training.before:
        cycles, share = RunDir.open(runs / training.before.name), 1 - KEPT * training.before.gap / training.cycle
        own = starts(training, cycles, images.shape[0], len(images.classes))
        found["gpu_seconds"] = dynamics(cycles)["gpu_seconds"] * share
    elif training.kind == "dropout":
        torch.manual_seed(chain_seed(training.seed, 0, "weights"))  # of the masks on the device, too
        own = network(training, len(images.classes), images.shape[0])
    prior = decay_on_weights(training.images)
    deadline = time.monotonic() + options.time_budget - reserved(training, options)
    opened, recipes = [], []
    for temperature in training.temperatures:
        recipe = recipe_of(training, temperature, options.data, examples)
        folder = runs / recipe.name
        try:
            result = run(recipe, folder, max(1.0, deadline - time.monotonic()), None, model=own, prior=prior)
        except DivergedError as error:  # a result as well
            found["diverged"] = [*found.get("diverged", []), f"T = {temperature:g}: {error}"]
            continue
        if result.status != "done":
            return found | {"status": result.status}
        opened.append(RunDir.open(folder))
        recipes.append(recipe)
    if not opened:
        return found | {"status": f"stopped: {found['diverged'][0]}"}
    if time.monotonic() > deadline:
        return found | {"status": "budget"}  # the next call begins with the predictions
    began = time.monotonic()
    methods, labels, tried = predictions(training, opened, recipes[0], device, options.ood, options.shift)
    best = min(range(len(tried)), key=lambda k: tried[k]["nll"]) if tried else 0
    arrays = {f"labels.{split}": values for split, values in labels.items()}
    for method, networks in methods.items():
        arrays |= {f"probs.{split}.{method}": values for split, values in networks.probs.items()}
        arrays |= {f"entropy.{name}.{method}": values for name, values in networks.entropy.items()}
        arrays |= {f"shift.{name}.{method}": values for name, values in networks.shift.items()}
    how = {key: value for key, value in dynamics(opened[best]).items() if key != "curve"}
    how["gpu_seconds"] += found["gpu_seconds"]
    found |= {"status": "done", **how, "methods": {m: {"epoch": n.epoch, "chain": n.chain} for m, n in methods.items()}}
    if training.cyclic:
        found["temperature"] = recipes[best].sampler.temperature
        found["tried"] = [[each.sampler.temperature, score] for each, score in zip(recipes, tried, strict=bool(tried))]
    found |= {"prediction_seconds": round(time.monotonic() - began, 1)}
    found["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    write(options.store / f"{training.name}.toml", recipe_to_toml(recipes[best]).encode())
    write(options.store / f"{training.name}.npz", packed(**arrays))
    return found


def reserved(training: Training, options: argparse.Namespace) -> float:
    """Seconds that predictions take, in which nothing can be interrupted, beside others that predict as well."""
    more = MOST_OOD * len(options.ood) + CORRUPTED * options.shift
    return training.prediction_seconds(more) * options.jobs if options.data == "cifar10" else 0.0


def child(training: Training, options: argparse.Namespace) -> None:
    found = train(training, options)
    (options.store / f"{training.name}.json").write_text(json.dumps(found, indent=1) + "\n")


def ended(training: Training, store: Path) -> str:
    """How a training run ended so far."""
    path = store / f"{training.name}.json"
    return str(json.loads(path.read_text())["status"]) if path.exists() else ""


def is_done(training: Training, store: Path) -> bool:
    """Whether a training run needs no more time: it ended, or diverged for good."""
    return ended(training, store).startswith(("done", "stopped"))


def can_begin(training: Training, store: Path) -> bool:
    """Whether the run at whose modes its chains begin is done, and its weights are here."""
    before = training.before
    return before is None or (ended(before, store) == "done" and (store / "runs" / before.name).exists())


def start(training: Training, left: float, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    words = ["child", "--store", options.store, "--data", options.data, "--jobs", options.jobs]
    words += ["--time-budget", max(1.0, left - CLOSING), "--rows", training.name, "--ood", *options.ood]
    words += ["--shift", options.shift]
    with (options.store / f"{training.name}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, __file__, *map(str, words)], stdout=log, stderr=log)


def run_all(chosen: list[Training], options: argparse.Namespace) -> None:
    """Training runs side by side until all are done or the time is spent."""
    from atmc.data import load
    from leaderboard_networks import far_images

    began = time.monotonic()
    options.store.mkdir(parents=True, exist_ok=True)
    far_images(load(options.data, "test"), options.ood, min(1, options.shift))  # what lacks is said before training
    waiting = [each for each in chosen if not is_done(each, options.store)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        left = options.time_budget - (time.monotonic() - began)
        ready = [each for each in waiting if can_begin(each, options.store)]
        ready = [each for each in ready if left > SPARE + reserved(each, options)]
        if ready and len(running) < options.jobs:
            each = ready[0]
            waiting.remove(each)
            running[each.name] = start(each, left, options)
            continue
        if not running:
            break
        time.sleep(0.2)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                said = line(name, options.store, process.returncode)
                print(f"{time.monotonic() - began:5.0f} s  {said}", flush=True)
    if waiting:
        names = ", ".join(each.name for each in waiting)
        print(f"not begun, for lack of time or of the folder of the run before it: {names}")


def line(name: str, store: Path, code: int = 0) -> str:
    """How a training run ended, in one line."""
    path = store / f"{name}.json"
    if code or not path.exists():
        last = (store / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
        return f"{name}: failed, {last[0] if last else 'without a word'}"
    found = json.loads(path.read_text())
    speed = f", {found['images_per_second']:,.0f} images/s" if found.get("images_per_second") else ""
    seconds = f", {found['gpu_seconds']:.0f} s" if found.get("gpu_seconds") else ""
    asked = f" + {found['prediction_seconds']:.0f} s of prediction" if "prediction_seconds" in found else ""
    return f"{name}: {found['status'][:80]}{seconds}{asked}{speed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "list", "table", "child"))
    parser.add_argument("--store", type=Path, default=Path("runs/leaderboard"), help="what training runs leave")
    parser.add_argument("--rows", nargs="*", default=["*"], help="which training runs, as patterns of names")
    parser.add_argument("--time-budget", type=float, default=540.0, help="seconds for all together")
    parser.add_argument("--jobs", type=int, default=2, help="training runs at a time")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--ood", nargs="*", default=["noise"], help="OOD inputs: data sets, noise, …")
    parser.add_argument("--shift", type=int, default=0, help="test images to corrupt, 35 copies of each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    known = TRAININGS if options.data == "cifar10" else tiny()
    chosen = [each for each in known if any(fnmatch.fnmatch(each.name, pattern) for pattern in options.rows)]
    if options.do == "child":
        child(chosen[0], options)
    elif options.do == "run":
        run_all(chosen, options)
    elif options.do == "table":
        from leaderboard_pages import BLOCKS
        from leaderboard_table import make
        from pages import fill_pages, pages

        made = make(options.store, options.results)
        print(f"{len(made)} rows in {options.results / 'table.json'}")
        if options.results == RESULTS:
            fill_pages({name: fill() for name, fill in BLOCKS.items()}, pages())
    else:
        total = 0.0
        print(f"{'':34s} epochs  seconds of one H200  from the first on")
        for each in chosen:
            total += each.seconds
            print(f"{each.name:34s} {each.total:6d} {each.seconds:8.0f} {total:26.0f}")


if __name__ == "__main__":
    main()
