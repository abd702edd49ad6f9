"""Batches on the device: right against a slow reference, every example once an epoch, any step at any time."""

import numpy as np
import pytest
import torch

from atmc.common.errors import InputError
from atmc.data import DeviceBatches, EvalBatches, ImageData, plan


def reference(data: ImageData, seed: int, step: int, batch: int, pad: int, flip: bool) -> tuple[np.ndarray, list[int]]:
    """Step `step`, one example at a time, in float64."""
    n = len(data)
    rows, labels = [], []
    for position in range(step * batch, (step + 1) * batch):
        p = plan(seed, position // n, n, pad, flip)
        at = position % n
        example = int(p.order[at])
        image = data.images[example].numpy().astype(np.float64)
        channels, height, width = image.shape
        canvas = np.zeros((channels, height + 2 * pad, width + 2 * pad))
        canvas[:, pad : pad + height, pad : pad + width] = image
        top, left = int(p.dy[at]), int(p.dx[at])
        image = canvas[:, top : top + height, left : left + width]
        if p.flip[at]:
            image = image[:, :, ::-1]
        mean, std = (np.array(v)[:, None, None] for v in (data.mean, data.std))
        rows.append((image / 255 - mean) / std)
        labels.append(int(data.labels[example]))
    return np.stack(rows), labels


@pytest.mark.parametrize("augment", ["none", "crop", "flip", "crop-flip"])
@pytest.mark.parametrize("pad", [1, 4])
def test_batches_equal_a_slow_reference(numbered: ImageData, augment: str, pad: int) -> None:
    batches = DeviceBatches(numbered, 10, augment=augment, seed=2, pad=pad)
    for step in (0, 1, 5, 17):  # step 5 straddles the first two epochs of 53
        x, y = batches.batch(step)
        want, labels = reference(numbered, 2, step, 10, pad if "crop" in augment else 0, "flip" in augment)
        assert y.tolist() == labels
        assert np.array_equal(x.numpy(), want.astype(np.float32))
        assert x.is_contiguous(memory_format=torch.channels_last)


def test_bf16_is_rounded_once(numbered: ImageData) -> None:
    x, _ = DeviceBatches(numbered, 10, dtype=torch.bfloat16, augment="crop-flip").batch(3)
    want, _ = reference(numbered, 0, 3, 10, 4, True)
    assert x.dtype == torch.bfloat16
    assert torch.equal(x, torch.from_numpy(want).to(torch.bfloat16))


@pytest.mark.parametrize("batch", [1, 7, 10, 53])
def test_every_epoch_of_the_stream_has_every_example_once(numbered: ImageData, batch: int) -> None:
    batches = DeviceBatches(numbered, batch, seed=1)
    seen = torch.cat([batches.batch(step)[1] for step in range(batches.steps_for(3))])
    assert len(seen) >= 3 * 53 > len(seen) - batch
    for epoch in range(3):
        assert torch.equal(seen[epoch * 53 : (epoch + 1) * 53].sort().values, torch.arange(53))
    assert not torch.equal(seen[:53], seen[53:106])


def test_any_step_at_any_time(numbered: ImageData) -> None:
    straight = DeviceBatches(numbered, 10, augment="crop-flip", seed=4)
    wanted = [straight.batch(step) for step in range(24)]
    resumed = DeviceBatches(numbered, 10, augment="crop-flip", seed=4)
    resumed.start(13)
    for step in (13, 14, 15, 16, 23, 2, 11, 0):  # a resume, a leap and two rollbacks
        x, y = resumed.batch(step)
        assert torch.equal(x, wanted[step][0])
        assert torch.equal(y, wanted[step][1])


def test_the_step_may_be_a_tensor(numbered: ImageData) -> None:
    batches = DeviceBatches(numbered, 10, augment="crop-flip")
    assert torch.equal(batches.batch(torch.tensor(7))[0], batches.batch(7)[0])


def test_seeds_differ_and_the_global_generator_is_left_alone(numbered: ImageData) -> None:
    before = torch.get_rng_state()
    batches = DeviceBatches(numbered, 10, augment="crop-flip", seed=1)
    other = batches.with_seed(2)
    assert other.store is batches.store
    first = batches.batch(0)[1]
    assert not torch.equal(first, other.batch(0)[1])
    assert torch.equal(first, batches.batch(0)[1])
    assert torch.equal(other.batch(0)[0], DeviceBatches(numbered, 10, augment="crop-flip", seed=2).batch(0)[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_ring_never_moves_and_is_filled_once_an_epoch(numbered: ImageData) -> None:
    batches = DeviceBatches(numbered, 10)
    batches.start(0)
    address, versions = batches._ring.data_ptr(), set()
    for step in range(40):
        batches.ensure(step)
        assert batches._ring.data_ptr() == address
        versions.add(batches._ring._version)
    assert len(versions) == 1 + 39 * 10 // 53  # filled at the start, then once for each further epoch begun


def test_processes_share_a_batch(numbered: ImageData) -> None:
    whole = DeviceBatches(numbered, 12, augment="crop-flip", seed=3)
    shares = [DeviceBatches(numbered, 12, augment="crop-flip", seed=3, rank=r, world=3) for r in range(3)]
    for step in (0, 4, 9):
        assert torch.equal(torch.cat([s.batch(step)[0] for s in shares]), whole.batch(step)[0])
    parts = [torch.cat([y for _, y in s.epoch_batches(1)]) for s in shares]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(53))


def test_one_epoch_by_itself(numbered: ImageData) -> None:
    batches = DeviceBatches(numbered, 10, augment="crop-flip", seed=6)
    sizes = [len(y) for _, y in batches.epoch_batches(2)]
    assert sizes == [10, 10, 10, 10, 10, 3]
    assert torch.equal(torch.cat([y for _, y in batches.epoch_batches(2)]), plan(6, 2, 53).order)
    assert [len(y) for _, y in batches.epoch_batches(2, drop_last=True)] == [10] * 5
    tail = list(batches.epoch_batches(2, start=4))
    assert torch.equal(tail[0][0], list(batches.epoch_batches(2))[4][0])
    assert torch.equal(next(iter(batches.epoch_batches(0)))[0], batches.batch(0)[0])


def test_floating_data_of_any_shape() -> None:
    x = torch.randn(30, 7)
    data = ImageData.from_tensors(x, torch.randn(30, 2))
    got, target = DeviceBatches(data, 8, seed=1).batch(1)
    order = plan(1, 0, 30).order[8:16]
    assert torch.equal(got, x[order])
    assert torch.equal(target, data.labels[order])
    assert data.classes == ()
    volume = torch.randn(12, 2, 3, 4, 5)
    got, _ = DeviceBatches(ImageData.from_tensors(volume, torch.zeros(12)), 12, seed=1).batch(0)
    assert torch.equal(got, volume[plan(1, 0, 12).order])
    scaled = ImageData.from_tensors(torch.rand(9, 3, 4, 4), torch.zeros(9), mean=(0.5,) * 3, std=(0.25,) * 3)
    got, _ = DeviceBatches(scaled, 9, seed=1, augment="crop-flip", pad=1).batch(0)
    assert got.shape == (9, 3, 4, 4)
    assert float(got.min()) >= -2
    assert float(got.max()) <= 2


def test_wrong_requests_are_named(numbered: ImageData) -> None:
    with pytest.raises(InputError, match="batch_size = 54 does not fit tensors: choose 1 to 53"):
        DeviceBatches(numbered, 54)
    with pytest.raises(InputError, match="does not split over 3 processes"):
        DeviceBatches(numbered, 10, world=3)
    with pytest.raises(InputError, match="augment = 'mirror' is unknown"):
        DeviceBatches(numbered, 10, augment="mirror")
    with pytest.raises(InputError, match="is for images"):
        DeviceBatches(ImageData.from_tensors(torch.rand(20, 3), torch.zeros(20)), 4, augment="flip")
    with pytest.raises(InputError, match=r"inputs of torch\.complex64: give real numbers"):
        DeviceBatches(ImageData.from_tensors(torch.zeros(20, 3, dtype=torch.complex64), torch.zeros(20)), 4)
    with pytest.raises(InputError, match="needs Triton"):
        DeviceBatches(numbered, 10, kernel="triton")
    with pytest.raises(ValueError, match="more than one epoch"):
        DeviceBatches(numbered, 10).ensure(0, count=6)


def test_evaluation_keeps_the_order(numbered: ImageData) -> None:
    batches = EvalBatches(numbered, 20)
    assert torch.equal(torch.cat([y for _, y in batches]), torch.arange(53))
    assert [len(y) for _, y in batches] == [20, 20, 13]
    x, y = batches.batch(2)
    assert y.tolist() == [*range(40, 53), *[52] * 7]
    assert batches.count(2) == 13
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (numbered.mean, numbered.std))
    assert torch.equal(x[:13], ((numbered.images[40:].double() / 255 - mean) / std).float())
    # The store of augmented batches is padded; evaluation looks at its inside.
    shared = EvalBatches(DeviceBatches(numbered, 10, augment="crop-flip").store, 20)
    assert torch.equal(shared.batch(torch.tensor(2))[0], x)


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("kernel", ["plain", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_a_captured_graph_gives_the_batches_of_the_cpu(
    numbered: ImageData, kernel: str, dtype: torch.dtype, augment: str
) -> None:
    here = DeviceBatches(numbered, 10, dtype=dtype, augment=augment, seed=8)
    there = DeviceBatches(numbered, 10, "cuda", dtype, augment, seed=8, kernel=kernel)  # type: ignore[arg-type]
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    there.start(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        there.batch(step)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x, y = there.batch(step)
        step += 1
    step.zero_()
    results = []
    for i in range(40):
        there.ensure(i)
        graph.replay()
        results.append((x.clone(), y.clone()))
    for i, (got, labels) in enumerate(results):
        want, wanted_labels = here.batch(i)
        assert torch.equal(got.cpu(), want)
        assert got.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(labels.cpu(), wanted_labels)


@pytest.mark.gpu
@cuda
def test_capturing_a_number_is_refused(numbered: ImageData) -> None:
    batches = DeviceBatches(numbered, 10, "cuda")
    batches.batch(0)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="device tensor"), torch.cuda.graph(graph):
        batches.batch(1)


@pytest.mark.gpu
@cuda
def test_the_triton_kernel_equals_the_plain_path_at_full_size() -> None:
    from atmc.data import load

    data = load("synthetic:3x32x32?train=5000")
    plain = DeviceBatches(data, 128, "cuda", torch.bfloat16, "crop-flip", kernel="plain", rank=1, world=2)
    one_launch = DeviceBatches(data, 128, "cuda", torch.bfloat16, "crop-flip", kernel="triton", rank=1, world=2)
    for step in (0, 39, 40, 1000):
        for a, b in zip(plain.batch(step), one_launch.batch(step), strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()
