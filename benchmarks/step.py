"""Speed of a sampler's step against optimizers and `posteriors`, on the tensors of two networks.

    python benchmarks/step.py [--device cpu|cuda] [--threads 1] [--out results/step]

Only the update is timed: gradients are given (random, never zero). Contestants take turns in every round, so that a
ratio compares neighbours in time; the table shows medians. On CUDA a round is one replay of a captured graph of ten
steps where the contestant can be captured, so that launch overhead of the host does not decide.

`posteriors` (pip install posteriors) joins if it is installed; its gradient evaluation is replaced by the same
ready-made gradients.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import atmc
from atmc.nn import build

Step = Callable[[], Any]


def tensors(network: str, device: str) -> list[torch.nn.Parameter]:
    """The parameters of a network, with random gradients that stay where they are."""
    settings = {"resnetpp-56x32": ("resnetpp", 56, 32, 10), "resnet-50": ("resnet", 50, 64, 1000)}[network]
    model = build(settings[0], depth=settings[1], width=settings[2], classes=settings[3]).to(device)
    params = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def contestants(network: str, device: str) -> dict[str, Step]:
    """Every way to take a step, each on tensors of its own."""
    speeds = {"lr": 1e-3, "speed": 3e-4, "max_speed": 1e-3, "momentum": 0.9}

    def new() -> list[torch.nn.Parameter]:
        return tensors(network, device)

    gaussian = {**speeds, "max_speed": float("inf")}
    steps: dict[str, Step] = {
        "SGD momentum, foreach": torch.optim.SGD(new(), lr=1e-3, momentum=0.9, foreach=True).step,
        "AdamW, foreach": torch.optim.AdamW(new(), lr=1e-3, foreach=True, capturable=device == "cuda").step,
        "AdamW, fused": torch.optim.AdamW(new(), lr=1e-3, fused=True, capturable=device == "cuda").step,
        "ATMC, fused": atmc.ATMC.from_speeds(new(), **speeds).step,
        "ATMC Gaussian, fused": atmc.ATMC.from_speeds(new(), **gaussian).step,
        "ATMC, fused, unchecked": atmc.ATMC.from_speeds(new(), **speeds, nonfinite="ignore").step,
        "ATMC, foreach": atmc.ATMC.from_speeds(new(), **speeds, backend="foreach").step,
        "ATMC, single": atmc.ATMC.from_speeds(new(), **speeds, backend="single").step,
        "SGNHT Gaussian, fused": atmc.SGNHT.from_speeds(new(), **gaussian).step,
        "SGHMC Gaussian, fused": atmc.SGHMC.from_speeds(new(), **gaussian).step,
        "SGLD, fused": atmc.SGLD(new(), lr=1e-8).step,
    }
    if device == "cuda":
        steps["SGD momentum, fused"] = torch.optim.SGD(new(), lr=1e-3, momentum=0.9, fused=True).step
    scratch = [torch.empty_like(p) for p in new()]
    steps["torch.randn alone"] = lambda: [t.normal_() for t in scratch]
    steps |= peers(new)
    return steps


def peers(new: Callable[[], list[torch.nn.Parameter]]) -> dict[str, Step]:
    """`posteriors`' SGNHT and SGHMC, in-place, with gradients given."""
    try:
        from posteriors.sgmcmc import sghmc, sgnht
    except ImportError:
        return {}
    found: dict[str, Step] = {}
    for name, module in (("posteriors sgnht", sgnht), ("posteriors sghmc", sghmc)):
        params = {str(i): p.detach() for i, p in enumerate(new())}
        grads = {k: torch.randn_like(p) for k, p in params.items()}
        zero = torch.zeros((), device=next(iter(params.values())).device)
        module.grad_and_value = lambda f, has_aux, g=grads, z=zero: lambda p, b: (g, (z, z))
        transform = module.build(lambda p, b: (z, z), lr=1e-8)  # noqa: F821 - never called
        state = transform.init(params)

        def step(transform: Any = transform, state: Any = state) -> None:
            transform.update(state, None, inplace=True)

        found[name] = step
    return found


def replayable(step: Step, repeats: int = 10) -> Step | None:
    """Ten steps in one CUDA graph, or None if the contestant cannot be captured."""
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                step()
        return graph.replay
    except Exception as error:
        print(f"  not capturable: {type(error).__name__}: {str(error)[:80]}")
        torch.cuda.synchronize()
        return None


def timed(step: Step, device: str) -> float:
    """Milliseconds of one call, device work included."""
    if device == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def measure(network: str, device: str, rounds: int) -> dict[str, float]:
    """Median milliseconds per step of every contestant, taken in turns."""
    steps = contestants(network, device)
    owners = list(steps.values())
    scale = dict.fromkeys(steps, 1.0)
    for step in steps.values():
        for _ in range(3):
            step()
    if device == "cuda":
        for name in list(steps):
            if name.startswith("posteriors") or name.endswith(("single", "foreach")):
                continue  # thousands of launches a step: as they are
            replay = replayable(steps[name])
            if replay is not None:
                steps[name], scale[name] = replay, 10.0
                replay()
    times: dict[str, list[float]] = {name: [] for name in steps}
    assert owners  # a graph does not keep the tensors alive that it works on
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(timed(step, device) / scale[name])
    return {name: statistics.median(values) for name, values in times.items()}


def launches(network: str) -> int:
    """Kernel launches of one ATMC step on CUDA, as the profiler counts them."""
    step = atmc.ATMC.from_speeds(tensors(network, "cuda"), lr=1e-3, speed=3e-4, max_speed=1e-3, momentum=0.9).step
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    on_device = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in on_device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/step"))
    parser.add_argument("--networks", nargs="*", default=["resnetpp-56x32", "resnet-50"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rounds = options.rounds or (50 if options.device == "cuda" else 15)
    record: dict[str, Any] = {
        "command": "python benchmarks/step.py",
        "device": torch.cuda.get_device_name()
        if options.device == "cuda"
        else platform.processor() or platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
        "rounds": rounds,
        "milliseconds": {},
    }
    for network in options.networks:
        record["milliseconds"][network] = measure(network, options.device, rounds)
    if options.device == "cuda":
        record["kernel_launches_per_step"] = {n: launches(n) for n in options.networks}
        print("kernel launches of one ATMC step:", record["kernel_launches_per_step"])
    for network, times in record["milliseconds"].items():
        reference = "AdamW, fused" if options.device == "cuda" else "posteriors sgnht"
        base = times.get(reference)
        print(f"\n{network}, {record['device']}, {options.threads} thread(s): ms per step, and ratio to {reference}")
        for name, value in sorted(times.items(), key=lambda item: item[1]):
            print(f"  {name:26s} {value:9.4f}  {value / base if base else float('nan'):6.2f}")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.device}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
