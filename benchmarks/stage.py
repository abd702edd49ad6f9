"""Speed of ResNet++'s CUDA kernels against PyTorch's operations on the same tensors.

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

from atmc.nn.kernels import stage, transition

BLOCKS = {32: 9, 64: 8, 128: 8}  # identity blocks; stages 2 and 3 are entered in the middle of one more
Work = Callable[[], Any]
Function = Callable[..., Any]


def images(channels: int, size: int, batch: int) -> Tensor:
    x = torch.randn(batch, channels, size, size, device="cuda", dtype=torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last)


def stage_problem(shape: stage.Shape, batch: int) -> tuple[Function, Function, list[Tensor]]:
    """The kernels, plain PyTorch, and what both take: a stream, what enters, weights side by side, biases."""
    c, blocks = shape.channels, BLOCKS[shape.channels]
    entered = c > 32
    flat = torch.randn(2 * blocks + entered, c, 3, 3, c, device="cuda") / (9 * c) ** 0.5
    weights = flat.bfloat16().permute(0, 1, 4, 2, 3).unbind()
    biases = [0.1 * torch.randn(c, device="cuda") for _ in range(blocks)]

    def over(function: Function) -> Function:
        def called(x: Tensor, *rest: Tensor) -> Any:
            return function(x, rest[entered:-blocks], rest[-blocks:], rest[0] if entered else None)

        return called

    streams = [images(c, shape.size, batch) for _ in range(1 + entered)]
    return over(stage.run), over(stage.plain), [*streams, *weights, *biases]


def transition_problem(shape: transition.Shape, batch: int) -> tuple[Function, Function, list[Tensor]]:
    c, half = shape.channels, shape.channels // 2
    a = images(half, 2 * shape.size, batch)
    weight = (torch.randn(c, 3, 3, half, device="cuda") / (9 * half) ** 0.5).bfloat16().permute(0, 3, 1, 2)
    project = (torch.randn(c, half, 1, 1, device="cuda") / half**0.5).bfloat16()
    bias, project_bias = (0.1 * torch.randn(c, device="cuda") for _ in range(2))
    return transition.run, transition.plain, [a, weight, bias, project, project_bias]


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


def measure(own: Function, plain: Function, inputs: list[Tensor], rounds: int) -> dict[str, Any]:
    inputs = [t.detach().requires_grad_() for t in inputs]
    compiled = torch.compile(plain, dynamic=False, fullgraph=True)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    y = plain(*exact)
    seeds = [torch.randn_like(each, dtype=torch.bfloat16) for each in (y if isinstance(y, tuple) else (y,))]
    truth = torch.autograd.grad(y, exact, [seed.double() for seed in seeds])

    def forward(function: Function) -> Work:
        def work() -> None:
            with torch.no_grad():
                function(*inputs)

        return work

    def both(function: Function) -> Work:
        return lambda: torch.autograd.grad(function(*inputs), inputs, seeds)

    errors = {}
    for name, function in (("own", own), ("pytorch", compiled)):
        off = [float((f.double() - t).norm() / t.norm()) for f, t in zip(both(function)(), truth, strict=True)]
        errors[name] = statistics.mean(off)
    works = {
        "own, forward": captured(forward(own)),
        "pytorch, forward": captured(forward(compiled)),
        "own, forward and backward": captured(both(own)),
        "pytorch, forward and backward": captured(both(compiled)),
    }
    return {
        "convolutions": sum(t.ndim == 4 and t.shape[-1] < 4 for t in inputs),
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
    problems = {
        **{f"{s.channels} channels, {s.size} px": stage_problem(s, options.batch) for s in stage.SHAPES.values()},
        **{f"to {s.channels}, {s.size} px": transition_problem(s, options.batch) for s in transition.SHAPES.values()},
    }
    for name, problem in problems.items():
        found["stages"][name] = row = measure(*problem, options.rounds)
        print(f"{name}, {row['convolutions']} convolutions")
        for what, time in row["microseconds"].items():
            print(f"  {what:32} {time:8.1f} us")
        errors = row["mean relative error of the gradients"]
        print(f"  gradients are off by {errors['own']:.4f}, PyTorch's by {errors['pytorch']:.4f}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cuda.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
