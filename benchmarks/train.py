"""Speed of one and of several chains against SGD on the same network, with start-up time and memory.

    python benchmarks/train.py                                  # ResNet++-56x32, batch 128, on the GPU
    python benchmarks/train.py --device cpu --depth 8 --width 8 --size 8 --channels 1 --train 1280 --epochs 20

Everything runs through `atmc.engine`: data on the device, crops and flips, forward, backward, prior, sampler, logging;
on CUDA as one graph per chain. Contestants take turns; figures are medians over rounds. Start-up is measured in
separate processes, from the start of Python to the end of the first step, with an empty and with a filled compile
cache. Memory is that of a whole run (`atmc.engine.run`) of many short epochs, read after each sample, its growth that
after the first fifth of the epochs. The time of 1,000 epochs is extrapolated. JSON goes to `results/train/`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGAN = time.time()
CYCLES = 20  # of the paper's 1,000 epochs; each ends in a checkpoint, and all but the first three give a sample


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--network", default="resnetpp", help="its name in recipes, as wide-resnet")
    parser.add_argument("--norm", default="none", help="its normalisation, as gn-ws")
    parser.add_argument("--depth", type=int, default=56)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="pixels")
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--train", type=int, default=50_000, help="examples")
    parser.add_argument("--chains", default="2,4", help="numbers of chains to run together")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200, help="over which memory is watched")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--skip", default="", help="comma-separated: startup, chains, memory, run")
    parser.add_argument("--out", type=Path, default=Path("results/train"))
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def recipe(
    options: argparse.Namespace,
    sampler: str,
    epochs: int = 1000,
    train: int | None = None,
    test: int = 10_000,
    cycles: int = 4,
    **run: Any,
) -> Any:
    """The network under `sampler`, on made-up images of CIFAR-10's shape."""
    from atmc.recipe.settings import (
        DataSection,
        ModelSection,
        Recipe,
        RunSection,
        SamplerSection,
        ScheduleSection,
        TargetSection,
    )

    shape = f"{options.channels}x{options.size}x{options.size}"
    name = f"synthetic:{shape}?classes=10&train={train or options.train}&test={min(test, options.train)}"
    if sampler == "sgd":
        moves = SamplerSection(name="sgd", lr=1e-3, momentum=0.9, weight_decay=5e-4)
        target = TargetSection(prior="none")
    else:
        moves = SamplerSection(name="atmc", lr=1e-3, speed=3e-4, max_speed=1e-3, momentum=0.9, inertia=1e-3)
        target = TargetSection(prior="resnetpp" if options.network == "resnetpp" else "normalised")
    return Recipe(
        name=sampler,
        data=DataSection(name=name, batch_size=options.batch, augment="crop-flip"),
        model=ModelSection(name=options.network, depth=options.depth, width=options.width, norm=options.norm),
        target=target,
        sampler=moves,
        schedule=ScheduleSection(epochs=epochs, cycle_epochs=max(1, epochs // cycles))
        if sampler != "sgd"
        else ScheduleSection(epochs=epochs, kind="cosine"),
        run=RunSection(
            device=options.device,
            precision="bf16" if options.device.startswith("cuda") else "float32",
            compile=not options.no_compile,
            **run,
        ),
    )


class Contestant:
    """Chains of one recipe that run together; `make` gives their networks where the recipe does not."""

    def __init__(self, settings: Any, chains: int, shared: Any = None, make: Callable[[], Any] | None = None) -> None:
        import torch

        from atmc.engine.batches import make_feed
        from atmc.engine.chain import Chain
        from atmc.engine.processes import World, pick_device
        from atmc.engine.run_data import RunData, load_data
        from atmc.engine.schedule import make_schedule
        from atmc.recipe.build import build_model

        self.device = pick_device(settings.run.device)
        examples = shared.examples if shared is not None else RunData(load_data(settings).train, {})
        self.examples = RunData(examples.train, {})
        schedule = make_schedule(settings, len(examples.train))
        world = World()
        models = [
            make() if make else build_model(settings, examples.train.shape, examples.classes, number)
            for number in range(chains)
        ]
        first = models[0]
        self.feed = shared.feed if shared is not None else make_feed(settings, examples, first, self.device, world, 0)
        self.batch = settings.data.batch_size
        self.chains = []
        for number, model in enumerate(models):
            feed = self.feed.with_seed(number + 1)
            chain = Chain(number, settings, schedule, self.examples, model, feed, self.device, world)
            chain.start()
            self.chains.append(chain)
        self.torch = torch

    def run(self, seconds: float | None = None, steps: int | None = None) -> float:
        """Images per second over all chains, for so long or for so many steps of each."""
        self.wait()
        began, first, before = time.perf_counter(), self.chains[0].done, sum(chain.done for chain in self.chains)
        while True:
            for chain in self.chains:
                chain.advance(16)
            for chain in self.chains:
                if found := chain.settle():
                    raise SystemExit(f"the benchmark's chain diverged: {found}")
                chain.rows.clear()
            done = self.chains[0].done - first
            if (steps is not None and done >= steps) or (
                seconds is not None and time.perf_counter() - began >= seconds
            ):
                break
        self.wait()
        made = sum(chain.done for chain in self.chains) - before
        return made * self.batch / (time.perf_counter() - began)

    def wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)


def first_step(options: argparse.Namespace) -> None:
    """In a process of its own: one step, and the time since Python started."""
    one = Contestant(recipe(options, "atmc"), 1)
    one.run(steps=1)
    print(json.dumps({"seconds": time.time() - BEGAN}))


def start_up(options: argparse.Namespace) -> dict[str, float]:
    """Seconds to the first step, with an empty compile cache and with a filled one."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TRITON_CACHE_DIR": f"{cache}/triton",
            "ATMC_CACHE": f"{cache}/atmc",
        }
        command = [sys.executable, __file__, "--first-step", *_same(options)]
        for kind in ("cold", "warm"):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"the first step failed:\n{done.stderr[-3000:]}")
            found[kind] = json.loads(done.stdout.splitlines()[-1])["seconds"]
            print(f"start-up, {kind} cache: {found[kind]:.1f} s", flush=True)
    return found


def _same(options: argparse.Namespace) -> list[str]:
    keys = ("device", "network", "norm", "depth", "width", "batch", "size", "channels", "train")
    flags = [f"--{key}={getattr(options, key)}" for key in keys]
    return [*flags, "--no-compile"] if options.no_compile else flags


def speeds(options: argparse.Namespace) -> dict[str, Any]:
    """Images per second of ATMC and SGD taking turns, then of several chains together."""
    one = Contestant(recipe(options, "atmc"), 1)
    rival = Contestant(recipe(options, "sgd"), 1, shared=one)
    rates: dict[str, list[float]] = {"atmc": [], "sgd": []}
    for contestant in (one, rival):
        contestant.run(steps=20)
    for _ in range(options.rounds):
        rates["atmc"].append(one.run(options.seconds))
        rates["sgd"].append(rival.run(options.seconds))
        print(f"one chain: ATMC {rates['atmc'][-1]:,.0f} img/s, SGD {rates['sgd'][-1]:,.0f} img/s", flush=True)
    found: dict[str, Any] = {name: statistics.median(values) for name, values in rates.items()}
    found["ratio"] = statistics.median(s / a for a, s in zip(rates["atmc"], rates["sgd"], strict=True))
    found["together"] = {}
    if "chains" not in options.skip:
        for count in (int(n) for n in options.chains.split(",")):
            several = Contestant(recipe(options, "atmc"), count, shared=one)
            several.run(steps=20)
            found["together"][count] = statistics.median(several.run(options.seconds) for _ in range(options.rounds))
            print(f"{count} chains together: {found['together'][count]:,.0f} img/s", flush=True)
    return found


def megabytes(device: str) -> dict[str, float]:
    """What this process holds now: on the host, in tensors on the device, and in torch's cache of device memory."""
    import torch

    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if Path("/proc/self/statm").exists():
        host = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    cuda = device.startswith("cuda")
    return {
        "host_mb": host,
        "device_mb": torch.cuda.memory_allocated() / 2**20 if cuda else 0.0,
        "device_reserved_mb": torch.cuda.memory_reserved() / 2**20 if cuda else 0.0,
    }


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Growth over a run of `--epochs` short epochs, from the first fifth, in which buffers fill, to the end.

    Twenty samples with their evaluations and checkpoints, and more checkpoints in between.
    """
    import torch

    from atmc.engine import run
    from atmc.engine.progress import Progress

    class Watch(Progress):
        """Reads after each sample: at like moments, so that readings can be compared."""

        def __init__(self) -> None:
            self.seen: list[dict[str, float]] = []

        def row(self, row: Any, samples: int) -> None:
            if row["event"] == "sample":
                self.seen.append({"epoch": row["epoch"], "samples": samples, **megabytes(options.device)})

    examples, watch = min(options.train, 20 * options.batch), Watch()
    settings = recipe(
        options, "atmc", options.epochs, examples, test=1000, cycles=CYCLES, checkpoint_minutes=0.02, max_rollbacks=20
    )
    gc.collect()  # what other contestants leave must not be freed, and counted, in the middle of this
    if options.device.startswith("cuda"):
        torch.cuda.empty_cache()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = run(settings, folder, progress=watch)
    before = next(seen for seen in watch.seen if seen["epoch"] >= options.epochs / 5)
    after = watch.seen[-1]
    growth = {key: after[key] - before[key] for key in before if key.endswith("_mb")}
    print(f"memory over {options.epochs} epochs and {result.samples} samples: {growth}", flush=True)
    return {
        "epochs": options.epochs,
        "steps": result.steps,
        "samples": result.samples,
        "seconds": time.perf_counter() - began,
        "before": before,
        "after": after,
        "growth": growth,
        "readings": watch.seen,
    }


def whole_run(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a sample with its evaluation and checkpoint, from a real run that takes four of them."""
    from atmc.engine import run
    from atmc.engine.progress import Progress

    class DeviceSchedule(Progress):
        first = 0.0

        def begin(self, *args: Any) -> None:
            self.first = time.perf_counter()

    clock = DeviceSchedule()
    settings = recipe(options, "atmc", epochs=4)
    with tempfile.TemporaryDirectory() as folder:
        result = run(settings, folder, progress=clock)
        total = time.perf_counter() - clock.first
    return {"epochs": 4, "samples": result.samples, "seconds": total, "with_start_up": result.seconds}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    if options.first_step:
        first_step(options)
        return {}
    import torch

    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.processor() or "CPU"
    other = "" if options.network == "resnetpp" else "-".join([options.network, options.norm, ""])
    found: dict[str, Any] = {
        "what": f"{other or 'ResNet++-'}{options.depth}x{options.width}, batch {options.batch}, {options.size} px",
        "device": where,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python", "benchmarks/train.py", *(arguments if arguments is not None else sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
    }
    if "startup" not in options.skip:
        found["start_up"] = start_up(options)
    found["speed"] = speeds(options)
    if "memory" not in options.skip:
        found["memory"] = memory(options)
    if "run" not in options.skip:
        found["run"] = whole_run(options)
        stepping = found["run"]["epochs"] * options.train / found["speed"]["atmc"]
        extra = max(0.0, (found["run"]["seconds"] - stepping) / found["run"]["samples"])
        found["run"]["seconds_per_sample"] = extra
        found["extrapolated"] = {
            "minutes_for_1000_epochs": (1000 * options.train / found["speed"]["atmc"] + CYCLES * extra) / 60,
            "from": f"images a second, and {CYCLES} samples at what one took in {found['run']['epochs']} epochs",
        }
    options.out.mkdir(parents=True, exist_ok=True)
    kind = options.device.partition(":")[0]
    path = options.out / f"{kind}-{other}{options.depth}x{options.width}-b{options.batch}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    report(found, path)
    return found


def report(found: dict[str, Any], path: Path) -> None:
    """The short table."""
    speed = found["speed"]
    rows = [("one chain", f"{speed['atmc']:,.0f} img/s"), ("SGD, same network", f"{speed['sgd']:,.0f} img/s")]
    rows.append(("ATMC time / SGD time", f"{speed['ratio']:.3f}"))
    rows += [(f"{count} chains together", f"{rate:,.0f} img/s") for count, rate in speed["together"].items()]
    if "start_up" in found:
        times = found["start_up"]
        rows.append(("first step after", f"{times['cold']:.1f} s cold, {times['warm']:.1f} s warm"))
    if "memory" in found:
        grown = found["memory"]["growth"]
        said = f"host {grown['host_mb']:+.1f} MB, device {grown['device_mb']:+.2f} MB"
        said += f" (reserved {grown['device_reserved_mb']:+.2f} MB)"
        rows.append(
            (f"growth over {found['memory']['epochs']} epochs", f"{said}, {found['memory']['samples']} samples")
        )
    if "run" in found:
        rows.append(("a sample, all told", f"{found['run']['seconds_per_sample']:.2f} s"))
        rows.append(("1,000 epochs, extrapolated", f"{found['extrapolated']['minutes_for_1000_epochs']:.1f} min"))
    print(f"\n{found['what']}, {found['device']}, torch {found['torch']} -> {path}")
    for name, value in rows:
        print(f"  {name:26} {value}")


if __name__ == "__main__":
    main()
