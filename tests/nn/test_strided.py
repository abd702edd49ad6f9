"""1×1 convolutions with a stride: the numbers of torch's, without its crash."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from atmc.nn.strided import StridedConv2d, conv2d, without_crash_


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


def run(program: str) -> str:
    """What a child process prints, which a segmentation fault of torch 2.13 on AVX512 would end."""
    path = os.pathsep.join(place for place in sys.path if place)
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.strip()


NETWORKS = [
    "build('resnetpp', depth=8, width=8)",
    "build('resnetpp', depth=50, width=4)",
    "build('resnet', depth=8, width=8, shortcut='projection')",
    "build('wide-resnet', depth=10, width=1)",
    "build('resnet-v2', depth=8, width=8)",
    "build('resnet-frn', depth=8, width=8)",
    "convert(Sequential(Conv2d(3, 8, 3), Conv2d(8, 16, 1, 2), BatchNorm2d(16)))",
]


def test_no_crash_of_our_networks() -> None:
    program = f"""
import sys, torch
from torch.nn import *
from atmc.nn import build, convert
torch.set_num_threads(1)
xs = [torch.randn(2, 3, s, s).to(memory_format=torch.channels_last) for s in (48, 64, 96)]
for network in {NETWORKS}:
    print(network, file=sys.stderr)  # the last line names what crashed
    m = eval(network).to(memory_format=torch.channels_last)
    for x in xs:
        m(x).square().mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in m.parameters())
print("all")
"""
    assert run(program) == "all"


def test_no_crash_of_a_network_of_ones_own() -> None:
    """`atmc.sample` hands examples over with channels last, where a plain strided 1×1 convolution would crash."""
    program = (
        "import torch, atmc, warnings; from torch import nn; warnings.simplefilter('ignore'); torch.manual_seed(0); "
        "m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 1, 2), nn.AdaptiveAvgPool2d(1), "
        "nn.Flatten(), nn.Linear(16, 2)); x = torch.randint(0, 255, (8, 3, 64, 64), dtype=torch.uint8); "
        "p = atmc.sample(m, (x, torch.arange(8) % 2), epochs=1, progress=None); print(type(m[2]).__name__)"
    )
    assert run(program) == "Conv2d", "the network itself is left as it is"


def test_the_way_around_is_the_same_function() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1, 2), nn.Conv2d(4, 4, 1, (1, 2), padding=1, padding_mode="circular"))
    x = torch.randn(2, 3, 40, 40)
    expected, names = model(x), list(model.state_dict())
    assert all(isinstance(layer, StridedConv2d) for layer in without_crash_(model))
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == names
