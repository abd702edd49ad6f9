"""1×1 convolutions with a stride: the numbers of torch's, without its crash."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from atmc.nn.strided import conv2d


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (1, {"stride": 2}),
        (1, {"stride": (1, 3), "padding": (0, 0)}),
        (1, {"stride": 2, "groups": 2, "padding": "valid"}),
        (1, {"stride": 2, "padding": 1}),
        (3, {"stride": 2, "padding": 1}),
        (1, {}),
    ],
)
def test_is_torchs(size: int, kernel: int, options: dict) -> None:
    x = torch.randn(2, 4, size, size)
    weight, bias = torch.randn(6, 4 // options.get("groups", 1), kernel, kernel), torch.randn(6)
    torch.testing.assert_close(conv2d(x, weight, bias, **options), F.conv2d(x, weight, bias, **options))


@pytest.mark.parametrize(
    "network",
    [
        "build('resnetpp', depth=8, width=8)",
        "build('resnet', depth=8, width=8, shortcut='projection')",
        "build('wide-resnet', depth=10, width=1)",
        "build('resnet-v2', depth=8, width=8)",
        "build('resnet-frn', depth=8, width=8)",
        "convert(Sequential(Conv2d(3, 8, 3), Conv2d(8, 16, 1, 2), BatchNorm2d(16)))",
    ],
)
def test_no_crash_at_sixty_four_pixels(network: str) -> None:
    """In a child process, which a segmentation fault of torch 2.13 on AVX512 would end."""
    program = (
        "import torch; from torch.nn import *; from atmc.nn import build, convert; torch.set_num_threads(1); "
        f"m = {network}.to(memory_format=torch.channels_last); "
        "x = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last); m(x).square().mean().backward(); "
        "print(all(bool(p.grad.isfinite().all()) for p in m.parameters()))"
    )
    path = os.pathsep.join(place for place in sys.path if place)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.strip() == "True"
