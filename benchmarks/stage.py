"""How long ResNet++'s own kernels take, stage by stage, beside PyTorch's operations on the same tensors.

    python benchmarks/stage.py [--batch 128] [--rounds 30] [--out results/stage]

Needs a Hopper GPU. Each stage has the blocks of the 56×32 network. Everything is timed as a captured graph that is
replayed, contestants in turns, medians in microseconds; PyTorch's operations are compiled. Values are random.
Errors are relative to float64, so that speed is not bought with precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atmc.nn import stage

BLOCKS = {32: 9, 64: 8, 128: 8}  # identity blocks; stages 2 and 3 are entered in the middle of one more
Work = Callable[[], Any]


def problem(shape: stage.Shape, batch: int) -> tuple[Tensor, Tensor | None, list[Tensor], list[Tensor]]:
    """A stream, what enters, weights side by side as a network has them, biases."""
    c, size, blocks = shape.channels, shape.size, BLOCKS[shape.channels]
    images = torch.randn(2, batch, c, size, size, device="cuda", dtype=torch.bfloat16)
    x, entry = (image.contiguous(memory_format=torch.channels_last).requires_grad_() for image in images)
    entered = c > 32
    flat = torch.randn(2 * blocks + entered, c, 3, 3, c, device="cuda") / (9 * c) ** 0.5
    weights = [w.detach().requires_grad_() for w in flat.bfloat16().permute(0, 1, 4, 2, 3).unbind()]
    biases = [(0.1 * torch.randn(c, device="cuda")).requires_grad_() for _ in range(blocks)]
    return x, entry if entered else None, weights, biases


def captured(work: Work) -> Work:
    """`work` as a graph; run a few times first, so that compilers and libraries have made their choices."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work()
    return graph.replay


def in_turns(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Median microseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(5):
                work()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) * 200)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(shape: stage.Shape, batch: int, rounds: int) -> dict[str, Any]:
    x, entry, weights, biases = problem(shape, batch)
    inputs = [x, *([] if entry is None else [entry]), *weights, *biases]
    seed = torch.randn_like(x)
    compiled = torch.compile(stage.plain, dynamic=False, fullgraph=True)

    def forward(function: Any) -> Work:
        def work() -> None:
            with torch.no_grad():
                function(x, weights, biases, entry)

        return work

    def both(function: Any) -> Work:
        return lambda: torch.autograd.grad(function(x, weights, biases, entry), inputs, seed)

    exact = [t.detach().double().requires_grad_() for t in inputs]
    parts = exact[: len(inputs) - len(weights) - len(biases)]
    double = [exact[-len(weights) - len(biases) : -len(biases)], exact[-len(biases) :]]
    y = stage.plain(parts[0], *double, parts[1] if len(parts) > 1 else None)
    truth = torch.autograd.grad(y, exact, seed.double())
    errors = {}
    for name, function in (("own", stage.run), ("pytorch", compiled)):
        found = torch.autograd.grad(function(x, weights, biases, entry), inputs, seed)
        off = [float((f.double() - t).norm() / t.norm()) for f, t in zip(found, truth, strict=True)]
        errors[name] = statistics.mean(off)
    works = {
        "own, forward": captured(forward(stage.run)),
        "pytorch, forward": captured(forward(compiled)),
        "own, forward and backward": captured(both(stage.run)),
        "pytorch, forward and backward": captured(both(compiled)),
    }
    return {
        "convolutions": len(weights),
        "microseconds": in_turns(works, rounds),
        "mean relative error of the gradients": errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("results/stage"))
    options = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise SystemExit("needs a Hopper GPU")
    found: dict[str, Any] = {
        "command": f"python benchmarks/stage.py --batch {options.batch} --rounds {options.rounds}",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "batch": options.batch,
        "stages": {},
    }
    for shape in stage.SHAPES.values():
        name = f"{shape.channels} channels, {shape.size} px"
        found["stages"][name] = row = measure(shape, options.batch, options.rounds)
        print(f"{name}, {row['convolutions']} convolutions")
        for what, time in row["microseconds"].items():
            print(f"  {what:32} {time:8.1f} us")
        errors = row["mean relative error of the gradients"]
        print(f"  gradients are off by {errors['own']:.4f}, PyTorch's by {errors['pytorch']:.4f}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cuda.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
