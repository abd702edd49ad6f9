"""Do our kernels for 3×3 convolutions with few channels pay? Of ResNet-20-FRN at batch 256, bf16, channels-last.

    python benchmarks/narrow_conv.py floor check layers step [--sweep]

`floor` counts bytes and operations of a whole step, on any machine. `check` compares the kernels with float64. `layers`
has the microseconds of each way of each kind of layer, cuDNN's (with its search) and ours, and what memory alone would
take; `--sweep` tries other launches. `step` has the whole training step with and without them, and its slowest kernels.
A minute on an H200.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.nn import build, narrow_conv
from atmc.nn.norm_functions import HAS_TRITON
from graph_timing import milliseconds, recorded, slowest, take_turns

if HAS_TRITON:
    from atmc.nn.kernels import conv_op

LAYERS = {16: (32, 6), 32: (16, 5), 64: (8, 5)}  # channels: pixels a side, how many such layers
BATCH = 256
BANDWIDTH = 4.0e3  # bytes a nanosecond that an H200 reaches in a copy, in GB/s


def tensors(channels: int, batch: int = BATCH, place: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Input, weight and gradient of the output, multiples of 1/8: sums of products of them are exact."""
    side = LAYERS[channels][0]
    shapes = [(batch, channels, side, side), (channels, channels, 3, 3), (batch, channels, side, side)]
    x, w, dy = (torch.randint(-8, 9, shape, device=place).div(8).bfloat16() for shape in shapes)
    laid = [t.contiguous(memory_format=torch.channels_last) for t in (x, w, dy)]
    return laid[0], laid[1], laid[2]


def check() -> None:
    for channels in LAYERS:
        x, w, dy = tensors(channels, 32)
        wide = [t.double() for t in (x, w, dy)]
        want = F.conv2d(wide[0], wide[1], padding=1)
        back = torch.ops.aten.convolution_backward(
            wide[2], wide[0], wide[1], None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
        got = conv_op.conv3x3(x, w), conv_op.conv3x3_input(dy, w), conv_op.conv3x3_weight(x, dy)
        again = conv_op.conv3x3_weight(x, dy)
        off = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, (want, *back[:2]), strict=True)]
        print(f"{channels} channels: off by {off[0]:.1e}, {off[1]:.1e}, {off[2]:.1e}", flush=True)
        assert max(off) < 4e-3, "more than bf16's rounding"
        assert torch.equal(got[2], again), "two runs differ"


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


def microseconds(work: Callable[[], object]) -> float:
    replay = recorded(work, repeats=20)
    return statistics.median(milliseconds(replay, 3) for _ in range(7)) / 20 * 1e3


def layers(sweep: bool) -> None:
    total = {"cudnn": 0.0, "ours": 0.0, "memory": 0.0}
    for channels, (side, count) in LAYERS.items():
        x, w, dy = tensors(channels)

        def grads(of_x: bool, x: Tensor = x, w: Tensor = w, dy: Tensor = dy) -> Callable[[], object]:
            mask = [of_x, not of_x, False]
            args = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
            return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, *args)

        theirs = [lambda x=x, w=w: F.conv2d(x, w, padding=1), grads(True), grads(False)]
        ours = [
            lambda x=x, w=w: conv_op.conv3x3(x, w),
            lambda dy=dy, w=w: conv_op.conv3x3_input(dy, w),
            lambda x=x, dy=dy: conv_op.conv3x3_weight(x, dy),
        ]
        memory = 2 * x.numel() * 2 / BANDWIDTH / 1e3
        a, b = [microseconds(work) for work in theirs], [microseconds(work) for work in ours]
        print(
            f"{channels:3} channels, {side} px: forward, data gradient, weight gradient: cuDNN "
            f"{a[0]:.1f} {a[1]:.1f} {a[2]:.1f} µs; ours {b[0]:.1f} {b[1]:.1f} {b[2]:.1f}; memory {memory:.1f} each",
            flush=True,
        )
        for name, value in (("cudnn", sum(a)), ("ours", sum(b)), ("memory", 3 * memory)):
            total[name] += count * value
        if sweep:
            known = conv_op.FORWARD[channels], conv_op.WEIGHTS[channels], conv_op.PROGRAMS[channels]
            for pixels, warps in itertools.product((32, 64, 128, 256, 512), (2, 4, 8)):
                conv_op.FORWARD[channels] = conv_op.WEIGHTS[channels] = (pixels, warps)
                found = []
                for work, programs in ((ours[0], known[2]), *((ours[2], p) for p in (44, 64, 128, 256))):
                    conv_op.PROGRAMS[channels] = programs
                    try:
                        found.append(f"{microseconds(work):.1f}")
                    except Exception as error:  # too many registers or too much shared memory
                        found.append(type(error).__name__)
                print(
                    f"    {pixels} pixels, {warps} warps: forward {found[0]}, weights {' '.join(found[1:])}", flush=True
                )
            conv_op.FORWARD[channels], conv_op.WEIGHTS[channels], conv_op.PROGRAMS[channels] = known
    print("of a whole step: " + ", ".join(f"{name} {value:.0f} µs" for name, value in total.items()))


def training_step() -> Callable[[], None]:
    model = build("resnet-frn").cuda()
    params = list(model.parameters())
    images = torch.randn(BATCH, 3, 32, 32, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,), device="cuda")

    def step() -> None:
        for p in params:
            p.grad = None
        F.cross_entropy(model(images), labels).backward()

    return recorded(step)


def step() -> None:
    steps = {}
    for name, on in (("cuDNN", False), ("ours", True)):
        narrow_conv.enabled = on
        steps[name] = training_step()
    for name, times in take_turns(steps, 9, 20).items():
        print(f"forward and backward, {name}: {statistics.median(times):.3f} ms")
    for name, replay in steps.items():
        print(f"{name}:\n  " + "\n  ".join(slowest(replay, 24)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["floor", "check", "layers", "step"])
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    for part in options.parts:
        {"floor": floor, "check": check, "layers": lambda: layers(options.sweep), "step": step}[part]()


if __name__ == "__main__":
    main()
