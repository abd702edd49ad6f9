"""Random resized crops on the device, the decoded cache, corrupt images and workers that die."""

import io
import os
import signal
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atmc.common.errors import InputError, RunError
from atmc.data import DeviceBatches, ImageData, StreamBatches, decoded_cache, hold_out, open_source, stream_batches
from atmc.data.image_decoding import View, random_box, read_image
from atmc.data.resized_crops import boxes


def photographs(count: int, side: int = 40) -> ImageData:
    """Smooth random images: of noise, a crop tells nothing."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand(count, 3, 6, 6, generator=generator)
    images = torch.nn.functional.interpolate(coarse, (side, side + 8), mode="bicubic").mul(255).clamp(0, 255).byte()
    return ImageData.from_tensors(images, torch.arange(count), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


@pytest.mark.parametrize(("side", "least"), [(None, 0.08), (16, 0.35), (64, 0.2)])
def test_the_device_cuts_what_pillow_cuts(side: int | None, least: float) -> None:
    data = photographs(30)
    device = DeviceBatches(data, 10, augment="resized-crop-flip", seed=4, side=side, least=least)
    host = StreamBatches(data, 10, augment="resized-crop-flip", seed=4, side=side, least=least, workers=0)
    grey = torch.tensor([0.2, 0.25, 0.3])[:, None, None] * 255
    for step in (0, 1, 7):
        (got, labels), (want, known) = device.batch(step), host.batch(step)
        assert got.shape == want.shape == (10, 3, side or 40, side or 48)
        assert got.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(labels, known)
        assert ((got - want) * grey).abs().max() < 1.5  # Pillow rounds twice
        assert ((got - want) * grey).abs().mean() < 0.4
        assert (got - want.flip(3)).abs().max() > 0.05  # and this would notice a wrong flip


def test_boxes_are_those_of_the_host() -> None:
    words = np.random.default_rng(1).integers(0, 2**64, (50, 2), dtype=np.uint64)
    found = boxes(torch.from_numpy(words.view(np.int64)), (80, 100), (20, 30), 0.3)
    for (a, b), (top, left, height, width) in zip(words.tolist(), found.tolist(), strict=True):
        wanted = random_box((100, 80), View(20, 30), (a, b), 0.3)
        assert (left, top, left + width, top + height) == pytest.approx(wanted)


def test_processes_share_a_batch_of_crops_and_any_step_can_be_asked_for() -> None:
    data = photographs(30)
    whole = DeviceBatches(data, 12, augment="resized-crop-flip", side=8)
    parts = [DeviceBatches(data, 12, augment="resized-crop-flip", side=8, rank=r, world=2) for r in range(2)]
    for step in (9, 2):
        assert torch.equal(torch.cat([p.batch(step)[0] for p in parts]), whole.batch(step)[0])
    with pytest.raises(InputError, match="is for images in bytes"):
        DeviceBatches(ImageData.from_tensors(torch.rand(9, 3, 4, 4), torch.zeros(9)), 3, augment="resized-crop-flip")


def encoded(value: int, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    pixels = np.add.outer(np.arange(24), np.arange(20))[:, :, None] + np.array([value, 2 * value, 0])
    Image.fromarray((pixels % 256).astype(np.uint8)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two training shards of 10 pictures whose label is their number, and a validation shard of one."""
    number = 0
    for name, count in (("train-000", 10), ("train-001", 10), ("val-000", 1)):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            for _ in range(count):
                for suffix, data in (("jpg", encoded(number)), ("cls", str(number % 20).encode())):
                    member = tarfile.TarInfo(f"{number:05d}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
                number += 1
    return tmp_path


def named(shards: Path, options: str) -> str:
    return f"shards:{shards}/{{split}}-*.tar?{options}"


@pytest.mark.parametrize("workers", [0, 2])
def test_the_cache_is_filled_once_and_changes_no_bit(shards: Path, workers: int) -> None:
    first, second = (open_source(named(shards, "size=12&cache=16"), "train", root=shards) for _ in range(2))
    rest, held = hold_out(second, 2)
    cold = StreamBatches(first, 10, augment="resized-crop-flip", workers=0)
    warm = StreamBatches(second, 10, augment="resized-crop-flip", workers=workers)
    for step in (0, 1):
        assert torch.equal(warm.batch(step)[0], cold.batch(step)[0])
    assert second._cache is not None  # type: ignore[attr-defined]
    assert second._cache.filled == 20  # type: ignore[attr-defined]
    warm.close()
    for path in shards.glob("train-*.tar"):  # after one epoch nothing is read from the shards any more
        path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(warm.batch(3)[0], cold.batch(3)[0])
    warm.close()
    assert held.read(0).shape == rest.read(0).shape == (12, 12, 3)


def test_a_cache_that_does_not_fit_is_refused(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_cache, "_free_memory", lambda: 10_000)
    with pytest.raises(InputError, match="leave cache out, or choose a smaller one"):
        open_source(named(shards, "size=12&cache=16"), "train", root=shards)
    with pytest.raises(InputError, match="cache = 8 is smaller than the examples"):
        open_source(named(shards, "size=12&cache=8"), "train", root=shards)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_in_a_shard_is_named_and_refused_or_skipped(shards: Path, workers: int) -> None:
    source: Any = open_source(named(shards, "size=12"), "train", root=shards)
    offset = int(source._index.offset[13])
    with (shards / "train-001.tar").open("r+b") as file:
        file.seek(offset)
        file.write(b"\0" * 200)
    refusing = StreamBatches(source, 20, workers=workers)
    with pytest.raises(RunError, match=rf"train-001\.tar, the image at byte {offset:,} is no readable image"):
        refusing.batch(0)
    skipping = StreamBatches(source, 20, workers=workers, corrupt="skip")
    with pytest.warns(RuntimeWarning, match=rf"skipped: .*byte {offset:,}"):
        labels = skipping.batch(0)[1]
    assert sorted(labels.tolist()) == sorted([*range(13), 14, *range(14, 20)])  # the next one twice
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert sorted(skipping.batch(1)[1].tolist()) == sorted(labels.tolist())
    skipping.close()


def test_odd_images_are_the_same_in_training_and_in_predict(tmp_path: Path) -> None:
    """Grey, CMYK, 16-bit and EXIF-rotated images from a shard, against `atmc predict`'s reader of the same file."""
    base = Image.fromarray((np.add.outer(np.arange(24), 3 * np.arange(30)) % 256).astype(np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    wide = Image.fromarray(np.asarray(base).astype(np.uint16) * 257)
    files = {}
    for name, picture, kind, options in (
        ("grey.jpg", base, "JPEG", {}),
        ("cmyk.jpg", base.convert("CMYK"), "JPEG", {}),
        ("deep.png", wide, "PNG", {}),
        ("turned.jpg", base.convert("RGB"), "JPEG", {"exif": turned}),
    ):
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        files[name] = buffer.getvalue()
        (tmp_path / name).write_bytes(files[name])
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for i, (name, data) in enumerate(files.items()):
            for entry, payload in ((f"{i}{Path(name).suffix}", data), (f"{i}.cls", b"0")):
                member = tarfile.TarInfo(entry)
                member.size = len(payload)
                tar.addfile(member, io.BytesIO(payload))
    for options in ("size=16", "size=16&cache=16"):
        source = open_source(named(tmp_path, options), "train", root=tmp_path)
        for i, name in enumerate(files):
            got = torch.from_numpy(source.read(i)).permute(2, 0, 1)
            assert torch.equal(got, read_image(tmp_path / name, (3, 16, 16))), name
    words = StreamBatches(source, 4, augment="resized-crop-flip", workers=0)
    assert torch.isfinite(words.batch(0)[0]).all()


def test_workers_that_die_are_started_again_or_reported(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = open_source(named(shards, "size=12"), "train", root=shards)
    wanted = [StreamBatches(source, 10, workers=0).batch(step) for step in range(4)]
    here, kind = os.getpid(), type(source)
    deaths = tmp_path / "deaths"
    deaths.write_text("")

    def deadly(this: Any, index: int, *rest: Any) -> Any:
        if index == 5 and os.getpid() != here and len(deaths.read_text()) < most:
            deaths.write_text(deaths.read_text() + "x")
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(this, index, *rest)

    honest = kind.read
    monkeypatch.setattr(kind, "read", deadly)
    most = stream_batches.RESTARTS
    stream = StreamBatches(source, 10, workers=1, prefetch=1)
    with pytest.warns(RuntimeWarning, match="its workers are started again"):
        got = [stream.batch(step) for step in range(4)]
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert deaths.read_text() == "x" * most
    stream.close()
    most = 100
    endless = StreamBatches(source, 20, workers=1, prefetch=1)
    with pytest.raises(RunError, match=r"killed by signal|exited unexpectedly"), pytest.warns(RuntimeWarning):
        endless.batch(0)


def test_a_worker_that_hangs_is_reported(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    source: Any = open_source(named(shards, "size=12"), "train", root=shards)
    monkeypatch.setattr(stream_batches, "PATIENCE", 0.5)
    monkeypatch.setattr(stream_batches, "RESTARTS", 0)
    monkeypatch.setattr(type(source), "read", lambda *_: time.sleep(1.5))
    with pytest.raises(RunError, match="timed out"):
        StreamBatches(source, 10, workers=1).batch(0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_crops_on_cuda_are_those_of_a_cpu_and_can_be_recorded() -> None:
    data = photographs(64)
    here = DeviceBatches(data, 16, augment="resized-crop-flip", seed=4, side=24, least=0.3)
    there = DeviceBatches(data, 16, "cuda", torch.bfloat16, "resized-crop-flip", seed=4, side=24, least=0.3)
    there.start(0)
    there.ensure(0, 2)
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            there.batch(step)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x, y = there.batch(step)
    for number in (0, 1):
        step.fill_(number)
        graph.replay()
        want, labels = here.batch(number)
        assert torch.equal(y.cpu(), labels)
        assert (x.float().cpu() - want).abs().max() < 0.03  # bfloat16 keeps 8 bits of values up to 3
