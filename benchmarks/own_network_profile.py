"""Where the time of a custom network's step goes in `atmc.sample`, beside the plain loop: one table and two profiles.

    python benchmarks/own_network_profile.py [--network wrn] [--kernels 25] [--out results/networks]

Every line of the table is recorded in a CUDA graph of its own and timed in turns with the others. The plain loop comes
as it is and in other precisions. The engine's step comes whole, and in parts that add up to it: batch, loss, prior,
sampler, clock. "The engine, host and all" are the steps as a run enqueues them. Less than 3 minutes on an H200.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from atmc.data import load
from atmc.engine.batches import make_feed
from atmc.engine.chain import Chain
from atmc.engine.processes import World
from atmc.engine.run_data import RunData
from atmc.engine.schedule import make_schedule
from atmc.recipe.settings import ModelSection
from graph_timing import Step, recorded, slowest, take_turns
from own_network import BATCH, DATA, NETWORKS, RECIPE, as_ours, plain_step

STEPS = 1600  # of the engine with its host, in one reading


def chain_of(make: Any, place: str = "cuda") -> Chain:
    """A chain as `atmc.sample` makes it, its step recorded."""
    recipe = dataclasses.replace(RECIPE, model=ModelSection(name="custom"))
    data = RunData(load(DATA, "train"), {})
    device, world, model = torch.device(place), World(), make()
    feed = make_feed(recipe, data, model, device, world, 0)
    chain = Chain(0, recipe, make_schedule(recipe, len(data.train)), data, model, feed, device, world)
    chain.start()
    chain.ready()
    return chain


def parts_of(chain: Chain) -> dict[str, Step]:
    """The pieces of the chain's step, each recorded alone. They move the chain, which nobody looks at."""
    step, clock = chain._step, chain.clock
    x, y = chain.feed.batch(clock.step)
    x, y, latest = x.clone(memory_format=torch.preserve_format), y.clone(), step.losses[:1].clone()

    def loss() -> None:
        for p in step.params:
            p.grad = None
        torch.autograd.backward(step.loss(x, y), step._gain)

    def count() -> None:
        clock.look_up()
        step.losses.index_copy_(0, torch.remainder(clock.step, len(step.losses)).reshape(1), latest)

    loss()
    grads = [p.grad for p in step.params]

    def prior() -> None:
        step.prior.add_grad_(step.prior_params, grads, step.prior_share)

    def sampler() -> None:
        for p, grad in zip(step.params, grads, strict=True):
            p.grad = grad
        step.optimizer.step()

    pieces = {"batch": lambda: step.feed.batch(clock.step), "loss": loss, "prior": prior, "sampler": sampler}
    pieces["clock and loss buffer"] = count
    return {f"engine: {name}": recorded(piece, stream=chain.stream) for name, piece in pieces.items()}


def with_host(chain: Chain) -> float:
    """Milliseconds of a step as a run makes it."""
    torch.cuda.synchronize()
    began, first = time.perf_counter(), chain.done
    while chain.done - first < STEPS:
        chain.advance()
        chain.settle()
        chain.rows.clear()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / (chain.done - first) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="wrn", choices=list(NETWORKS))
    parser.add_argument("--kernels", type=int, default=25, help="how many of the slowest kernels to print")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cudnn.benchmark = True
    name, make = NETWORKS[options.network]
    precisions = {
        "plain": as_ours(make),
        "plain, float32 inputs and autocast": (torch.float32, True),
        "plain, float32": (torch.float32, False),
    }
    steps: dict[str, Step] = {}
    ready: dict[str, float] = {}
    for label, (inputs, autocast) in precisions.items():
        began = time.perf_counter()
        steps[label] = plain_step(make, inputs, autocast)
        ready[label] = time.perf_counter() - began
        print(f"{label}: ready after {ready[label]:.1f} s", flush=True)
    began = time.perf_counter()
    chain = chain_of(make)
    steps["engine: whole step"] = chain._run
    ready["engine: whole step"] = time.perf_counter() - began
    print(f"engine: ready after {ready['engine: whole step']:.1f} s", flush=True)
    host = [with_host(chain) for _ in range(3)]  # before the parts move the chain
    steps |= parts_of(chain)
    times = {label: statistics.median(found) for label, found in take_turns(steps, options.rounds, 20).items()}
    times["the engine, host and all"] = statistics.median(host)
    print(f"\n{name}, batch {BATCH}: milliseconds a step")
    for label, took in times.items():
        print(f"  {label:38} {took:7.3f}   {times['plain'] / took:6.3f} of the plain loop's speed")
    for label in ("plain", "engine: whole step"):
        print(f"\n{label}:\n  " + "\n  ".join(slowest(steps[label], options.kernels)), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "network": name}
        record |= {"batch": BATCH, "milliseconds": times, "ready_seconds": ready}
        path = options.out / f"own_network_profile-{options.network}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
