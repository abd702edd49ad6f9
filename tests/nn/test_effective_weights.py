"""All effective weights at once: the numbers of layer by layer, and on a GPU in one launch that can be captured."""

import pytest
import torch
from torch import Tensor

from atmc.nn import WNConv2d, WNLinear, effective_weights, resnetpp, weight_layers
from atmc.nn.weightnorm import CastConv2d, WeightLayer

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the fused kernels need a CUDA device")


def assorted(device: str = "cpu") -> list[WeightLayer]:
    """Rows shorter and longer than a block, 1×1, grouped and oblong kernels, linear, without a scale, a fixed scale."""
    torch.manual_seed(0)
    layers: list[WeightLayer] = [
        WNConv2d(3, 8, 3),
        WNConv2d(200, 24, 3),
        WNConv2d(64, 10, 1),
        WNConv2d(8, 6, (3, 5), groups=2, learn_scale=False),
        CastConv2d(5, 7, 3, bias=False),
        WNLinear(1000, 10),
        WNLinear(1, 3),
        WNConv2d(1, 2, 1),
    ]
    for layer in layers:
        layer.to(device)
        direction, scale = layer.parts()
        with torch.no_grad():
            direction.mul_(torch.rand((), device=device) + 0.5)
            if scale is not None:
                scale.uniform_(-2, 2)
    return layers


def leaves(layers: list[WeightLayer]) -> list[Tensor]:
    return [part for layer in layers for part in layer.parts() if part is not None and part.requires_grad]


def test_equals_layer_by_layer() -> None:
    layers = assorted()
    for layer, weight in zip(layers, effective_weights(layers), strict=True):
        torch.testing.assert_close(weight, layer.effective())
    assert all(weight.dtype == torch.bfloat16 for weight in effective_weights(layers, torch.bfloat16))
    assert effective_weights([]) == []


def test_weight_layers_finds_them_all() -> None:
    model = resnetpp(20, 4)
    assert len(weight_layers(model)) == 1 + 18 + 2 + 1


def test_works_under_vmap_and_functional_call() -> None:
    layer = WNLinear(4, 3)
    stack = {name: torch.stack([value, 2 * value]) for name, value in layer.named_parameters()}
    x = torch.randn(5, 4)

    def call(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,))

    out = torch.func.vmap(call)(stack)
    torch.testing.assert_close(out[0], layer(x))
    torch.testing.assert_close(out[1], 2 * layer(x))  # doubled scale; a doubled direction changes nothing


def references(layers: list[WeightLayer], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and gradients in float64, by the plain operations."""
    copies = [[None if p is None else p.detach().double().requires_grad_() for p in layer.parts()] for layer in layers]
    from atmc.nn.weightnorm import effective_weight

    weights = [effective_weight(direction, scale) for direction, scale in copies]
    wanted = [
        copy
        for layer, pair in zip(layers, copies, strict=True)
        for copy, part in zip(pair, layer.parts(), strict=True)
        if part is not None and part.requires_grad
    ]
    return weights, list(torch.autograd.grad(weights, wanted, [g.double() for g in grads]))


@gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_agrees_with_plain_in_float64(dtype: torch.dtype) -> None:
    layers = assorted("cuda")
    weights = effective_weights(layers, dtype)
    assert all(weight.grad_fn is not None and "FusedWeights" in weight.grad_fn.name() for weight in weights)
    grads = [torch.randn(weight.shape, device="cuda").to(dtype) for weight in weights]
    expected, expected_grads = references(layers, grads)
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
    for weight, reference in zip(weights, expected, strict=True):
        assert weight.dtype == dtype
        assert weight.ndim == 2 or weight.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(weight.double(), reference, rtol=tolerance, atol=tolerance * 1e-2)
    for grad, reference in zip(torch.autograd.grad(weights, leaves(layers), grads), expected_grads, strict=True):
        assert grad.is_contiguous()
        torch.testing.assert_close(grad.double(), reference, rtol=1e-5, atol=1e-5)


@gpu
@needs_gpu
def test_fused_under_graph_capture_follows_the_parameters() -> None:
    layers = assorted("cuda")
    parameters = leaves(layers)
    grads = [torch.randn_like(weight, dtype=torch.bfloat16) for weight in effective_weights(layers)]

    def step() -> tuple[list[Tensor], list[Tensor]]:
        weights = effective_weights(layers, torch.bfloat16)
        return weights, list(torch.autograd.grad(weights, parameters, grads))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weights, results = step()
    for _ in range(2):
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(0.1 * torch.randn_like(parameter))
        step()  # An eager step in between must not disturb the graph's tables.
        graph.replay()
        expected, expected_grads = references(layers, grads)
        for weight, reference in zip(weights, expected, strict=True):
            torch.testing.assert_close(weight.double(), reference, rtol=4e-3, atol=4e-5)
        for grad, reference in zip(results, expected_grads, strict=True):
            torch.testing.assert_close(grad.double(), reference, rtol=1e-5, atol=1e-5)


@gpu
@needs_gpu
def test_fused_does_not_synchronise_and_steals_no_copies() -> None:
    layers = assorted("cuda")
    sum(weight.float().square().sum() for weight in effective_weights(layers, torch.bfloat16)).backward()
    for parameter in leaves(layers):
        parameter.grad = None
    torch.cuda.set_sync_debug_mode("error")
    try:
        sum(weight.float().square().sum() for weight in effective_weights(layers, torch.bfloat16)).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    storages = {parameter.grad.untyped_storage().data_ptr() for parameter in leaves(layers)}
    assert len(storages) == 2  # one for the directions, one for the scales: the gradients were not copied


@gpu
@needs_gpu
def test_fused_can_be_differentiated_twice() -> None:
    layers = assorted("cuda")
    parameters = leaves(layers)

    def curvature(device_layers: list[WeightLayer], dtype: torch.dtype) -> list[Tensor]:
        weights = effective_weights(device_layers, dtype)
        loss = sum(weight.pow(3).sum() for weight in weights)
        first = torch.autograd.grad(loss, leaves(device_layers), create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves(device_layers)))

    on_gpu = curvature(layers, torch.float32)
    twins = assorted("cpu")
    with torch.no_grad():
        for twin, original in zip(leaves(twins), parameters, strict=True):
            twin.copy_(original.cpu())
        for twin, original in zip(twins, layers, strict=True):
            twin.load_state_dict(original.state_dict())
    for ours, reference in zip(on_gpu, curvature(twins, torch.float32), strict=True):
        torch.testing.assert_close(ours.cpu(), reference, rtol=1e-3, atol=1e-3)


@gpu
@needs_gpu
def test_fused_is_quick() -> None:
    """58 layers, 3.4 million parameters, forward and backward in one graph: under 60 µs on an H200."""
    model = resnetpp(56, 32).cuda()
    layers = weight_layers(model)
    grads = [torch.randn_like(weight, dtype=torch.bfloat16) for weight in effective_weights(layers)]
    grads = [grad.to(memory_format=torch.channels_last) if grad.ndim == 4 else grad for grad in grads]
    parameters = leaves(layers)

    def step() -> None:
        torch.autograd.grad(effective_weights(layers, torch.bfloat16), parameters, grads)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(10):
        graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(100):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    microseconds = start.elapsed_time(end) * 10
    print(f"\n{len(layers)} layers, forward and backward: {microseconds:.1f} µs")
    assert microseconds < 60


@gpu
@needs_gpu
def test_a_new_network_cannot_first_appear_in_a_capture() -> None:
    layers: list[WeightLayer] = [WNLinear(7, 5).cuda(), WNLinear(11, 3).cuda()]
    with pytest.raises(RuntimeError, match="before capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        effective_weights(layers)
