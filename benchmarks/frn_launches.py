"""The kernels of ResNet-20-FRN one by one: compilation in several processes, and the quickest way to launch each.

A way is one row of a table of `frn_layers`. The first of a list is the launch in use, the others are its neighbours.
Kernels that split an image by rows among programs were measured too, and did not pay: at 16, 32 and 64 channels 16.7,
10.5 and 7.6 µs forward, 34.8, 22.7 and 12.2 µs backward, and 42 µs more where the two kinds of kernels meet.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from atmc.nn import build, frn_trunk
from atmc.nn.kernels import frn_layers
from graph_timing import milliseconds, recorded

BATCH = 256
PROCESSES = 14  # that compile at once
LONGEST = 150  # seconds to wait for them
Tables = dict[str, dict[int, tuple[int, ...]]]
WAYS: dict[str, dict[int, list[Any]]] = {
    "FORWARD": {16: [(8, 1, 256), (8, 1, 0)], 32: [(8, 3, 0), (8, 2, 256)], 64: [(8, 3, 0), (4, 3, 0)]},
    "BACKWARD": {
        16: [(16, 128, 512, 1, 1), (8, 128, 256, 1, 1), (16, 256, 512, 1, 1)],
        32: [(8, 256, 256, 1, 0), (8, 256, 256, 2, 1)],
        64: [(4, 64, 64, 4, 0), (8, 64, 64, 4, 0)],
    },
    "WEIGHTS": {
        16: [(4, 128, 128, 3), (4, 128, 88, 4)],
        32: [(4, 64, 128, 3), (4, 128, 64, 3)],
        64: [(4, 64, 44, 4), (8, 64, 44, 3)],
    },
}


def place(kind: str) -> dict[int, Any]:
    """The table of launches that a name of `WAYS` stands for."""
    table: dict[int, Any] = getattr(frn_layers, kind)
    return table


def tables() -> Tables:
    return {kind: dict(place(kind)) for kind in WAYS}


def use(chosen: Tables) -> None:
    for kind, table in chosen.items():
        place(kind).update(table)


def layers_of() -> list[frn_layers.Layer]:
    model = build("resnet-frn")
    parts = [model.stem, *(part for block in model.blocks for part in block.parts())]
    strides = [block.first.conv.stride[0] for block in model.blocks]
    return frn_layers.plan((3, 32, 32), [part.conv.weight.shape for part in parts], strides)


def typical() -> dict[int, frn_layers.Layer]:
    """The layer of each width that there is most of, with a shortcut."""
    return {layer.outputs: layer for layer in layers_of() if layer.shortcut is not None and layer.stride == 1}


def kernels_of(layer: frn_layers.Layer) -> dict[str, Callable[[], object]]:
    """Launches of a plain layer's kernels on random data."""
    images, inputs = BATCH, layer.inputs

    def numbers() -> Tensor:
        return torch.randn(images * layer.size, device="cuda").bfloat16()

    x, conv, y, dy, dc, res, dres, dx, add = (numbers() for _ in range(9))
    weight = torch.randn(layer.outputs, 3, 3, inputs, device="cuda").bfloat16()
    params = [torch.ones(layer.outputs, device="cuda") for _ in range(4)]
    stats = torch.ones(images * layer.outputs, device="cuda")
    share = torch.empty(4 * images * layer.outputs, device="cuda")
    shares = torch.empty(images * weight.numel(), device="cuda")
    dw = torch.empty(weight.numel(), device="cuda").bfloat16()

    def weights() -> None:
        frn_layers.weight_shares(layer, x, dc, shares, layer.weights, images)
        frn_layers.add_shares(shares, dw, frn_layers.programs_for(layer.outputs, images), layer.weights)

    return {
        "FORWARD": lambda: frn_layers.forward_layer(layer, images, x, weight, res, params, conv, y, stats),
        "BACKWARD": lambda: frn_layers.backward_layer(
            layer, images, (conv, res, dy), weight, params, stats, dc, dres, dx, add, share, layer.outputs
        ),
        "WEIGHTS": weights,
    }


def each_way(kind: str, channels: int, work: Callable[[], Any]) -> list[tuple[Any, tuple[int, ...]]]:
    """What `work` returns for every way of `WAYS` that can be launched."""
    found, before = [], place(kind)[channels]
    for way in WAYS[kind][channels]:
        place(kind)[channels] = way
        try:
            found.append((work(), way))
        except Exception as error:  # too much shared memory, say
            print(f"{channels} channels, {kind} {way}: {str(error).splitlines()[-1][:120]}", flush=True)
    place(kind)[channels] = before
    return found


def backward_through_the_network() -> None:
    frn_trunk.enabled = True
    model = build("resnet-frn").cuda()
    x = torch.randn(BATCH, 3, 32, 32, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)
    F.cross_entropy(model(x), torch.zeros(BATCH, dtype=torch.long, device="cuda")).backward()
    torch.cuda.synchronize()


def _compile(share: int, sweep_too: bool, chosen: Tables) -> None:
    """In a process of its own: go through the launches, but launch only every so-many-th kernel that is new."""
    numbers: dict[Any, int] = {}
    run = triton.runtime.jit.JITFunction.run

    def some(self: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = tuple(a.dtype if isinstance(a, Tensor) else a is None for a in args)
        key = (self.__name__, kinds, tuple(sorted((k, str(v)) for k, v in kwargs.items() if k != "grid")))
        if numbers.setdefault(key, len(numbers)) % PROCESSES == share:
            return run(self, *args, **kwargs)
        return None

    triton.runtime.jit.JITFunction.run = some
    try:
        use(chosen)
        backward_through_the_network()
        for channels, layer in typical().items() if sweep_too else ():
            launches = kernels_of(layer)
            for kind in WAYS:
                each_way(kind, channels, launches[kind])
            torch.cuda.synchronize()
    finally:
        triton.runtime.jit.JITFunction.run = run


class Compilers:
    """Processes that fill Triton's cache. To be made before this process has a CUDA context: they are forks of it."""

    def __init__(self) -> None:
        self.pool = multiprocessing.get_context("fork").Pool(PROCESSES, torch.set_num_threads, (1,))

    def fill(self, chosen: Tables, sweep_too: bool = False) -> None:
        work = [(share, sweep_too, chosen) for share in range(PROCESSES)]
        try:
            self.pool.starmap_async(_compile, work, chunksize=1).get(LONGEST)
        except Exception as error:  # what is missing is compiled when it is launched
            print(f"compilation in other processes: {type(error).__name__}: {error}", flush=True)


def microseconds(work: Callable[[], object]) -> float:
    replay = recorded(work, repeats=20)
    return statistics.median(milliseconds(replay, 3) for _ in range(7)) / 20 * 1e3


def sweep() -> dict[str, dict[str, Any]]:
    """Microseconds of the kernels of a typical layer; leaves the best launches in place and returns them."""
    best: dict[str, dict[str, Any]] = {kind: {} for kind in WAYS}
    for channels, layer in typical().items():
        launches = kernels_of(layer)
        for kind in WAYS:
            work = launches[kind]
            times = each_way(kind, channels, lambda work=work: microseconds(work))
            took, way = min(times)
            best[kind][str(channels)] = {"launch": way, "microseconds": took}
            print(f"{channels} channels, {kind}: " + ", ".join(f"{w} {t:.1f}" for t, w in sorted(times)), flush=True)
    for kind, found in best.items():
        place(kind).update({int(channels): row["launch"] for channels, row in found.items()})
    return best
