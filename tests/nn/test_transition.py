"""The transition kernels against plain PyTorch: values, every gradient, odd batches, and inside a network."""

import pytest
import torch

from atmc.nn import build
from atmc.nn.kernels import stage, transition
from atmc.nn.resnetpp_block import BlockKind

gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
SHAPES = [(64, 16), (128, 8)]


def problem(channels, size, batch=6, device="cuda", dtype=torch.bfloat16):
    """An activated stream, weights of about unit gain, and biases."""
    gen = torch.Generator().manual_seed(channels + batch)
    half = channels // 2
    a = torch.randn(batch, half, 2 * size, 2 * size, generator=gen)
    weight = torch.randn(channels, half, 3, 3, generator=gen) / (9 * half) ** 0.5
    project = torch.randn(channels, half, 1, 1, generator=gen) / half**0.5
    a, weight, project = (
        t.to(device, dtype).contiguous(memory_format=torch.channels_last) for t in (a, weight, project)
    )
    bias, project_bias = (0.1 * torch.randn(channels, generator=gen).to(device) for _ in range(2))
    return a, weight, bias, project, project_bias


def gradients(function, inputs, dtype):
    inputs = [t.to(t.dtype if dtype == torch.bfloat16 else dtype).detach().requires_grad_() for t in inputs]
    outputs = function(*inputs)
    ramps = [torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape) for y in outputs]
    seeds = [seed.bfloat16().to(dtype) for seed in (ramps[0], ramps[1].square() - 0.3)]
    return [*outputs, *torch.autograd.grad(outputs, inputs, seeds)]


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 6, 133])
@pytest.mark.parametrize(("channels", "size"), SHAPES)
def test_values_and_gradients(channels, size, batch):
    """No further from the exact result than PyTorch's own bf16 operations are."""
    inputs = problem(channels, size, batch)
    exact = gradients(transition.plain, inputs, torch.float64)
    ours = gradients(transition.run, inputs, torch.bfloat16)
    theirs = gradients(transition.plain, inputs, torch.bfloat16)
    for mine, other, truth in zip(ours, theirs, exact, strict=True):
        assert mine.shape == truth.shape
        assert error(mine, truth) < 1.15 * error(other, truth) + 1e-3


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "size"), SHAPES)
def test_runs_agree_bit_for_bit(channels, size):
    inputs = problem(channels, size, 128)
    first = gradients(transition.run, inputs, torch.bfloat16)
    for _ in range(5):
        again = gradients(transition.run, inputs, torch.bfloat16)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "size"), SHAPES)
def test_each_image_is_on_its_own(channels, size):
    """What one image holds does not reach another; nothing saved is nothing else computed."""
    a, *rest = problem(channels, size, 3)
    with torch.no_grad():
        whole = transition.run(a, *rest)
        alone = transition.run(a[1:2], *rest)
    assert all(torch.equal(y[1:2], one) for y, one in zip(whole, alone, strict=True))
    recorded = transition.run(a.requires_grad_(), *rest)
    assert all(torch.equal(y, one) for y, one in zip(whole, recorded, strict=True))


@gpu
@pytest.mark.gpu
def test_only_one_output_is_used():
    a, *rest = problem(64, 16)
    a.requires_grad_()
    (mine,) = torch.autograd.grad(transition.run(a, *rest)[0].float().square().sum(), a)
    (other,) = torch.autograd.grad(transition.plain(a, *rest)[0].float().square().sum(), a)
    assert error(mine, other.double()) < 0.02


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("grad", [False, True])
def test_a_network_uses_them(grad, monkeypatch):
    """Logits and gradients of a whole network, with the kernels and without."""
    torch.manual_seed(0)
    model = build("resnetpp", depth=20, width=32).cuda()
    x = torch.randn(16, 3, 32, 32, device="cuda").bfloat16()
    calls, run, results = [], transition.run, []
    monkeypatch.setattr(transition, "run", lambda *args: (calls.append(args[1].shape[0]), run(*args))[1])
    for fuse in (True, False):
        model.fuse = fuse
        with torch.set_grad_enabled(grad):
            logits = model(x)
        grads = torch.autograd.grad(logits.square().mean(), list(model.parameters())) if grad else []
        results.append([logits, *grads])
    assert calls == [64, 128]
    for mine, other in zip(*results, strict=True):
        assert error(mine.detach(), other.detach().double()) < 0.08
    assert error(results[0][0].detach(), results[1][0].detach().double()) < 0.02


@gpu
@pytest.mark.gpu
def test_gradients_can_be_differentiated():
    """A Hessian-vector product goes through PyTorch's own operations; so do the gradients it is made of."""
    inputs = [t.requires_grad_() for t in problem(64, 16, 2)]

    def product(function):
        loss = sum(y.float().square().mean() for y in function(*inputs))
        grads = torch.autograd.grad(loss, inputs, create_graph=True)
        return torch.autograd.grad(sum(g.float().square().sum() for g in grads), inputs)

    for mine, other in zip(product(transition.run), product(transition.plain), strict=True):
        assert error(mine, other.double()) < 0.05


@gpu
@pytest.mark.gpu
def test_in_a_captured_graph():
    inputs = [t.requires_grad_() for t in problem(128, 8, 8)]

    def step():
        return torch.autograd.grad(sum(y.float().square().sum() for y in transition.run(*inputs)), inputs)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager = [g.clone() for g in step()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))


def test_the_gradients_for_a_second_time():
    """What backward returns when it is itself recorded: the plain gradients, None where none is wanted."""
    inputs = list(problem(16, 4, 2, "cpu", torch.float64))
    for t in inputs[:2]:
        t.requires_grad_()
    outputs = transition.plain(*inputs)
    seeds = tuple(torch.randn_like(y) for y in outputs)
    expected = torch.autograd.grad(outputs, inputs[:2], seeds)
    found = transition._plain_backward(inputs, seeds)
    assert found[2:] == (None,) * 4
    for mine, other in zip(found[:2], expected, strict=True):
        assert mine.requires_grad
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("shortcut", ["projection", "pool-projection"])
def test_a_network_asks_for_them_where_they_apply(shortcut, monkeypatch):
    """The cutting alone, on any machine: plain operations in the kernels' place."""
    torch.manual_seed(0)
    model = build("resnetpp", depth=20, width=4, shortcut=shortcut).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    expected = model(x)
    monkeypatch.setattr(stage, "applies", lambda where, size, weights, biases: True)
    monkeypatch.setattr(stage, "run", stage.plain)
    monkeypatch.setattr(stage, "possible", lambda dtype, device: True)
    monkeypatch.setattr(stage, "is_channels_last", lambda weight: True)
    monkeypatch.setattr(transition, "SHAPES", {(8, 8): None, (16, 4): None})
    monkeypatch.setattr(transition, "_supported", lambda shape, device: True)
    calls = []
    monkeypatch.setattr(transition, "run", lambda *args: (calls.append(args[1].shape[0]), transition.plain(*args))[1])
    torch.testing.assert_close(model(x), expected)
    assert calls == ([8, 16] if shortcut == "projection" else [])


def test_elsewhere_they_do_not_apply(monkeypatch):
    """On a CPU, at another stride, size or memory order, or without biases the plain operations serve."""
    inputs = problem(64, 16, 1, "cpu")
    assert not transition.applies(*inputs, transition.KIND)
    monkeypatch.setattr(stage, "possible", lambda dtype, device: True)
    monkeypatch.setattr(transition, "_supported", lambda shape, device: True)
    a, weight, bias, project, project_bias = inputs
    assert transition.applies(*inputs, transition.KIND)
    assert not transition.applies(*inputs, BlockKind(1, shortcut="projection"))
    assert not transition.applies(*inputs, BlockKind(2, shortcut="pool-projection"))
    assert not transition.applies(a[..., :31, :31], *inputs[1:], transition.KIND)
    assert not transition.applies(a[:0], *inputs[1:], transition.KIND)
    assert not transition.applies(a, weight, None, project, project_bias, transition.KIND)
    assert not transition.applies(a, weight, bias, project, project_bias[:1], transition.KIND)
    assert not transition.applies(a, weight.contiguous(), bias, project, project_bias, transition.KIND)
    assert not transition.applies(a, weight.float(), bias, project, project_bias, transition.KIND)


@pytest.mark.parametrize("shape", transition.SHAPES.values(), ids=str)
def test_shared_memory_fits(shape):
    assert max(shape.shared_bytes, shape.weight_shared_bytes) <= 227 * 1024
