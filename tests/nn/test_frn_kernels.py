"""The kernels of ResNet-FRN against torch's own operations, in float64."""

import sys
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import atmc
from atmc.common.matrix_views import matrix_of
from atmc.nn import build, frn_trunk
from atmc.nn.norm_functions import HAS_TRITON
from atmc.nn.standardisation import as_filters, layer_parts, padded
from atmc.target.example_gradients import example_gradients

# Launches with single taps, and with neighbours together; both in several passes at some width.
WAYS = (
    {
        "FORWARD": {16: (8, 1, 0), 32: (8, 3, 0), 64: (8, 3, 0)},
        "BACKWARD": {16: (8, 64, 64, 1, 0), 32: (8, 64, 64, 1, 0), 64: (4, 16, 16, 4, 0)},
    },
    {
        "FORWARD": {16: (8, 2, 64), 32: (8, 1, 32), 64: (8, 1, 0)},
        "BACKWARD": {16: (8, 64, 64, 2, 1), 32: (8, 16, 64, 1, 1), 64: (8, 16, 16, 1, 1)},
    },
)


def launch(way: int) -> None:
    from atmc.nn.kernels import frn_layers

    for name, table in WAYS[way].items():
        getattr(frn_layers, name).update(table)


@pytest.fixture
def launches() -> Iterator[Callable[[int], None]]:
    """Launch like that until the test is over."""
    from atmc.nn.kernels import frn_layers

    tables = [frn_layers.FORWARD, frn_layers.BACKWARD]
    before = [dict(table) for table in tables]
    yield launch
    for table, old in zip(tables, before, strict=True):
        table.update(old)


def off(got: Tensor, want: Tensor) -> float:
    want = want.detach().double().cpu()
    return float((got.detach().double().cpu() - want).norm() / want.norm().clamp_min(1e-9))


def strides_of(model: torch.nn.Module) -> list[int]:
    return [block.first.conv.stride[0] for block in model.blocks]


def errors(device: str, dtype: torch.dtype, size: int, images: int = 3, depth: int = 8) -> dict[str, list[float]]:
    """Of the output and the gradients of all weights and parameters, in a network with two changes of shape.

    By our kernels, and by torch's own operations in the same precision, against float64.
    """
    from atmc.nn.kernels import frn_op

    torch.manual_seed(0)
    model = build("resnet-frn", depth=depth)
    layers = [model.stem, *(part for block in model.blocks for part in block.parts())]
    filters = [layer.conv.weight.detach() for layer in layers]
    shapes = [size for w in filters for size in w.shape]
    rows = [F.pad(w.movedim(1, -1).flatten(), (0, padded(w.shape) - w.numel())) for w in filters]
    named = [(p.conv.bias, p.norm.gain, p.norm.bias, p.norm.threshold) for p in layers]
    params = [p.detach() + 0.3 * torch.randn_like(p) for four in named for p in four]
    x, strides = torch.randn(images, 3, size, size).to(dtype), strides_of(model)
    found = {}
    for name, place, change in (("ours", device, dtype), ("torch", device, dtype), ("wide", "cpu", torch.float64)):
        wide = change if change == torch.float64 else torch.float32
        leaves = [torch.cat(rows).to(dtype).to(place, change), *(t.to(place, wide) for t in params)]
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        inputs = x.to(place, change)
        if name == "ours":
            y = frn_op.Trunk.apply(shapes, strides, inputs, *leaves)
        else:
            y = frn_op.reference(inputs, leaves[0], leaves[1:], shapes, strides)
        seed = (size // 4) ** 2 * torch.linspace(-1, 1, y.numel())  # as many pixels share it
        slope, *others = torch.autograd.grad(y, leaves, seed.view(y.shape).to(place, y.dtype))
        assert slope.isfinite().all(), "also where nothing lies"
        found[name] = [y, *layer_parts(slope, filters), *others]
    pairs = {name: zip(found[name], found["wide"], strict=True) for name in ("ours", "torch")}
    return {name: [off(a, b) for a, b in both] for name, both in pairs.items()}


def errors_by_image(device: str, dtype: torch.dtype, size: int, images: int = 3, depth: int = 8) -> list[float]:
    """Of the gradients of each image, against float64: of all weights, biases, gains, biases and thresholds."""
    from atmc.nn.kernels import frn_op

    torch.manual_seed(0)
    model = build("resnet-frn", depth=depth)
    layers = [model.stem, *(part for block in model.blocks for part in block.parts())]
    filters = [layer.conv.weight.detach() for layer in layers]
    shapes, strides = [tuple(w.shape) for w in filters], strides_of(model)
    flat = torch.cat([F.pad(w.movedim(1, -1).flatten(), (0, padded(w.shape) - w.numel())) for w in filters])
    named = [(p.conv.bias, p.norm.gain, p.norm.bias, p.norm.threshold) for p in layers]
    params = [p.detach() + 0.3 * torch.randn_like(p) for four in named for p in four]
    x = torch.randn(images, 3, size, size).to(dtype)
    seed = (size // 4) ** 2 * torch.linspace(-1, 1, images * 64).view(images, 64)
    weights, others, _ = frn_trunk.run_by_image(
        x.to(device), flat.to(device, dtype), [p.to(device) for p in params], shapes, strides, lambda y: seed.to(y)
    )
    found = []
    for image in range(images):
        leaves = [t.double().requires_grad_() for t in (flat.to(dtype), *params)]
        sizes = [size for shape in shapes for size in shape]
        y = frn_op.reference(x[image : image + 1].double(), leaves[0], leaves[1:], sizes, strides)
        slope, *slopes = torch.autograd.grad(y, leaves, seed[image : image + 1].double())
        parts = [as_filters(part, w.shape) for part, w in zip(layer_parts(slope, filters), filters, strict=True)]
        pairs = zip([*weights, *others], [*parts, *slopes], strict=True)
        found += [off(own[image], right) for own, right in pairs]
    return found


def check_example_gradients(device: str, dtype: torch.dtype, least: float, images: int = 3, size: int = 16) -> None:
    """A network's gradients of each example by its own kernels, against torch.func."""
    torch.manual_seed(1)
    model = build("resnet-frn", depth=8).to(device)
    x, y = torch.randn(images, 3, size, size, device=device), torch.arange(images, device=device) % 10
    likelihood = atmc.likelihoods.Categorical()
    weights = torch.linspace(1.0, 3.0, images, device=device)
    nll, logits, fast = example_gradients(model, likelihood, x.to(dtype), y, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frn_trunk, "enabled", False)
        right, others, slow = example_gradients(model, likelihood, x, y, weights)
    assert fast.keys() == slow.keys() == dict(model.named_parameters()).keys()
    assert matrix_of(list(fast.values())) is not None
    assert off(nll, right) < least
    assert off(logits, others) < least
    whole = [torch.cat([g[name].reshape(images, -1) for name in slow], 1) for g in (fast, slow)]
    assert off(*whole) < least
    assert off(whole[0].sum(0), whole[1].sum(0)) < least


def check_example_gradients_on_a_cpu() -> None:
    """As if the kernels applied there."""

    def flat(convs: list[torch.nn.Conv2d], dtype: torch.dtype) -> Tensor:
        filters = [conv.weight for conv in convs]
        return torch.cat([F.pad(w.movedim(1, -1).flatten(), (0, padded(w.shape) - w.numel())) for w in filters])

    frn_trunk.applies = lambda *given: frn_trunk.enabled  # type: ignore[assignment]
    sys.modules["atmc.nn.resnet_frn"].flat_weights = flat  # type: ignore[attr-defined]
    check_example_gradients("cpu", torch.float32, 1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run on this machine's GPU")
def test_the_kernels_in_triton_interpreter(in_interpreter: Callable[[str], None]) -> None:
    """In float32, where every difference is a mistake. With two blocks of a shape, all kinds of neighbours occur."""
    in_interpreter(
        "for way, depth in ((0, 8), (1, 14)):\n"
        "    launch(way)\n"
        "    found = errors('cpu', torch.float32, 16, 2, depth)['ours']\n"
        "    assert max(found) < 1e-5, (way, found)\n"
        "assert max(errors_by_image('cpu', torch.float32, 16)) < 1e-5\n"
        "check_example_gradients_on_a_cpu()\n"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or not HAS_TRITON, reason="needs a CUDA device and Triton")
def test_the_gradients_of_each_image() -> None:
    """Not much further off than those of all images together, and near those of torch.func in float32."""
    found = errors_by_image("cuda", torch.bfloat16, 32, images=130)
    together = errors("cuda", torch.bfloat16, 32, images=130)
    assert max(found) < 3.0 * max(together["torch"]), (max(found), together)
    check_example_gradients("cuda", torch.bfloat16, 0.1, 64, 32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or not HAS_TRITON, reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("size", "way", "depth"), [(32, 0, 8), (16, 1, 8), (32, None, 8)])
def test_no_further_off_than_torch(
    size: int, way: int | None, depth: int, dtype: torch.dtype, launches: Callable[[int], None]
) -> None:
    """Each number is rounded at every layer, and a threshold turns a difference into a jump: for torch's own, too."""
    if way is not None:  # else the launches that the network has
        launches(way)
    found = errors("cuda", dtype, size, images=130, depth=depth)
    assert max(found["ours"]) < 1.2 * max(found["torch"]), found
    assert found["ours"][0] < 1.2 * found["torch"][0], found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or not HAS_TRITON, reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("compiled", [False, True])
def test_the_network_has_the_same_gradients_with_and_without(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16. Layer by layer is itself as far from float32 as the two are from each other."""
    torch.manual_seed(0)
    model = build("resnet-frn").cuda()
    x = torch.randn(16, 3, 32, 32, device="cuda")
    found = {}
    for name, on, dtype in (
        ("wide", False, torch.float32),
        ("without", False, torch.float16),
        ("with", True, torch.float16),
    ):
        monkeypatch.setattr(frn_trunk, "enabled", on)
        model.zero_grad()
        run = torch.compile(model, dynamic=False) if compiled and on else model
        run(x.to(dtype)).square().sum().backward()
        found[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
        if on:
            model.zero_grad()
            run(x.to(dtype)).square().sum().backward()
            assert torch.equal(found[name], torch.cat([p.grad.flatten() for p in model.parameters()])), (
                "two runs differ"
            )
    assert off(found["with"], found["wide"]) < 1.5 * off(found["without"], found["wide"]) + 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or not HAS_TRITON, reason="needs a CUDA device and Triton")
def test_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = build("resnet-frn", depth=8).cuda()
    x = torch.randn(4, 3, 16, 16, device="cuda").half()
    found = []
    for on in (False, True):
        monkeypatch.setattr(frn_trunk, "enabled", on)
        params = list(model.parameters())
        grads = torch.autograd.grad(model(x).square().sum(), params, create_graph=True)
        curved = torch.autograd.grad(sum(g.float().square().sum() for g in grads), params, allow_unused=True)
        found.append(torch.cat([g.flatten() for g in curved if g is not None]))
    assert off(found[1], found[0]) < 0.1


def test_a_cpu_goes_layer_by_layer() -> None:
    model = build("resnet-frn", depth=8)
    shapes = [layer.weight.shape for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert not frn_trunk.applies(torch.zeros(2, 3, 32, 32).bfloat16(), shapes, [1, 2, 2])


def test_the_plan_follows_the_network() -> None:
    """Sources and shortcuts of ResNet-8: stem 0; block 1, 2; block 3 (projection), 4, 5; block 6 (projection), 7, 8."""
    pytest.importorskip("triton")
    from atmc.nn.kernels.frn_layers import plan

    model = build("resnet-frn", depth=8)
    parts = [model.stem, *(part for block in model.blocks for part in block.parts())]
    layers = plan((3, 32, 32), [part.conv.weight.shape for part in parts], [1, 2, 2])
    assert [layer.source for layer in layers] == [-1, 0, 1, 2, 2, 4, 5, 5, 7]
    assert [layer.shortcut for layer in layers] == [None, None, 0, None, None, 3, None, None, 6]
    assert [layer.height for layer in layers] == [32, 32, 32, 16, 16, 16, 8, 8, 8]
