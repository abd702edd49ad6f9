"""The training step of ResNet-20-FRN at batch 256 in bf16: what memory alone would take, our kernels, the whole step.

    python benchmarks/frn_step.py floor check sweep step [--out results/networks]

`floor` counts bytes and operations of a step, on any machine. `check` compares outputs and gradients with float64.
`sweep` times each kernel by itself for several ways to launch it and goes on with the best. `step` has the whole step
with and without these kernels, and its slowest kernels. Two minutes on an H200, most of it compilation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.nn import build, frn_trunk
from atmc.nn.norm_functions import HAS_TRITON
from graph_timing import milliseconds, recorded, slowest, take_turns

if HAS_TRITON:
    from atmc.nn.kernels import frn_layers, frn_op

BATCH = 256
BANDWIDTH = 4.0e3  # bytes a nanosecond that an H200 reaches in a copy, in GB/s
PROCESSES = 12  # that compile at once
# fmt: off
WAYS: dict[str, dict[int, list[Any]]] = {
    "FORWARD": {
        16: [(8, 1, 0), (8, 3, 0), (16, 3, 0), (8, 1, 256), (8, 2, 256), (8, 2, 512), (16, 2, 256), (16, 1, 512)],
        32: [(8, 1, 0), (8, 3, 0), (8, 4, 0), (16, 3, 0), (8, 2, 256), (8, 1, 256)],
        64: [(8, 1, 0), (8, 3, 0), (8, 5, 0), (4, 4, 0)],
    },
    "BACKWARD": {
        16: [(8, 128, 256, 1, 0), (8, 128, 512, 3, 0), (16, 128, 512, 3, 0),
             (8, 128, 256, 1, 1), (8, 128, 256, 2, 1), (8, 128, 512, 2, 1), (16, 128, 256, 2, 1), (16, 128, 512, 1, 1)],
        32: [(8, 256, 256, 1, 0), (8, 256, 256, 3, 0), (16, 256, 256, 3, 0), (4, 64, 256, 3, 0),
             (8, 256, 256, 1, 1), (8, 256, 256, 2, 1)],
        64: [(8, 64, 64, 1, 0), (8, 64, 64, 3, 0), (8, 64, 64, 5, 0), (4, 64, 64, 4, 0)],
    },
    "WEIGHTS": {
        16: [(4, 256, 128, 3), (4, 128, 256, 3), (4, 128, 128, 3), (4, 256, 256, 2), (4, 512, 128, 2)],
        32: [(4, 128, 64, 3), (4, 128, 128, 3), (4, 64, 128, 3), (4, 256, 128, 2)],
        64: [(8, 64, 44, 3), (8, 64, 88, 3), (8, 64, 64, 2), (4, 64, 44, 2)],
    },
}
# fmt: on


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


def check() -> None:
    """The whole network: gradients of the kernels and of layer by layer, both against float64."""
    compile_all({kind: {c: [way] for c, way in getattr(frn_layers, kind).items()} for kind in WAYS}, True)
    torch.manual_seed(0)
    model = build("resnet-frn").cuda()
    wide = build("resnet-frn").double()
    wide.load_state_dict(model.state_dict())
    x, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    for dtype in (torch.float16, torch.bfloat16):
        wide.zero_grad()
        F.cross_entropy(wide(x.to(dtype).double()), labels).backward()
        want = torch.cat([p.grad.flatten() for p in wide.parameters()])
        off, runs = {}, []
        for name, on in (("layer by layer", False), ("our kernels", True), ("again", True)):
            frn_trunk.enabled = on
            model.zero_grad()
            (256.0 * F.cross_entropy(model(x.cuda().to(dtype)), labels.cuda())).backward()  # above float16's smallest
            got = torch.cat([p.grad.flatten() for p in model.parameters()]).double().cpu() / 256
            off[name] = float((got - want).norm() / want.norm())
            runs.append(got)
        print(f"{dtype}: " + ", ".join(f"{name} off by {value:.2e}" for name, value in off.items()), flush=True)
        assert off["our kernels"] < 1.3 * off["layer by layer"] + 1e-4, "further off than torch's own"
        assert torch.equal(runs[1], runs[2]), "two runs differ"


def layers_of() -> list[frn_layers.Layer]:
    model = build("resnet-frn")
    parts = [model.stem, *(part for block in model.blocks for part in block.parts())]
    strides = [block.first.conv.stride[0] for block in model.blocks]
    return frn_layers.plan((3, 32, 32), [part.conv.weight.shape for part in parts], strides)


def kernels_of(layer: frn_layers.Layer, later: bool = True) -> dict[str, Callable[[], object]]:
    """Launches of a layer's three kernels on random data; `later`: its input has other readers, as most have."""
    kernel = 3 if layer.taps == 9 else 1
    side = layer.height * layer.stride

    def images(channels: int, side: int) -> Tensor:
        return torch.randn(BATCH * channels * side * side, device="cuda").bfloat16()

    x, inputs = images(layer.inputs, side), layer.inputs
    conv, y, dy, dc = (images(layer.outputs, layer.height) for _ in range(4))
    res, dres = (None, None) if layer.shortcut is None else (conv.clone(), conv.clone())
    dx, add = (None, None) if layer.source < 0 else (x.clone(), x.clone() if later else None)
    weight = torch.randn(layer.outputs, kernel, kernel, inputs, device="cuda").bfloat16().movedim(-1, 1)
    params = [torch.ones(layer.outputs, device="cuda") for _ in range(4)]
    scale = torch.ones(BATCH * layer.outputs, device="cuda")
    share = torch.empty(4 * BATCH * layer.outputs, device="cuda")
    dw = torch.empty(layer.filters + weight.numel(), device="cuda").bfloat16()
    given = (conv, res, dy)
    return {
        "FORWARD": lambda: frn_layers.forward_layer(layer, BATCH, x, weight, res, params, conv, y, scale),
        "BACKWARD": lambda: frn_layers.backward_layer(
            layer, BATCH, given, weight, params, scale, dc, dres, dx, add, share
        ),
        "WEIGHTS": lambda: frn_layers.weight_gradient(layer, x, dc, dw, BATCH),
    }


def compile_all(tables: dict[str, dict[int, list[Any]]], every_layer: bool) -> None:
    """Fill Triton's cache in several processes: of the layers that repeat, or of every layer."""
    text = json.dumps(tables)
    words = [sys.executable, __file__, "compile", "--tables", text, *(["--every-layer"] if every_layer else [])]
    started = [subprocess.Popen([*words, "--share", str(i)]) for i in range(PROCESSES)]
    for process in started:
        process.wait()


def compile_share(tables: dict[str, dict[str, list[Any]]], every_layer: bool, share: int) -> None:
    """In a process of its own: launch some of the kernels once."""
    jobs = []
    for layer in layers_of() if every_layer else typical().values():
        for kind, by_channels in tables.items():
            jobs += [(layer, kind, way) for way in by_channels[str(layer.outputs)]]
    for layer, kind, way in jobs[share::PROCESSES]:
        getattr(frn_layers, kind)[layer.outputs] = tuple(way) if isinstance(way, list) else way
        try:
            for later in (True, False) if kind == "BACKWARD" and every_layer else (True,):
                kernels_of(layer, later)[kind]()
            torch.cuda.synchronize()
        except Exception as error:  # too much shared memory, say
            print(f"{layer.outputs} channels, {kind} {way}: {error}", flush=True)


def typical() -> dict[int, frn_layers.Layer]:
    """The layer of each width that there is most of, with a shortcut."""
    return {layer.outputs: layer for layer in layers_of() if layer.shortcut is not None and layer.stride == 1}


def microseconds(work: Callable[[], object]) -> float:
    replay = recorded(work, repeats=20)
    return statistics.median(milliseconds(replay, 3) for _ in range(7)) / 20 * 1e3


def sweep() -> dict[str, dict[str, Any]]:
    """Microseconds of the kernels of a typical layer; leaves the best launches in place and returns them."""
    compile_all(WAYS, False)
    best: dict[str, dict[str, Any]] = {kind: {} for kind in WAYS}
    for channels, layer in typical().items():
        launches = kernels_of(layer)
        for kind, ways in WAYS.items():
            found = []
            for way in ways[channels]:
                getattr(frn_layers, kind)[channels] = way
                try:
                    found.append((microseconds(launches[kind]), way))
                except Exception as error:
                    print(f"{channels} channels, {kind} {way}: {type(error).__name__}", flush=True)
            took, way = min(found)
            getattr(frn_layers, kind)[channels] = way
            best[kind][str(channels)] = {"launch": way, "microseconds": took}
            print(f"{channels} channels, {kind}: " + ", ".join(f"{w} {t:.1f} µs" for t, w in found), flush=True)
    compile_all({kind: {c: [found["launch"]] for c, found in rows.items()} for kind, rows in best.items()}, True)
    return best


def training_step(on: bool, own_stream: bool = True) -> Callable[[], None]:
    frn_trunk.enabled = on
    if HAS_TRITON:
        frn_op.own_stream = own_stream
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
        print(f"{name}:\n  " + "\n  ".join(slowest(replay, 24)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["floor", "check", "sweep", "step", "compile"])
    parser.add_argument("--out", type=Path, help="a folder for the numbers")
    parser.add_argument("--tables", help=argparse.SUPPRESS)
    parser.add_argument("--every-layer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    record: dict[str, Any] = {}
    for part in options.parts:
        if part == "compile":
            compile_share(json.loads(options.tables), options.every_layer, options.share)
        elif part in ("floor", "check"):
            {"floor": floor, "check": check}[part]()
        else:
            record[part] = sweep() if part == "sweep" else step()
    if options.out is not None and record:
        options.out.mkdir(parents=True, exist_ok=True)
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "batch": BATCH}
        (options.out / "frn_step.json").write_text(json.dumps(about | record, indent=1) + "\n")


if __name__ == "__main__":
    main()
