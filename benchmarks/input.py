"""Images per second from JPEG shards to batches, by way of reading, number of worker processes and size.

    python benchmarks/input.py [--shards DIR] [--sizes 128 224] [--workers 1 8 16] [--seconds 1.5] [--out results/input]
    python benchmarks/input.py --memory 'tiny-imagenet?stream=1' --workers 2   # host memory over one epoch

Ways, all with random resized crops and flips:

    full     Pillow decodes the whole image, then crops and resizes
    draft    Pillow decodes at a half, a quarter or an eighth where the crop allows it: what `shards:` does
    kept     bytes decoded once to squares and kept in host memory (`&cache=`), from the second epoch on
    tv       torchvision's CPU decoder and antialiased resize, where it is installed
    nvjpeg   torchvision's GPU decoder, then crops on the device, where both are there (no workers)
    device   decoded bytes held on the device, crops there (`&memory=1`; no workers)

Pillow and torchvision have no way to decode the rows of a crop alone. Without `--shards`, photographs are made up: 1/f
noise of 500 × 375 pixels at quality 92, about as many bytes as ImageNet's. `--network` is the speed to compare with.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import multiprocessing
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
from atmc.data.shard_writer import Item, write_shards
from atmc.data.streamed_source import Cut, Source

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
    from torchvision.io import decode_jpeg
    from torchvision.transforms.functional import resized_crop

    image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    left, top, right, bottom = random_box((image.shape[2], image.shape[1]), view, words)
    box = round(top), round(left), max(1, round(bottom - top)), max(1, round(right - left))
    cut = resized_crop(image, *box, [view.height, view.width], antialias=True)
    return (cut.flip(2) if words[0] & 1 else cut).permute(1, 2, 0).contiguous().numpy()


def photographs(count: int, folder: Path) -> Path:
    """Shards of made-up photographs."""
    rng = np.random.default_rng(0)
    scale = 1 / np.maximum(1.0, np.hypot(np.fft.fftfreq(375)[:, None] * 375, np.fft.rfftfreq(500)[None] * 500))

    def picture() -> bytes:
        noise = rng.standard_normal((3, 375, 251)) + 1j * rng.standard_normal((3, 375, 251))
        grey = np.fft.irfft2(noise * scale**1.05, s=(375, 500))
        pixels = 128 + 50 * grey / grey.std() + 6 * rng.standard_normal(grey.shape)
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)).save(buffer, "JPEG", quality=92)
        return buffer.getvalue()

    data = [picture() for _ in range(count)]
    items = [Item(f"{i}.jpg", i % 10, len(d), lambda d=d: d) for i, d in enumerate(data)]  # type: ignore[misc]
    write_shards(folder, {"train": items}, [str(c) for c in range(10)], 16.0)
    return folder


def speed(batches: Batches, seconds: float, device: torch.device, first: int = 0) -> float:
    """Images per second after the first batches, for about `seconds`."""
    step, count = first, 0
    for _ in range(3):
        batches.batch(step)
        step += 1
    _wait(device)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        batches.batch(step)
        step, count = step + 1, count + 1
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
    from torchvision.io import decode_jpeg

    source: Any = open_source(name, "train")
    raw = [torch.frombuffer(bytearray(source.raw(i)[0]), dtype=torch.uint8) for i in range(min(512, len(source)))]
    words = torch.randint(-(2**62), 2**62, (BATCH, 2), device=device)
    began, count = 0.0, 0
    while count < 3 or time.perf_counter() - began < seconds:
        if count == 2:
            _wait(device)
            began = time.perf_counter()
        at = count * BATCH % max(1, len(raw) - BATCH + 1)
        images = decode_jpeg(raw[at : at + BATCH], device=device)  # type: ignore[arg-type]
        for i, image in enumerate(images):
            resized(image.permute(1, 2, 0)[None], words[i : i + 1], (side, side))
        count += 1
    _wait(device)
    return (count - 2) * BATCH / (time.perf_counter() - began)


def measure(pattern: str, options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    has_tv = importlib.util.find_spec("torchvision") is not None
    for side in options.sizes:
        name = f"shards:{pattern}?size={side}"
        plain = open_source(name, "train", options.root)
        kept = open_source(f"{name}&cache={options.keep}", "train", options.root)
        sources = {"full": Own(plain, full), "draft": plain, "kept": kept} | ({"tv": Own(plain, tv)} if has_tv else {})
        for way, source in sources.items():
            if way == "kept":  # the first epoch, by all cores
                filling = StreamBatches(source, BATCH, augment="flip", workers=max(options.workers))
                for step in range(filling.steps_for(1)):
                    filling.batch(step)
                filling.close()
            for workers in options.workers:
                batches = StreamBatches(source, BATCH, device, augment="resized-crop-flip", workers=workers)
                yield {"way": way, "size": side, "workers": workers, "rate": speed(batches, options.seconds, device)}
        held = open_source(f"shards:{pattern}?size={options.keep}", "train", options.root).in_memory()
        on_device = DeviceBatches(
            held, BATCH, device, torch.bfloat16, "resized-crop-flip", side=side if side != options.keep else None
        )
        yield {"way": "device", "size": side, "workers": 0, "rate": speed(on_device, options.seconds, device)}
        if has_tv and device.type == "cuda":
            try:
                rate = nvjpeg(name, side, options.seconds, device)
                yield {"way": "nvjpeg", "size": side, "workers": 0, "rate": rate}
            except Exception as error:  # a build without it
                print(f"nvjpeg: {type(error).__name__}: {str(error).splitlines()[0][:120]}")


def memory(name: str, workers: int, out: Path) -> None:
    """Proportional set size of this process and its workers, ten times over an epoch of a stream."""
    batches = StreamBatches(open_source(name, "train"), 250, augment="resized-crop-flip", workers=workers)
    steps, rows = batches.steps_for(1), []
    for step in range(steps + 1):
        batches.batch(step)
        if step % (steps // 10) == 0:
            ids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
            lines = [line for i in ids for line in Path(f"/proc/{i}/smaps_rollup").read_text().splitlines()]
            total = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
            rows.append({"images": step * 250, "megabytes": round(total)})
            print(f"{step * 250:9,} images {total:7.0f} MB", flush=True)
    batches.close()
    out.mkdir(parents=True, exist_ok=True)
    (out / "memory.json").write_text(json.dumps({"set": name, "workers": workers, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, help="folder with train-*.tar")
    parser.add_argument("--memory", metavar="NAME", help="host memory over an epoch of a streamed set instead")
    parser.add_argument("--images", type=int, default=512, help="made-up photographs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 224])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--keep", type=int, default=256, help="side of the kept squares")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--network", type=float, help="images per second that the network takes")
    parser.add_argument("--out", type=Path, default=Path("results/input"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        memory(options.memory, options.workers[0], options.out)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as scratch:
        options.root = scratch
        folder = options.shards or photographs(options.images, Path(scratch) / "shards")
        size = sum(f.stat().st_size for f in folder.glob("train-*.tar"))
        rows = []
        for row in measure(f"{folder}/{{split}}-*.tar", options, device):
            rows.append({**row, "rate": round(row["rate"])})
            share = f"  {row['rate'] / options.network:6.2f} of the network" if options.network else ""
            print(f"{row['way']:8s} {row['size']:4d} px {row['workers']:3d} workers {row['rate']:10,.0f} img/s{share}")
    table = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "images": "real" if options.shards else "1/f noise, 500 × 375",
        "bytes": size,
        "keep": options.keep,
        "network": options.network,
        "rows": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{device.type}{'-real' if options.shards else ''}.json"
    (options.out / name).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
