"""Correctness and speed of the normalisation kernels, and the time of a training step with them.

    python benchmarks/norm_kernels.py check                # kernels and whole networks against float64
    python benchmarks/norm_kernels.py sweep                # GB/s of the kernels alone, launched in several ways
    python benchmarks/norm_kernels.py wrn16 wrn28 frn20    # training steps beside the compiled BatchNorm network
    python benchmarks/norm_kernels.py deep                 # training step of ResNet-110

Steps: forward, backward and SGD, bf16 activations, channels-last, one CUDA graph, random images on the device.
"compiled" means torch.compile of the whole loss; "inductor" is the same with our kernels switched off. Contestants take
turns; medians of rounds. Each part takes less than 150 s on an H200; `--profile` prints the slowest kernels.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atmc.nn import build, norm_functions, standardisation
from atmc.nn.norm_functions import ACTS, KINDS, norm_act, norm_act_reference
from graph_timing import milliseconds, recorded, slowest, take_turns

WRN16 = {"name": "wide-resnet", "depth": 16, "width": 4}
WRN28 = {"name": "wide-resnet", "depth": 28, "width": 10}
# part: (batch, {label: (network, compiled, our kernels)})
PARTS: dict[str, tuple[int, dict[str, tuple[dict[str, Any], bool, bool]]]] = {
    "wrn16": (
        128,
        {
            "bn, compiled": ({**WRN16, "norm": "bn"}, True, True),
            "gn-ws": ({**WRN16, "norm": "gn-ws"}, False, True),
            "gn-ws, compiled": ({**WRN16, "norm": "gn-ws"}, True, True),
            "gn-ws, inductor": ({**WRN16, "norm": "gn-ws"}, True, False),
            "evonorm-s0": ({**WRN16, "norm": "evonorm-s0"}, False, True),
            "frn": ({**WRN16, "norm": "frn"}, False, True),
        },
    ),
    "wrn28": (
        128,
        {
            "bn, compiled": ({**WRN28, "norm": "bn"}, True, True),
            "gn-ws": ({**WRN28, "norm": "gn-ws"}, False, True),
            "gn-ws, compiled": ({**WRN28, "norm": "gn-ws"}, True, True),
        },
    ),
    "deep": (128, {"gn-ws": ({"name": "resnet-v2", "depth": 110, "norm": "gn-ws"}, False, True)}),
    "frn20": (
        256,
        {
            "resnet-20-frn": ({"name": "resnet-frn"}, False, True),
            "resnet-20-frn, compiled": ({"name": "resnet-frn"}, True, True),
            "resnet-20-frn, inductor": ({"name": "resnet-frn"}, True, False),
        },
    ),
}


def relative(got: Tensor, want: Tensor) -> float:
    want = want.detach().double().cpu()
    return float((got.detach().double().cpu() - want).norm() / want.norm().clamp_min(1e-12))


def sixteenths(value: Tensor) -> Tensor:
    """Multiples of 1/16 up to 5: bfloat16 holds their sums exactly, so no rounding turns the sign of a ReLU's input."""
    return (16 * value.clamp(-5, 5)).round() / 16


def kernel_error(kind: str, act: str, shape: tuple[int, ...], groups: int, parts: str, dtype: torch.dtype) -> float:
    """Largest relative error over outputs and gradients; `parts` names what is there: h, res, pre_bias, threshold."""
    n, c, height, width = shape
    torch.manual_seed(0)
    images = {"x": 2 * torch.randn(shape) + 0.7, "h": torch.randn(shape), "res": torch.randn(shape)}
    images = {k: sixteenths(v).to(dtype) for k, v in images.items() if k == "x" or k in parts.split()}
    params = {"gain": 1 + 0.3 * torch.randn(c), "bias": 0.3 * torch.randn(c), "pre_bias": sixteenths(torch.randn(c))}
    params = {k: v for k, v in params.items() if k != "pre_bias" or k in parts.split()}
    if kind == "evonorm" or (kind == "frn" and "threshold" in parts.split()):
        params["extra"] = 0.5 * torch.randn(c)
    seeds = [torch.randn(n, c, height, width).to(dtype) for _ in range(2)]

    def run(fn: Callable[..., tuple[Tensor, Tensor]], change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaves = {k: change(v).detach().requires_grad_() for k, v in (images | params).items()}
        y, s = fn(kind=kind, act=act, groups=groups, **leaves)
        outs = [y, s] if "h" in images else [y]
        grads = torch.autograd.grad(outs, list(leaves.values()), [change(seed) for seed in seeds[: len(outs)]])
        return [*outs, *grads]

    want = run(norm_act_reference, lambda t: t.double())
    got = run(norm_act, lambda t: t.cuda().to(memory_format=torch.channels_last) if t.ndim == 4 else t.cuda())
    again = run(norm_act, lambda t: t.cuda().to(memory_format=torch.channels_last) if t.ndim == 4 else t.cuda())
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True)), "two runs differ"
    return max(relative(a, b) for a, b in zip(got, want, strict=True))


def check() -> None:
    """Kernels alone, then gradients of whole networks, against float64."""
    cases = [
        ("silu", (4, 64, 32, 32), 4, ""),
        ("relu", (4, 64, 16, 16), 4, "h"),
        ("silu", (3, 24, 5, 7), 2, "h pre_bias"),
        ("silu", (2, 48, 56, 56), 3, "res pre_bias threshold"),
        ("identity", (2, 20, 3, 3), 1, "res threshold"),
    ]
    wrong: list[str] = []
    for kind in KINDS:
        for act, shape, groups, parts in cases:
            assert act in ACTS
            for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, 5e-3)):
                error = kernel_error(kind, act, shape, groups, parts, dtype)
                line = f"{kind:8} {act:8} {shape!s:18} {parts:24} {dtype!s:15} {error:.1e}"
                print(line, flush=True)
                wrong += [] if error < limit else [line]
    for options in (
        {"name": "wide-resnet", "depth": 16, "width": 2, "norm": "gn-ws"},
        {"name": "wide-resnet", "depth": 16, "width": 2, "norm": "evonorm-s0"},
        {"name": "wide-resnet", "depth": 16, "width": 2, "norm": "frn", "threshold": True},
        {"name": "resnet-frn"},
    ):
        torch.manual_seed(0)
        model = build(**options)
        x, y = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
        wide = copy.deepcopy(model).double()
        F.cross_entropy(wide(x.double()), y).backward()
        for compiled in (False, True):
            own = copy.deepcopy(model).cuda()
            loss = torch.compile(loss_of(own), dynamic=False) if compiled else loss_of(own)
            with torch.backends.cudnn.flags(allow_tf32=False):
                loss(x.cuda(), y.cuda()).backward()
            errors = [relative(p.grad, q.grad) for p, q in zip(own.parameters(), wide.parameters(), strict=True)]
            line = f"{options} compiled={compiled}: gradients off by at most {max(errors):.1e}"
            print(line, flush=True)
            wrong += [] if max(errors) < 1e-3 else [line]
    if wrong:
        raise SystemExit("too far from float64:\n" + "\n".join(wrong))


def loss_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    return loss


SHAPES = [
    ("gn", (128, 64, 32, 32)),
    ("gn", (128, 128, 16, 16)),
    ("gn", (128, 256, 8, 8)),
    ("gn", (128, 160, 32, 32)),
    ("evonorm", (128, 64, 32, 32)),
    ("frn", (256, 16, 32, 32)),
    ("frn", (256, 32, 16, 16)),
    ("frn", (256, 64, 8, 8)),
]
# elements of a group that stays in registers, of a chunk where it does not, and of a warp
LAUNCHES = [(16384, 8192, 512), (16384, 8192, 1024), (16384, 8192, 2048), (4096, 4096, 1024), (2048, 2048, 512)]


def sweep() -> None:
    """Microseconds and GB/s of the kernels alone, as networks use them, for several ways to launch them."""
    from atmc.nn.kernels import norm_act_triton

    norm_functions.load_kernels()
    names = ("RESIDENT_ELEMENTS", "LOOP_ELEMENTS", "WARP_ELEMENTS")
    default = [getattr(norm_act_triton, name) for name in names]
    for kind, shape in SHAPES:
        print(f"{kind} {shape}", flush=True)
        for launch in LAUNCHES:
            for name, value in zip(names, launch, strict=True):
                setattr(norm_act_triton, name, value)
            there, back = kernel_times(kind, shape)
            sizes = [math.prod(shape) * 2e-3 * tensors for tensors in ((3, 5) if kind == "frn" else (4, 4))]
            print(
                f"  {launch!s:28} {there:6.1f}, {back:6.1f} µs ({sizes[0] / there:5.0f}, {sizes[1] / back:5.0f} GB/s)",
                flush=True,
            )
    for name, value in zip(names, default, strict=True):
        setattr(norm_act_triton, name, value)


def kernel_times(kind: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Microseconds forward and backward, each as one replay of a graph of 20 launches.

    GroupNorm and EvoNorm with the addition before them (pre-activation), FRN with the one after it and all parameters.
    """
    ops, code, groups, act = torch.ops.atmc, KINDS.index(kind), max(1, shape[1] // 16), 0 if kind == "evonorm" else 2
    x, other, dy, ds = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last) for _ in range(4)
    )
    gain, bias = torch.ones(shape[1], device="cuda"), torch.zeros(shape[1], device="cuda")
    extra = None if kind == "gn" else torch.zeros(shape[1], device="cuda")
    h, res, pre = (None, other, bias) if kind == "frn" else (other, None, None)
    _, s, stats = ops.norm_act(x, h, res, pre, gain, bias, extra, code, act, groups, 1e-5)
    s, ds = (x, None) if kind == "frn" else (s, ds)

    def forward() -> None:
        ops.norm_act(x, h, res, pre, gain, bias, extra, code, act, groups, 1e-5)

    def backward() -> None:
        ops.norm_act_backward(s, res, dy, ds, pre, gain, bias, extra, stats, pre is not None, code, act, groups)

    found = []
    for launch in (forward, backward):
        replay = recorded(launch, repeats=20)
        found.append(statistics.median(milliseconds(replay, 3) for _ in range(9)) / 20 * 1e3)
    return found[0], found[1]


def captured(options: dict[str, Any], batch: int, compiled: bool, ours: bool) -> tuple[Callable[[], None], float]:
    """(replay of one training step, seconds until it was ready)."""
    began = time.perf_counter()
    torch.compiler.reset()
    norm_functions.enabled = standardisation.enabled = ours
    model = build(**options).cuda()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=torch.tensor(1e-4, device="cuda"), momentum=0.9, nesterov=True, fused=True)
    images = torch.randn(batch, 3, 32, 32, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device="cuda")
    # torch 2.11 cannot fuse reductions of two orders in ResNet-20-FRN's backward pass: it fails its own assertion.
    settings = {} if ours else {"triton.mix_order_reduction": False}
    loss = torch.compile(loss_of(model), dynamic=False, options=settings) if compiled else loss_of(model)

    def step() -> None:
        for p in params:
            p.grad = None
        loss(images, labels).backward()
        optimizer.step()

    replay = recorded(step)
    norm_functions.enabled = standardisation.enabled = True
    return replay, time.perf_counter() - began


def time_part(part: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    batch, contestants = PARTS[part]
    steps: dict[str, Callable[[], None]] = {}
    rows: list[dict[str, Any]] = []
    for label, (network, compiled, ours) in contestants.items():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps[label], ready = captured(network, batch, compiled, ours)
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        rows.append({"part": part, "contestant": label, "batch": batch, "ready_seconds": ready, "peak_mb": peak})
        print(f"{part} {label}: ready after {ready:.1f} s", flush=True)
    times = take_turns(steps, options.rounds, 20)
    for row in rows:
        row["milliseconds"] = statistics.median(times[row["contestant"]])
        row["images_per_second"] = batch / row["milliseconds"] * 1e3
    if options.profile:
        for label, step in steps.items():
            print(f"{part} {label}:\n  " + "\n  ".join(slowest(step, options.profile)), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["check", "sweep", *PARTS])
    parser.add_argument("--out", type=Path, help="a folder for the numbers")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="print the N slowest kernels of each step")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    for part in options.parts:
        if part == "check":
            check()
        elif part == "sweep":
            sweep()
        else:
            rows += time_part(part, options)
    if options.out is not None and rows:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "norm_kernels.json"
        others = json.loads(path.read_text())["rows"] if path.exists() else []
        kept = [row for row in others if row["part"] not in options.parts]
        record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": kept + rows}
        path.write_text(json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['part']:6} {row['contestant']:24} {row['milliseconds']:7.3f} ms "
            f"{row['images_per_second']:9,.0f} img/s  peak {row['peak_mb']:6.0f} MB  ready {row['ready_seconds']:.1f} s"
        )


if __name__ == "__main__":
    main()
