"""The training step of ResNet-20-FRN at batch 256 in bf16: what memory alone would take, our kernels, the whole step.

    python benchmarks/frn_step.py floor check sweep step [--out results/networks]

`floor` counts bytes and operations of a step, on any machine. `check` compares outputs and gradients with float64.
`sweep` times each kernel by itself for several ways to launch it and goes on with the best (`frn_launches`). `step` has
the whole step with and without these kernels, and its slowest kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.nn import build, frn_trunk
from atmc.nn.norm_functions import HAS_TRITON
from graph_timing import recorded, slowest, take_turns

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking whether there is a GPU must not open it
BATCH = 256
if HAS_TRITON:
    import frn_launches
    from atmc.nn.kernels import frn_passes

BANDWIDTH = 4.0e3  # bytes a nanosecond that an H200 reaches in a copy, in GB/s


def floor() -> None:
    """What every layer has to read and write at least once a pass, in bf16, and its multiplications and additions.

    Passes over a layer's output: convolution 2 (input, output), normalisation 2, its gradient 3, data gradient 2,
    weight gradient 2; where a shortcut is added one more forward and two more backward.
    """
    model = build("resnet-frn")
    seen: dict[tuple[int, int, int], list[float]] = {}

    def note(module: torch.nn.Module, given: tuple[Tensor, ...], y: Tensor) -> None:
        x, weight = given[0], module.conv.weight  # type: ignore[union-attr]
        before, after = 2 * x[0].numel() * BATCH, 2 * y[0].numel() * BATCH
        shortcut = 3 * after if len(given) > 2 and given[2] is not None else 0
        work = 6 * weight.numel() * y[0, 0].numel() * BATCH  # type: ignore[union-attr, operator]
        row = seen.setdefault(tuple(y.shape[1:]), [0, 0.0, 0.0])  # type: ignore[arg-type]
        for place, value in enumerate((1, 3 * before + 8 * after + shortcut, work)):
            row[place] += value

    for module in model.modules():
        if type(module).__name__ == "ConvNormAct":
            module.register_forward_hook(note)
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    whole = [sum(row[place] for row in seen.values()) for place in range(3)]
    for shape, (count, size, work) in [*seen.items(), (("all",), whole)]:
        print(
            f"{'×'.join(map(str, shape)):10} {count:.0f} layers: {size / 1e6:6.0f} MB, "
            f"{size / BANDWIDTH / 1e3:4.0f} µs at {BANDWIDTH / 1e3:g} TB/s; "
            f"{work / 1e9:5.1f} GFLOP, {work / 790e6:4.0f} µs at 790 TFLOP/s"
        )


def check() -> str:
    """Gradients of the whole network by the kernels and layer by layer, against float64. Returns what is wrong."""
    torch.manual_seed(0)
    model = build("resnet-frn").cuda()
    wide = build("resnet-frn").double().cuda()
    wide.load_state_dict(model.state_dict())
    half, labels = torch.randn(BATCH, 3, 32, 32).bfloat16().cuda(), torch.randint(10, (BATCH,)).cuda()
    F.cross_entropy(wide(half.double()), labels).backward()
    want = torch.cat([p.grad.flatten() for p in wide.parameters()])
    found: dict[str, Tensor] = {}
    for name, on in (("layer by layer", False), ("our kernels", True), ("again", True)):
        frn_trunk.enabled = on
        model.zero_grad()
        F.cross_entropy(model(half), labels).backward()
        found[name] = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    off = {name: float((got - want).norm() / want.norm()) for name, got in found.items()}
    print("gradients in bf16: " + ", ".join(f"{name} off by {value:.2e}" for name, value in off.items()), flush=True)
    if not off["our kernels"] < 1.3 * off["layer by layer"] + 1e-4:
        return "further off than torch's own"
    return "" if torch.equal(found["our kernels"], found["again"]) else "two runs differ"


def training_step(on: bool, own_stream: bool = True) -> Callable[[], None]:
    frn_trunk.enabled = on
    if HAS_TRITON:
        frn_passes.own_stream = own_stream
    model = build("resnet-frn").cuda()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=torch.tensor(1e-4, device="cuda"), momentum=0.9, nesterov=True, fused=True)
    images = torch.randn(BATCH, 3, 32, 32, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,), device="cuda")

    def step() -> None:
        for p in params:
            p.grad = None
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return recorded(step)


def step() -> dict[str, float]:
    steps = {
        "layer by layer": training_step(False),
        "our kernels, one stream": training_step(True, False),
        "our kernels": training_step(True),
    }
    found = {name: statistics.median(times) for name, times in take_turns(steps, 9, 20).items()}
    for name, took in found.items():
        print(f"{name}: {took:.3f} ms", flush=True)
    for name, replay in steps.items():
        if name != "layer by layer":
            print(f"{name}:\n  " + "\n  ".join(slowest(replay, 24)), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["floor", "check", "sweep", "step"])
    parser.add_argument("--out", type=Path, help="a folder for the numbers")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    record: dict[str, Any] = {}
    wrong = ""

    def save() -> None:
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "batch": BATCH}
            (options.out / "frn_step.json").write_text(json.dumps(about | record, indent=1) + "\n")

    if {"check", "sweep", "step"} & set(options.parts):
        begun = time.perf_counter()
        compilers = frn_launches.Compilers()
        compilers.fill(frn_launches.tables(), "sweep" in options.parts)
        print(f"compiled after {time.perf_counter() - begun:.0f} s", flush=True)
        if "check" in options.parts:
            wrong = check()
            print(f"check: {wrong or 'passed'}", flush=True)
        if "sweep" in options.parts:
            record["sweep"] = frn_launches.sweep()
            print(f"swept after {time.perf_counter() - begun:.0f} s", flush=True)
            save()
        if "step" in options.parts:
            compilers.fill(frn_launches.tables())
            print(f"compiled again after {time.perf_counter() - begun:.0f} s", flush=True)
            record["step"] = step()
            save()
    if "floor" in options.parts:
        floor()
    if wrong:  # the times are printed all the same
        raise SystemExit(wrong)


if __name__ == "__main__":
    main()
