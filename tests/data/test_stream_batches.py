"""Streams: the same batches as on the device, however many workers, from any position."""

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atmc.common.errors import InputError, RunError
from atmc.data import DeviceBatches, ImageData, StreamBatches, StreamEvalBatches, open_source
from atmc.data.image_decoding import View, middle, random_box
from atmc.data.streamed_source import ArraySource


@pytest.mark.parametrize("augment", ["none", "crop", "flip", "crop-flip"])
def test_the_stream_equals_the_device(numbered: ImageData, augment: str) -> None:
    stream = StreamBatches(numbered, 10, augment=augment, seed=9, workers=0)
    device = DeviceBatches(numbered, 10, augment=augment, seed=9)
    for step in range(12):
        for got, want in zip(stream.batch(step), device.batch(step), strict=True):
            assert torch.equal(got, want)
    assert stream.batch(0)[0].is_contiguous(memory_format=torch.channels_last)
    for got, want in zip(stream.epoch_batches(3), device.epoch_batches(3), strict=True):
        assert torch.equal(got[0], want[0])
    assert [len(y) for _, y in stream.epoch_batches(3, start=2, drop_last=True)] == [10] * 3


def test_workers_change_nothing_and_a_run_resumes_in_the_middle_of_an_epoch(numbered: ImageData) -> None:
    straight = StreamBatches(numbered, 10, augment="crop-flip", seed=1, workers=0)
    wanted = [straight.batch(step) for step in range(14)]
    before = torch.get_rng_state()
    resumed = StreamBatches(numbered, 10, augment="crop-flip", seed=1, workers=2, prefetch=2)
    for step in (7, 8, 9, 10, 11, 12, 13, 3, 4):  # a resume inside epoch 1, then a rollback
        got = resumed.batch(step)
        assert torch.equal(got[0], wanted[step][0])
        assert torch.equal(got[1], wanted[step][1])
    resumed.close()
    assert torch.equal(torch.get_rng_state(), before)


def test_every_epoch_of_the_stream_has_every_example_once(numbered: ImageData) -> None:
    stream = StreamBatches(numbered, 8, workers=0)
    seen = torch.cat([stream.batch(step)[1] for step in range(stream.steps_for(2))])
    for epoch in range(2):
        assert torch.equal(seen[epoch * 53 : (epoch + 1) * 53].sort().values, torch.arange(53))
    assert not torch.equal(stream.with_seed(5).batch(0)[1], seen[:8])
    assert torch.equal(stream.batch(0)[1], seen[:8])


class Collecting(ArraySource):
    """Collects garbage whenever an example is read, as Python may at any time."""

    def example(self, *request: Any) -> Any:
        gc.collect()
        return super().example(*request)


def test_workers_leave_the_garbage_of_the_run_alone(numbered: ImageData, tmp_path: Path) -> None:
    """To free CUDA memory, events or graphs in a forked process is an error."""

    class Held:
        def __init__(self) -> None:
            self.itself = self  # only the collector frees it

        def __del__(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    stream = StreamBatches(Collecting(numbered), 10, workers=1)
    gc.disable()
    try:
        Held()
        assert len(stream.batch(0)[1]) == 10
    finally:
        gc.enable()
        stream.close()
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


def test_processes_share_a_batch(numbered: ImageData) -> None:
    whole = StreamBatches(numbered, 12, augment="crop-flip", workers=0)
    shares = [StreamBatches(numbered, 12, augment="crop-flip", workers=0, rank=r, world=2) for r in range(2)]
    for step in (3, 4, 5):
        assert torch.equal(torch.cat([s.batch(step)[0] for s in shares]), whole.batch(step)[0])


def test_evaluation_in_order(numbered: ImageData) -> None:
    batches = StreamEvalBatches(numbered, 20, workers=0)
    assert len(batches) == 3
    assert torch.equal(torch.cat([y for _, y in batches]), torch.arange(53))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_that_breaks_is_named_in_one_line(pictures: Path, workers: int) -> None:
    source = open_source(f"folder:{pictures}?size=8", "train")
    broken = sorted(pictures.glob("bee/*.png"))[1]
    broken.write_bytes(broken.read_bytes()[:40])
    stream = StreamBatches(source, len(source), workers=workers)
    with pytest.raises(RunError, match=r"01\.png is no readable image") as caught:
        stream.batch(0)
    assert "\n" not in str(caught.value)


def test_random_crops_are_reproducible_and_inside() -> None:
    rng = np.random.default_rng(0)
    view = View(20, 30)
    areas = []
    for _ in range(2000):
        words = (int(rng.integers(2**63)) * 2 + int(rng.integers(2)), int(rng.integers(2**63)) * 2)
        left, top, right, bottom = random_box((100, 80), view, words)
        assert 0 <= left < right <= 100 + 1e-9
        assert 0 <= top < bottom <= 80 + 1e-9
        assert 0.5 < (right - left) / (bottom - top) / 1.5 < 2
        areas.append((right - left) * (bottom - top) / 8000)
    assert 0.07 < min(areas) < 0.1
    assert max(areas) > 0.9
    assert middle((100, 80), view) == pytest.approx((0, (80 - 100 / 1.5) / 2, 100, (80 + 100 / 1.5) / 2))


def test_the_augmentation_of_large_images(pictures: Path) -> None:
    source = open_source(f"folder:{pictures}?size=6x5", "train")
    here = StreamBatches(source, 4, augment="resized-crop-flip", seed=2, workers=0)
    there = StreamBatches(source, 4, augment="resized-crop-flip", seed=2, workers=1)
    for step in (5, 6):
        x, y = here.batch(step)
        assert x.shape == (4, 3, 6, 5)
        assert torch.equal(there.batch(step)[0], x)
        # Pictures of one colour keep it, whatever is cut out of them.
        assert torch.equal(x, x[:, :, :1, :1].expand_as(x))
        assert y.max() <= 1
    there.close()
    with pytest.raises(InputError, match="augment = 'twist' is unknown"):
        StreamBatches(source, 4, augment="twist")
    with pytest.raises(RunError, match="images with 1 or 3 channels"):
        StreamBatches(ImageData.from_tensors(torch.zeros(9, 2, 4, 4, dtype=torch.uint8), torch.zeros(9)), 3,
                      augment="resized-crop-flip", workers=0).batch(0)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_copies_arrive_whole(numbered: ImageData) -> None:
    here = StreamBatches(numbered, 10, dtype=torch.bfloat16, augment="crop-flip", workers=0)
    there = StreamBatches(numbered, 10, "cuda", torch.bfloat16, augment="crop-flip", workers=2)
    for step in range(30):
        x, y = there.batch(step)
        assert torch.equal(x.cpu(), here.batch(step)[0])
        assert torch.equal(y.cpu(), here.batch(step)[1])
    there.close()
