"""The CUDA code of the stage kernels, compiled for the CPU: every index, layout and barrier of it without a GPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from atmc.nn import stage

SOURCE = Path(stage.__file__).parent
HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.fixture(scope="module", params=list(stage.SHAPES.values()), ids=lambda s: f"{s.channels}x{s.size}")
def emulated(request, tmp_path_factory):
    """The kernels for one shape as a library."""
    shape, folder = request.param, tmp_path_factory.mktemp("kernels")
    text = "".join(p.read_text() for p in (HERE / "emulate.h", SOURCE / "stage.cu", HERE / "emulated.cc"))
    (folder / "all.cc").write_text(text)
    defines = [f"-D{name}={value}" for name, value in stage.defines(shape).items()]
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", "-w", *defines]
    subprocess.run([*command, "-o", folder / "all.so", folder / "all.cc"], check=True)
    return shape, ctypes.CDLL(str(folder / "all.so"))


def bits(tensor):
    """bf16 values in memory order as the kernels read them."""
    return np.ascontiguousarray(tensor.contiguous().view(torch.int16).numpy())


def value(array, *shape):
    return torch.from_numpy(array).view(torch.bfloat16).view(*shape).double()


def call(function, *arguments):
    function(*(a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else a for a in arguments))


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def test_a_stage_and_its_gradients(emulated):
    """Two images through two blocks and back, against float64."""
    shape, library = emulated
    c, size, blocks, batch = shape.channels, shape.size, 2, 2
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(batch, size, size, c, generator=gen).bfloat16()
    w = (torch.randn(2 * blocks, c, 3, 3, c, generator=gen) / (9 * c) ** 0.5).bfloat16()
    b = 0.1 * torch.randn(blocks, c, generator=gen)
    dy = torch.randn(batch, size, size, c, generator=gen).bfloat16()

    exact_x = x.double().permute(0, 3, 1, 2).requires_grad_()
    exact_w = [each.double().permute(0, 3, 1, 2).requires_grad_() for each in w]
    exact_b = [each.double().requires_grad_() for each in b]
    y = stage.plain(exact_x, exact_w, exact_b)
    exact = torch.autograd.grad(y, [exact_x, *exact_w, *exact_b], dy.double().permute(0, 3, 1, 2))

    packed, count = np.zeros(w.numel(), np.int16), w.numel() // 8
    call(library.repack, -(-count // 256), bits(w), packed, count)
    images = 2 * blocks * batch * shape.positions * 8
    out, saved, grads = np.zeros(x.numel(), np.int16), np.zeros(images, np.int16), np.zeros(images, np.int16)
    call(library.forward, batch, shape.threads, shape.shared_bytes, bits(x), packed, b.numpy(), out, saved, blocks)
    found = value(out, batch, size, size, c)
    assert error(found, y.detach().permute(0, 2, 3, 1)) < 0.01

    dx, db = np.zeros(x.numel(), np.int16), np.zeros((batch, blocks, c), np.float32)
    call(
        library.backward, batch, shape.threads, shape.shared_bytes, bits(dy), out, packed, saved, grads, db, dx, blocks
    )
    assert error(value(dx, batch, size, size, c), exact[0].permute(0, 2, 3, 1)) < 0.05
    for mine, other in zip(torch.from_numpy(db).sum(0), exact[1 + 2 * blocks :], strict=True):
        assert error(mine, other) < 0.08

    parts = 2
    partial = np.full((parts, *w.shape), np.nan, np.float32)
    call(
        library.weights,
        2 * blocks * shape.blocks,
        parts,
        shape.weight_shared_bytes,
        saved,
        grads,
        partial,
        2 * blocks,
        batch,
    )
    dw = np.zeros(w.numel(), np.int16)
    call(library.sum, -(-w.numel() // 1024), partial, dw, parts, w.numel() // 4)
    for mine, other in zip(value(dw, *w.shape), exact[1 : 1 + 2 * blocks], strict=True):
        assert error(mine, other.permute(0, 2, 3, 1)) < 0.05


def test_without_saving(emulated):
    """Prediction keeps nothing."""
    shape, library = emulated
    c, size = shape.channels, shape.size
    x = torch.randn(1, size, size, c).bfloat16()
    zeros = np.zeros(2 * 9 * c * c, np.int16)
    out = np.zeros(x.numel(), np.int16)
    bias = np.zeros((1, c), np.float32)
    call(library.forward, 1, shape.threads, shape.shared_bytes, bits(x), zeros, bias, out, None, 1)
    expected = torch.nn.functional.selu(x.double())
    assert error(value(out, 1, size, size, c), expected) < 3e-3
