"""CIFAR-10 at equal compute: deep ensembles, SWA, SWAG, MC dropout, Laplace, cycles at T = 0 and samplers.

    ATMC_DATA=data python benchmarks/leaderboard.py run --store runs/leaderboard --time-budget 540 --jobs 2 \\
        [--rows 'wrn16-*-160-s0'] [--ood fashion-mnist mnist noise] [--shift 1000]
    python benchmarks/leaderboard.py list [--rows ...]      # names and epochs, in the order in which they run
    python benchmarks/leaderboard.py table --store runs/leaderboard    # results/leaderboard: table.json and the figure

`run` trains (`leaderboard_rows.py`), `--jobs` processes at a time, until the time budget is spent. It resumes what was
cut short, and does not repeat what is in the store. Of every training run the store has NAME.json and NAME.npz, the
probabilities of each network (`leaderboard_networks.py`), about a tenth of a megabyte for each network: these two are
all that `table` needs, so they are what has to be brought back from another machine, in any number of sessions.
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

from leaderboard_rows import IMAGES, TRAININGS, Training, recipe_of
from network_table import CLOSING, SPARE

RESULTS = Path(__file__).resolve().parents[1] / "results" / "leaderboard"


def train(training: Training, options: argparse.Namespace) -> dict[str, Any]:
    """Run or resume one training run, and store what its networks say once it is done."""
    import torch

    from atmc.common.errors import RunError
    from atmc.data import load
    from atmc.engine import run
    from atmc.recipe.toml_files import recipe_to_toml
    from atmc.report.output_files import write
    from atmc.storage.run_directory import RunDir
    from cifar10_store import packed
    from leaderboard_networks import network, predictions
    from network_rows import decay_on_weights, dynamics

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    examples = IMAGES if options.data == "cifar10" else len(load(options.data, "train"))
    recipe, folder = recipe_of(training, options.data, examples), options.store / "runs" / training.name
    images = load(options.data, "test")
    own = network(training, len(images.classes), images.shape[0]) if training.kind == "dropout" else None
    prior = decay_on_weights(examples - training.held_out)
    found: dict[str, Any] = {"name": training.name, **training.__dict__, "side_by_side": options.jobs}
    try:
        result = run(recipe, folder, options.time_budget, None, model=own, prior=prior)
    except RunError as error:  # that it diverged for good is a result as well
        return found | {"status": f"stopped: {error}"}
    opened = RunDir.open(folder)
    found |= {"status": result.status} | {key: value for key, value in dynamics(opened).items() if key != "curve"}
    if result.status != "done":
        return found
    began = time.monotonic()
    methods, labels = predictions(training, opened, recipe, device, options.ood, options.shift)
    arrays = {f"labels.{split}": values for split, values in labels.items()}
    for method, networks in methods.items():
        arrays |= {f"probs.{split}.{method}": values for split, values in networks.probs.items()}
        arrays |= {f"entropy.{name}.{method}": values for name, values in networks.entropy.items()}
        arrays |= {f"shift.{name}.{method}": values for name, values in networks.shift.items()}
    found["methods"] = {m: {"epoch": n.epoch, "chain": n.chain} for m, n in methods.items()}
    found |= {"prediction_seconds": round(time.monotonic() - began, 1), "torch": torch.__version__}
    found["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    write(options.store / f"{training.name}.toml", recipe_to_toml(recipe).encode())
    write(options.store / f"{training.name}.npz", packed(**arrays))
    return found


def child(training: Training, options: argparse.Namespace) -> None:
    found = train(training, options)
    (options.store / f"{training.name}.json").write_text(json.dumps(found, indent=1) + "\n")


def is_done(path: Path) -> bool:
    """Whether a training run needs no more time: it ended, or diverged for good."""
    if not path.exists():
        return False
    status = str(json.loads(path.read_text())["status"])
    return status == "done" or status.startswith("stopped")


def start(training: Training, left: float, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    words = ["child", "--store", options.store, "--data", options.data, "--jobs", options.jobs]
    words += ["--time-budget", max(1.0, left - CLOSING), "--rows", training.name, "--ood", *options.ood]
    words += ["--shift", options.shift]
    with (options.store / f"{training.name}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, __file__, *map(str, words)], stdout=log, stderr=log)


def run_all(chosen: list[Training], options: argparse.Namespace) -> None:
    """Training runs side by side until all are done or the time is spent."""
    began = time.monotonic()
    options.store.mkdir(parents=True, exist_ok=True)
    waiting = [each for each in chosen if not is_done(options.store / f"{each.name}.json")]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        left = options.time_budget - (time.monotonic() - began)
        if waiting and len(running) < options.jobs and left > SPARE:
            each = waiting.pop(0)
            running[each.name] = start(each, left, options)
            continue
        if not running:
            break
        time.sleep(0.2)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                print(f"{time.monotonic() - began:5.0f} s  {line(name, options.store)}", flush=True)
    if waiting:
        print(f"no time for {', '.join(each.name for each in waiting)}")


def line(name: str, store: Path) -> str:
    """How a training run ended, in one line."""
    path = store / f"{name}.json"
    if not path.exists():
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
    parser.add_argument("--ood", nargs="*", default=["noise"], help="OOD inputs: data sets, scrambled, noise, letters")
    parser.add_argument("--shift", type=int, default=0, help="test images to corrupt, 35 copies of each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    chosen = [each for each in TRAININGS if any(fnmatch.fnmatch(each.name, pattern) for pattern in options.rows)]
    if options.do == "child":
        child(chosen[0], options)
    elif options.do == "run":
        run_all(chosen, options)
    elif options.do == "table":
        from leaderboard_table import make

        make(options.store, options.results)
    else:
        print("\n".join(f"{each.name}  {each.total} epochs" for each in chosen))


if __name__ == "__main__":
    main()
