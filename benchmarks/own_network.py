"""Images per second of custom networks in `atmc.sample` against a plain training loop.

    python benchmarks/own_network.py [--only wrn vit convnext] [--seconds 70] [--start-up] [--out results/networks]

Plain: the loss compiled as a whole, forward, backward and SGD with momentum in one CUDA graph, on fixed images that are
on the device. Sampled: `atmc.sample` with ATMC, a prior, 50,000 images with crops and flips, as it comes; its speed is
the median over epochs of what it writes down itself. Both bf16, batch 128, one after the other in one run. Each network
takes less than 150 s on an H200. The table has the ratio and the peak memory of both. `--start-up` adds the seconds
from starting Python to the first step, with empty compile caches and with those that this left.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import atmc
from atmc.common.errors import RunError
from atmc.engine.progress import Progress
from atmc.nn import build
from atmc.recipe.settings import DataSection, Recipe, RunSection, SamplerSection, ScheduleSection, TargetSection
from graph_timing import milliseconds, recorded

BATCH, SIZE, CLASSES = 128, 32, 10
EXAMPLES, PAD = 50_000, 4
DATA = f"synthetic:3x{SIZE}x{SIZE}?classes={CLASSES}&train={EXAMPLES}&test=100"
DATA_MB = EXAMPLES * 3 * (SIZE + 2 * PAD) ** 2 / 2**20  # padded bytes, which the sampled run holds on the device
RECIPE = Recipe(
    data=DataSection(batch_size=BATCH, augment="crop-flip"),
    target=TargetSection(prior="normalised"),
    sampler=SamplerSection(name="atmc", lr=1e-3, speed=1e-4, max_speed=3e-4, momentum=0.9),
    schedule=ScheduleSection(epochs=1000, cycle_epochs=500),
    run=RunSection(device="cuda", precision="bf16", compile=True),
)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.into, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.into(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0))
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class ViT(nn.Module):
    """ViT-tiny for 32 pixels: patches of 4, width 192, 3 heads, 12 blocks; 5.4 M parameters."""

    def __init__(self, width: int = 192, heads: int = 3, depth: int = 12, patch: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn(1, (SIZE // patch) ** 2, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.mixers = nn.ModuleList(Attention(width, heads) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        for i, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps, strict=True)):
            x = x + mixer(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x).mean(1))


class ConvNeXt(nn.Module):
    """Depthwise 7×7 and a wide MLP of 1×1 convolutions in every block, GroupNorm of one group; 2.3 M parameters."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256), depth: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1)]
        before = widths[0]
        for width in widths:
            if width != before:
                layers += [nn.GroupNorm(1, before), nn.Conv2d(before, width, 2, 2)]
                before = width
            layers += [_Residual(width) for _ in range(depth)]
        self.body = nn.Sequential(*layers, nn.GroupNorm(1, before))
        self.head = nn.Linear(before, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class _Residual(nn.Sequential):
    def __init__(self, width: int) -> None:
        first = nn.Conv2d(width, width, 7, padding=3, groups=width)
        up, down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)
        super().__init__(first, nn.GroupNorm(1, width), up, nn.GELU(), down)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


NETWORKS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "wrn": ("WRN-16-4, gn-ws", lambda: build("wide-resnet", depth=16, width=4, norm="gn-ws")),
    "vit": ("ViT-tiny", ViT),
    "convnext": ("ConvNeXt-like", ConvNeXt),
}


def plain_step(make: Callable[[], nn.Module], inputs: torch.dtype, autocast: bool) -> Callable[[], None]:
    """The loop that one would write, compiled and recorded: loss, backward, SGD with momentum, on one fixed batch."""
    model = make().cuda()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=torch.tensor(1e-3, device="cuda"), momentum=0.9, fused=True)
    x = torch.randn(BATCH, 3, SIZE, SIZE, device="cuda", dtype=inputs).to(memory_format=torch.channels_last)
    y = torch.randint(CLASSES, (BATCH,), device="cuda")

    @torch.compile(dynamic=False)
    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16) if autocast else contextlib.nullcontext():
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    def step() -> None:
        for p in params:
            p.grad = None
        loss(x, y).backward()
        optimizer.step()

    return recorded(step)


def as_ours(make: Callable[[], nn.Module]) -> tuple[torch.dtype, bool]:
    """Inputs and autocast as a person would choose them: our networks follow bf16 inputs, others have autocast."""
    ours = type(make()).__module__.startswith("atmc.nn")
    return (torch.bfloat16, False) if ours else (torch.float32, True)


def plain(make: Callable[[], nn.Module], seconds: float) -> dict[str, float]:
    """Images per second of that loop."""
    began = time.perf_counter()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step = plain_step(make, *as_ours(make))
    ready = time.perf_counter() - began
    rates = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        rates.append(BATCH / milliseconds(step, 100) * 1e3)
    return {"rate": statistics.median(rates[1:] or rates), "ready": ready, "peak_mb": _peak(before)}


class Watch(Progress):
    """Reads the speed off the rows of the run."""

    def __init__(self) -> None:
        self.began, self.first, self.rates = time.perf_counter(), 0.0, []

    def row(self, row: Any, samples: int) -> None:
        if row["event"] == "log" and row["images_per_second"]:
            self.first = self.first or time.perf_counter() - self.began
            self.rates.append(row["images_per_second"])


def start_up(key: str) -> dict[str, float]:
    """Seconds from starting Python to the first step of `atmc.sample`, with empty caches and with filled ones."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        folders = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "ATMC_CACHE": "atmc"}
        environment = {**os.environ, **{name: f"{cache}/{folder}" for name, folder in folders.items()}}
        for kind in ("cold", "warm"):
            began = time.time()
            command = [sys.executable, __file__, "--first-step", key]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"the first step failed:\n{done.stderr[-3000:]}")
            found[kind] = float(done.stdout.split()[-1]) - began
            print(f"{key}: first step after {found[kind]:.1f} s, {kind} caches", flush=True)
    return found


def first_step(make: Callable[[], nn.Module]) -> None:
    """In a process of its own: print when the first step was done."""

    class Stop(Progress):
        def row(self, row: Any, samples: int) -> None:
            if row["event"] == "log":
                print(time.time(), flush=True)
                os._exit(0)

    warnings.simplefilter("ignore")
    recipe = dataclasses.replace(RECIPE, run=dataclasses.replace(RECIPE.run, log_steps=1))
    atmc.sample(make(), DATA, recipe=recipe, progress=Stop())


def sampled(make: Callable[[], nn.Module], seconds: float) -> dict[str, float]:
    """Images per second of `atmc.sample`."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    watch = Watch()
    with warnings.catch_warnings(), contextlib.suppress(RunError):  # too short for a sample, which is all it misses
        warnings.simplefilter("ignore")
        atmc.sample(make(), DATA, recipe=RECIPE, time_budget=seconds, progress=watch)
    if len(watch.rates) < 3:
        raise SystemExit(f"only {len(watch.rates)} epochs in {seconds:g} s: give more --seconds")
    return {
        "rate": statistics.median(watch.rates[2:]),
        "ready": watch.first,
        "peak_mb": _peak(before),
        "data_mb": DATA_MB,
    }


def _peak(before: int) -> float:
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=70.0, help="of the sampled run, its start included")
    parser.add_argument("--start-up", action="store_true", help="time the first step, too")
    parser.add_argument("--first-step", choices=list(NETWORKS), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.first_step:
        first_step(NETWORKS[options.first_step][1])
        return
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    for key in options.only:
        name, make = NETWORKS[key]
        own = plain(make, 6.0)
        ours = sampled(make, options.seconds)
        again = plain(make, 3.0)  # the second reading shows how steady the machine is
        count = sum(p.numel() for p in make().parameters())
        rows.append({"network": name, "parameters": count, "plain": own, "sampled": ours, "plain_again": again})
        if options.start_up:
            rows[-1]["start_up"] = start_up(key)
        print(f"{name}: plain {own['rate']:,.0f}, sampled {ours['rate']:,.0f} img/s", flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        (options.out / "own_network.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"{'network':18} {'plain':>9} {'again':>9} {'sampled':>9} {'ratio':>6} {'peak MB':>13} {'first epoch':>18}")
    for row in rows:
        own, ours, again = row["plain"], row["sampled"], row["plain_again"]
        print(
            f"{row['network']:18} {own['rate']:9,.0f} {again['rate']:9,.0f} {ours['rate']:9,.0f} "
            f"{ours['rate'] / own['rate']:6.3f} {own['peak_mb']:6.0f} {ours['peak_mb']:6.0f} {ours['ready']:16.1f} s"
        )


if __name__ == "__main__":
    main()
