"""The CUDA code of the kernels, compiled for the CPU: every index, layout and barrier of it without a GPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from atmc.nn.kernels import stage, transition

SOURCE = Path(stage.__file__).parent
HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


KERNELS = [(stage, shape, "emulated.cc") for shape in stage.SHAPES.values()]
KERNELS += [(transition, shape, "emulated_transition.cc") for shape in transition.SHAPES.values()]


def compiler(folder, kernels, shape, glue):
    """Starts to compile the kernels of a module (`stage` or `transition`) for one shape as a library."""
    parts = HERE / "emulate.h", SOURCE / "image.cuh", Path(kernels.__file__).with_suffix(".cu"), HERE / glue
    (folder / "all.cc").write_text("".join(part.read_text() for part in parts))
    defines = [f"-D{name}={value}" for name, value in kernels.defines(shape).items()]
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", "-w", *defines]
    return subprocess.Popen([*command, "-o", folder / "all.so", folder / "all.cc"])


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Waits for the library of a module and a shape; all are compiled beside each other, and beside the first tests."""
    folders = {each: tmp_path_factory.mktemp("kernels") for each in KERNELS}
    started = {each[:2]: (compiler(folder, *each), folder) for each, folder in folders.items()}

    def compiled(*which):
        process, folder = started[which]
        assert process.wait() == 0
        return ctypes.CDLL(str(folder / "all.so"))

    yield compiled
    for process, _ in started.values():
        process.kill()
        process.wait()


def name(shape):
    return f"{shape.channels}x{shape.size}"


@pytest.fixture(scope="module", params=list(stage.SHAPES.values()), ids=name)
def emulated(request, library):
    return request.param, library(stage, request.param)


@pytest.fixture(scope="module", params=list(transition.SHAPES.values()), ids=name)
def halving(request, library):
    return request.param, library(transition, request.param)


def bits(tensor):
    """bf16 values in memory order as the kernels read them."""
    return np.ascontiguousarray(tensor.contiguous().view(torch.int16).numpy())


def value(array, *shape):
    return torch.from_numpy(array).view(torch.bfloat16).view(*shape).double()


def call(function, *arguments):
    function(*(a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else a for a in arguments))


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("entered", [False, True], ids=["whole", "entered"])
def test_a_stage_and_its_gradients(emulated, entered):
    """Two images through the blocks and back, against float64; whole blocks, or entered in the middle of one."""
    shape, library = emulated
    c, size, blocks, batch = shape.channels, shape.size, 1 + (not entered), 2
    convs = 2 * blocks + entered
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(batch, size, size, c, generator=gen).bfloat16()
    h = torch.randn(batch, size, size, c, generator=gen).bfloat16()
    w = (torch.randn(convs, c, 3, 3, c, generator=gen) / (9 * c) ** 0.5).bfloat16()
    b = 0.1 * torch.randn(blocks, c, generator=gen)
    dy = torch.randn(batch, size, size, c, generator=gen).bfloat16()

    exact_x, exact_h = (t.double().permute(0, 3, 1, 2).requires_grad_() for t in (x, h))
    exact_w = [each.double().permute(0, 3, 1, 2).requires_grad_() for each in w]
    exact_b = [each.double().requires_grad_() for each in b]
    y = stage.plain(exact_x, exact_w, exact_b, exact_h if entered else None)
    inputs = [exact_x, *([exact_h] if entered else []), *exact_w, *exact_b]
    exact = iter(torch.autograd.grad(y, inputs, dy.double().permute(0, 3, 1, 2)))

    packed, count = np.zeros(w.numel(), np.int16), w.numel() // 8
    call(library.repack, -(-count // 256), bits(w), packed, count)
    images = convs * batch * shape.positions * 8
    out, saved, grads = np.zeros(x.numel(), np.int16), np.zeros(images, np.int16), np.zeros(images, np.int16)
    place = batch, shape.threads, shape.shared_bytes
    call(library.forward, *place, bits(x), bits(h) if entered else None, packed, b.numpy(), out, saved, blocks)
    assert error(value(out, batch, size, size, c), y.detach().permute(0, 2, 3, 1)) < 0.01

    dx, dh, db = np.zeros(x.numel(), np.int16), np.zeros(x.numel(), np.int16), np.zeros((batch, blocks, c), np.float32)
    into = grads, db, dx, dh if entered else None
    call(library.backward, *place, bits(dy), out, packed, saved, *into, blocks)
    for mine in [dx, dh][: 1 + entered]:
        assert error(value(mine, batch, size, size, c), next(exact).permute(0, 2, 3, 1)) < 0.05

    parts = 2
    partial = np.full((parts, *w.shape), np.nan, np.float32)
    grid = convs * shape.blocks, parts, shape.weight_shared_bytes
    call(library.weights, *grid, saved, grads, partial, convs, batch)
    dw = np.zeros(w.numel(), np.int16)
    call(library.sum, -(-w.numel() // 1024), partial, dw, parts, w.numel() // 4)
    for mine in value(dw, *w.shape):
        assert error(mine, next(exact).permute(0, 2, 3, 1)) < 0.05
    for mine in torch.from_numpy(db).sum(0):
        assert error(mine, next(exact)) < 0.08


def padded(images):
    """NHWC images as the kernels save them: planes of 8 channels, each row and each plane followed by zeros."""
    batch, size, _, channels = images.shape
    pitch = size + 1
    planes = torch.zeros(batch, channels // 8, pitch, pitch, 8, dtype=images.dtype)
    planes[:, :, :size, :size] = images.view(batch, size, size, -1, 8).permute(0, 3, 1, 2, 4)
    lead = torch.zeros(batch, pitch + 1, 8, dtype=images.dtype)
    return torch.cat([lead, planes.view(batch, -1, 8)], 1)


def test_weight_gradients_of_more_images_than_the_ring_holds(emulated):
    """Each slot of the ring is filled again and again."""
    shape, library = emulated
    c, size, batch = shape.channels, shape.size, 7
    gen = torch.Generator().manual_seed(1)
    x, dy = torch.randn(2, batch, size, size, c, generator=gen).bfloat16()
    exact_x, exact_dy = (t.double().permute(0, 3, 1, 2) for t in (x, dy))
    exact = torch.nn.grad.conv2d_weight(exact_x, (c, c, 3, 3), exact_dy, padding=1)
    partial = np.full((1, c, 3, 3, c), np.nan, np.float32)
    images = bits(padded(x)), bits(padded(dy))
    call(library.weights, shape.blocks, 1, shape.weight_shared_bytes, *images, partial, 1, batch)
    assert error(torch.from_numpy(partial[0]).permute(0, 3, 1, 2), exact) < 1e-5


def test_without_saving(emulated):
    """Prediction keeps nothing."""
    shape, library = emulated
    c, size = shape.channels, shape.size
    x = torch.randn(1, size, size, c).bfloat16()
    zeros = np.zeros(2 * 9 * c * c, np.int16)
    out = np.zeros(x.numel(), np.int16)
    bias = np.zeros((1, c), np.float32)
    call(library.forward, 1, shape.threads, shape.shared_bytes, bits(x), None, zeros, bias, out, None, 1)
    expected = torch.nn.functional.selu(x.double())
    assert error(value(out, 1, size, size, c), expected) < 3e-3


def test_a_transition_and_its_gradients(halving):
    """A few images to half the resolution and back, against float64."""
    shape, library = halving
    c, inputs, size, batch = shape.channels, shape.channels // 2, shape.size, 7
    gen = torch.Generator().manual_seed(0)
    a = torch.randn(batch, 2 * size, 2 * size, inputs, generator=gen).bfloat16()
    w = (torch.randn(c, 3, 3, inputs, generator=gen) / (9 * inputs) ** 0.5).bfloat16()
    p = (torch.randn(c, inputs, generator=gen) / inputs**0.5).bfloat16()
    b = 0.3 * torch.randn(2, c, generator=gen)
    dh, dx = (torch.randn(batch, size, size, c, generator=gen).bfloat16() for _ in range(2))

    leaves = [a.double().permute(0, 3, 1, 2), w.double().permute(0, 3, 1, 2), b[0].double()]
    leaves = [leaf.requires_grad_() for leaf in (*leaves, p.double().view(c, inputs, 1, 1), b[1].double())]
    exact = transition.plain(*leaves)
    da, dw, db, dp, dpb = torch.autograd.grad(exact, leaves, [d.double().permute(0, 3, 1, 2) for d in (dh, dx)])

    packed = np.zeros(shape.weights, np.int16)
    call(library.repack, -(-shape.weights // 8 // 256), bits(w), bits(p), packed)
    saved, grads = (np.full(batch * shape.positions * 8, -1, np.int16) for _ in range(2))
    h, x = (np.zeros(dh.numel(), np.int16) for _ in range(2))
    place = batch, shape.groups * 128, shape.shared_bytes
    call(library.forward, *place, bits(a), packed, *b.numpy(), h, x, saved)
    for mine, truth in zip((h, x), exact, strict=True):
        assert error(value(mine, *dh.shape), truth.detach().permute(0, 2, 3, 1)) < 3e-3

    found, biases = np.zeros(a.numel(), np.int16), np.full((batch, 2, c), np.nan, np.float32)
    into = grads, biases, found
    call(library.backward, batch, shape.shared_bytes, bits(dh), h, bits(dx), packed, *into)
    assert error(value(found, *a.shape), da.permute(0, 2, 3, 1)) < 5e-3
    for mine, truth in zip(torch.from_numpy(biases).sum(0), (db, dpb), strict=True):
        assert error(mine, truth) < 2e-3

    parts = 2
    partial = np.full((parts, shape.weights), np.nan, np.float32)
    call(library.weights, c // 64, parts, shape.weight_shared_bytes, saved, grads, partial, batch)
    both = np.zeros(shape.weights, np.int16)
    call(library.sum, -(-shape.weights // 256), partial, both, parts, shape.weights // 4)
    assert error(value(both[: w.numel()], *w.shape), dw.permute(0, 2, 3, 1)) < 5e-3
    assert error(value(both[w.numel() :], c, inputs), dp[..., 0, 0]) < 5e-3


def test_a_transition_without_saving(halving):
    """Prediction keeps nothing, and gives the same."""
    shape, library = halving
    c, size, gen = shape.channels, shape.size, torch.Generator().manual_seed(1)
    a = torch.randn(1, 2 * size, 2 * size, c // 2, generator=gen).bfloat16()
    packed, bias = bits(0.1 * torch.randn(shape.weights, generator=gen).bfloat16()), np.zeros((2, c), np.float32)
    results = []
    for saved in (None, np.zeros(shape.positions * 8, np.int16)):
        outputs = [np.zeros(size * size * c, np.int16) for _ in range(2)]
        call(library.forward, 1, shape.groups * 128, shape.shared_bytes, bits(a), packed, *bias, *outputs, saved)
        results.append(np.concatenate(outputs))
    assert np.array_equal(*results)
