"""Images per second from JPEG shards to batches, by way of reading, number of worker processes and size.

    python benchmarks/input.py [--shards DIR] [--sizes 128 224] [--workers 1 16] [--time-budget 75] [--network 7774]

Ways, all with random resized crops and flips:

    full     Pillow decodes the whole image, then crops and resizes
    draft    Pillow decodes at a half, a quarter or an eighth where the crop allows it: what `shards:` does
    kept     bytes decoded once to squares and kept in host memory (`&cache=`), from the second epoch on
    tv       torchvision's CPU decoder and antialiased resize, where it is installed
    nvjpeg   torchvision's GPU decoder, then crops on the device, where both are there (no workers)
    device   decoded bytes held on the device, crops there (`&memory=1`; no workers)

Pillow and torchvision have no way to decode the rows of a crop alone. Without `--shards`, photographs are made up: 1/f
noise of 500 × 375 pixels at quality 92, about as many bytes as ImageNet's. `--network` is the speed to compare with, in
images a second at 224 pixels; at other sizes it goes with the pixels. What the time budget has no time for is named.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from atmc.data import Batches, DeviceBatches, StreamBatches, open_source
from atmc.data.image_decoding import View, random_box, recut
from atmc.data.resized_crops import resized
from atmc.data.streamed_source import Cut, Source
from photographs import photographs

BATCH = 128


class Own(Source):
    """Another way to read the images of a source; the square it is given is the largest that is needed."""

    def __init__(self, whole: Any, read: Callable[[bytes, View, tuple[int, int]], np.ndarray]) -> None:
        self._take_after(whole)
        self._whole, self._read = whole, read

    def read(self, index: int, words: Any = None, cut: Cut | None = None) -> np.ndarray:
        return self._read(self._whole.raw(index)[0], self._whole.view, words)


def full(data: bytes, view: View, words: tuple[int, int]) -> np.ndarray:
    return recut(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), view, words)


def tv(data: bytes, view: View, words: tuple[int, int]) -> np.ndarray:
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.functional import resized_crop

    image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
    left, top, right, bottom = random_box((image.shape[2], image.shape[1]), view, words)
    box = round(top), round(left), max(1, round(bottom - top)), max(1, round(right - left))
    cut = resized_crop(image, *box, [view.height, view.width], antialias=True)
    return (cut.flip(2) if words[0] & 1 else cut).permute(1, 2, 0).contiguous().numpy()


def speed(batches: Batches, seconds: float, device: torch.device, first: int = 0) -> float:
    """Images per second after the first batches, for about `seconds`."""
    count = 0
    for step in range(first, first + 3):
        batches.batch(step)
    _wait(device)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        step, count = step + 1, count + 1
        batches.batch(step)
        if count % 50 == 0:
            _wait(device)
    _wait(device)
    took = time.perf_counter() - began
    batches.close()
    return count * batches.batch_size / took


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def nvjpeg(name: str, side: int, seconds: float, device: torch.device) -> float:
    """torchvision decodes a list of files on the GPU; crops of images of one size are made together."""
    from torchvision.io import ImageReadMode, decode_jpeg

    source: Any = open_source(name, "train")
    raw = [torch.frombuffer(bytearray(source.raw(i)[0]), dtype=torch.uint8) for i in range(min(512, len(source)))]
    size = min(BATCH, len(raw))
    words = torch.randint(-(2**62), 2**62, (size, 2), device=device)
    began, count = 0.0, 0
    while count < 3 or time.perf_counter() - began < seconds:
        if count == 2:
            _wait(device)
            began = time.perf_counter()
        at = count * size % max(1, len(raw) - size + 1)
        crop_together(decode_jpeg(raw[at : at + size], ImageReadMode.RGB, device=device), words, side)  # type: ignore[arg-type]
        count += 1
    _wait(device)
    return (count - 2) * size / (time.perf_counter() - began)


def crop_together(images: list[torch.Tensor], words: torch.Tensor, side: int) -> torch.Tensor:
    """Random resized crops [B, side, side, C] of images [C, H, W], those of one size in one go."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, image in enumerate(images):
        groups.setdefault(tuple(image.shape), []).append(index)
    out = torch.empty(len(images), side, side, images[0].shape[0], device=words.device)
    for members in groups.values():
        together = torch.stack([images[i] for i in members]).permute(0, 2, 3, 1)
        out[members] = resized(together, words[members], (side, side)).float()
    return out


def tasks(pattern: str, options: argparse.Namespace, device: torch.device) -> Iterator[tuple[str, int, int, Callable]]:
    """(way, size, workers, what measures it), the ones that say most first: all cores, then fewer."""
    has_tv = importlib.util.find_spec("torchvision") is not None
    most = max(options.workers)
    sources: dict[tuple[str, int], Source] = {}

    def source(way: str, side: int) -> Source:
        if (way, side) not in sources:
            name = f"shards:{pattern}?size={side}" + (f"&cache={options.keep}" if way == "kept" else "")
            plain = open_source(name, "train", options.root)
            sources[way, side] = Own(plain, {"full": full, "tv": tv}[way]) if way in ("full", "tv") else plain
            if way == "kept":  # the first epoch, by all cores
                filling = StreamBatches(sources[way, side], BATCH, augment="flip", workers=most)
                for step in range(filling.steps_for(1)):
                    filling.batch(step)
                filling.close()
        return sources[way, side]

    def streamed(way: str, side: int, workers: int) -> float:
        batches = StreamBatches(source(way, side), BATCH, device, augment="resized-crop-flip", workers=workers)
        return speed(batches, options.seconds, device)

    def held(side: int) -> float:
        data = open_source(f"shards:{pattern}?size={options.keep}", "train", options.root).in_memory()
        own = side if side != options.keep else None
        batches = DeviceBatches(data, BATCH, device, torch.bfloat16, "resized-crop-flip", side=own)
        return speed(batches, options.seconds, device)

    sizes = sorted(options.sizes, reverse=True)
    for side in sizes:
        yield "device", side, 0, lambda side=side: held(side)
        if has_tv and device.type == "cuda":
            name = f"shards:{pattern}?size={side}"
            yield "nvjpeg", side, 0, lambda side=side, name=name: nvjpeg(name, side, options.seconds, device)
    for workers in sorted(options.workers, reverse=True):
        for side in sizes:
            for way in ("draft", "kept", "full", *(["tv"] if has_tv else [])):
                yield way, side, workers, lambda way=way, side=side, workers=workers: streamed(way, side, workers)


def measure(pattern: str, options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    began = time.perf_counter()
    for way, side, workers, rate in tasks(pattern, options, device):
        what = f"{way} at {side} px with {workers} workers"
        if time.perf_counter() - began > options.time_budget:
            print(f"no time for {what}")
            continue
        try:
            yield {"way": way, "size": side, "workers": workers, "rate": round(rate())}
        except Exception as error:  # a build without nvJPEG, say: the other ways are worth having
            print(f"{what}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}")


def said(row: dict[str, Any], network: float | None) -> str:
    share = f"  {row['rate'] / (network * (224 / row['size']) ** 2):6.2f} of the network" if network else ""
    return f"{row['way']:8s} {row['size']:4d} px {row['workers']:3d} workers {row['rate']:10,} img/s{share}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, help="folder with train-*.tar")
    parser.add_argument("--images", type=int, default=512, help="made-up photographs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 224])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--keep", type=int, default=256, help="side of the kept squares")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--time-budget", type=float, default=75.0, help="seconds after which nothing more is begun")
    parser.add_argument("--network", type=float, help="images per second that the network takes at 224 pixels")
    parser.add_argument("--note", default="photographs", help="what the images of --shards are")
    parser.add_argument("--out", type=Path, default=Path("results/input"))
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as scratch:
        options.root = scratch
        folder = options.shards or photographs(options.images, Path(scratch) / "shards")
        size = sum(f.stat().st_size for f in folder.glob("train-*.tar"))
        rows = []
        for row in measure(f"{folder}/{{split}}-*.tar", options, device):
            rows.append(row)
            print(said(row, options.network), flush=True)
    table = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "images": options.note if options.shards else "1/f noise, 500 × 375",
        "bytes": size,
        "keep": options.keep,
        "network": options.network,
        "rows": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{device.type}{'-real' if options.shards else ''}.json").write_text(
        json.dumps(table, indent=1) + "\n"
    )
    print(
        "\n"
        + "\n".join(
            said(row, options.network)
            for row in sorted(rows, key=lambda row: (row["size"], row["workers"], -row["rate"]))
        )
    )


if __name__ == "__main__":
    main()
