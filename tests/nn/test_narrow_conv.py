"""The kernels for 3×3 convolutions with few channels against torch's own, in float64."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from atmc.nn import build, narrow_conv
from atmc.nn.norm_functions import HAS_TRITON

SHAPES = [(3, 16, 16, 8, 8), (2, 16, 32, 6, 10), (3, 64, 64, 4, 4)]  # images, channels in and out, height, width


def check(device: str, dtype: torch.dtype, limit: float) -> None:
    """Values and both gradients; multiples of 1/8, so that only the last rounding is one."""
    from atmc.nn.kernels import conv_op

    torch.manual_seed(0)
    for n, c, o, height, width in SHAPES:
        shapes = [(n, c, height, width), (o, c, 3, 3), (n, o, height, width)]
        x, w, dy = (torch.randint(-8, 9, shape, device=device).div(8).to(dtype) for shape in shapes)
        own = [t.contiguous(memory_format=torch.channels_last).requires_grad_() for t in (x, w)]
        y = conv_op.conv3x3(*own)
        got = [y, *torch.autograd.grad(y, own, dy)]
        wide = [t.double().requires_grad_() for t in (x, w)]
        expected = F.conv2d(*wide, padding=1)
        want = [expected, *torch.autograd.grad(expected, wide, dy.double())]
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            off = float((a.detach().double() - b.detach()).norm() / b.detach().norm())
            assert off < limit, (n, c, o, height, width, off)


def test_a_cpu_takes_torchs_own() -> None:
    x, w = torch.randn(2, 16, 8, 8), torch.randn(16, 16, 3, 3)
    assert not narrow_conv.applies(x.bfloat16(), w.bfloat16(), 1, 1)
    assert torch.equal(narrow_conv.narrow_conv2d(x, w, 1, 1), F.conv2d(x, w, padding=1))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run on this machine's GPU")
def test_the_kernels_in_triton_interpreter() -> None:
    """In float16, since the interpreter takes bfloat16 in products for integers."""
    program = (
        "import runpy, sys, torch; globals().update(runpy.run_path(sys.argv[1])); check('cpu', torch.float16, 1e-3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or not HAS_TRITON, reason="needs a CUDA device and Triton")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 1e-3), (torch.bfloat16, 4e-3)])
def test_the_kernels_on_the_gpu(dtype: torch.dtype, limit: float) -> None:
    check("cuda", dtype, limit)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or not HAS_TRITON, reason="needs a CUDA device and Triton")
def test_the_network_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = build("resnet-frn", depth=8).cuda()
    x = torch.randn(8, 3, 32, 32, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)
    found = []
    for on in (False, True):
        monkeypatch.setattr(narrow_conv, "enabled", on)
        model.zero_grad()
        model(x).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 0.05  # each is rounded to bf16 at every layer
