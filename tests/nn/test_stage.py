"""The stage kernels against plain PyTorch: values, every gradient, odd batches, and inside a network."""

import pytest
import torch

from atmc.nn import build
from atmc.nn.kernels import stage

gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
SHAPES = [(32, 32), (64, 16), (128, 8)]


def problem(channels, size, batch=6, blocks=3):
    """A stream, weights of about unit gain, and biases; float32 copies of what bf16 can hold."""
    gen = torch.Generator().manual_seed(channels + batch)
    x = torch.randn(batch, channels, size, size, generator=gen)
    flat = torch.randn(2 * blocks, channels, 3, 3, channels, generator=gen) / (9 * channels) ** 0.5
    biases = [0.1 * torch.randn(channels, generator=gen) for _ in range(blocks)]
    flat = flat.cuda().bfloat16()
    x = x.cuda().bfloat16().contiguous(memory_format=torch.channels_last)
    return x, flat.permute(0, 1, 4, 2, 3), [b.cuda() for b in biases]


def gradients(function, x, weights, biases, dtype, entry=None):
    x = x.to(dtype).requires_grad_()
    entry = [] if entry is None else [entry.to(dtype).requires_grad_()]
    weights = [w.to(dtype).requires_grad_() for w in weights]
    biases = [b.to(torch.float32 if dtype == torch.bfloat16 else dtype).requires_grad_() for b in biases]
    y = function(x, weights, biases, *entry)
    seed = torch.linspace(-1, 1, y.numel(), device="cuda").view(y.shape).to(dtype)
    return [y, *torch.autograd.grad(y, [x, *entry, *weights, *biases], seed)]


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("entered", [False, True])
@pytest.mark.parametrize("batch", [1, 6, 133])
@pytest.mark.parametrize(("channels", "size"), SHAPES)
def test_values_and_gradients(channels, size, batch, entered):
    """No further from the exact result than PyTorch's own bf16 operations are (the stream is kept in float32 here)."""
    x, weights, biases = problem(channels, size, batch)
    entry = x.flip(0).roll(3, 2) if entered else None
    biases = biases[: len(biases) - entered]
    weights = weights[: 2 * len(biases) + entered]
    exact = gradients(stage.plain, x, weights, biases, torch.float64, entry)
    ours = gradients(stage.run, x, weights, biases, torch.bfloat16, entry)
    theirs = gradients(stage.plain, x, weights, biases, torch.bfloat16, entry)
    for mine, other, truth in zip(ours, theirs, exact, strict=True):
        assert mine.shape == truth.shape
        assert error(mine, truth) < 1.15 * error(other, truth) + 1e-3


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "size"), SHAPES)
def test_runs_agree_bit_for_bit(channels, size):
    x, weights, biases = problem(channels, size, 128)
    first = gradients(stage.run, x, weights, biases, torch.bfloat16)
    again = gradients(stage.run, x, weights, biases, torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@gpu
@pytest.mark.gpu
def test_each_image_is_on_its_own():
    """What one image holds does not reach another, and the padding is zero: a shifted image gives a shifted result."""
    x, weights, biases = problem(32, 32, 3, 1)
    with torch.no_grad():
        whole = stage.run(x, weights, biases)
        alone = stage.run(x[1:2].contiguous(memory_format=torch.channels_last), weights, biases)
        assert torch.equal(whole[1:2], alone)
        inner = torch.zeros_like(x)
        inner[..., 8:20, 8:20] = x[..., 8:20, 8:20]
        moved = stage.run(inner.roll((3, -2), (2, 3)), weights, biases)
        still = stage.run(inner, weights, biases).roll((3, -2), (2, 3))
    torch.testing.assert_close(moved[..., 6:26, 6:26], still[..., 6:26, 6:26])


@gpu
@pytest.mark.gpu
def test_scattered_weights():
    """Weights that do not lie side by side are gathered."""
    x, weights, biases = problem(64, 16)
    apart = [w.clone(memory_format=torch.channels_last) for w in weights]
    assert torch.equal(stage.run(x, apart, biases), stage.run(x, weights, biases))


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("grad", [False, True])
def test_a_network_uses_them(grad):
    """Logits and gradients of a whole network, with the kernels and without."""
    torch.manual_seed(0)
    model = build("resnetpp", depth=20, width=32).cuda()
    x = torch.randn(16, 3, 32, 32, device="cuda").bfloat16()
    calls = []
    run = stage.run
    results = []
    for fuse in (True, False):
        model.fuse = fuse
        stage.run = lambda *args, fuse=fuse: (calls.append((fuse, len(args) == 4)), run(*args))[1]
        try:
            with torch.set_grad_enabled(grad):
                logits = model(x)
        finally:
            stage.run = run
        grads = torch.autograd.grad(logits.square().mean(), list(model.parameters())) if grad else []
        results.append([logits, *grads])
    assert calls == [(True, False), (True, True), (True, True)]  # the later stages are entered in the middle of a block
    for mine, other in zip(*results, strict=True):
        assert error(mine.detach(), other.detach().double()) < 0.08
    assert error(results[0][0].detach(), results[1][0].detach().double()) < 0.02


@gpu
@pytest.mark.gpu
def test_gradients_can_be_differentiated():
    """A Hessian-vector product goes through PyTorch's own operations; so do the gradients it is made of."""
    x, weights, biases = problem(32, 32, 2, 1)
    weights = [w.detach().requires_grad_() for w in weights]

    def product(function):
        grads = torch.autograd.grad(function(x, weights, biases).float().square().mean(), weights, create_graph=True)
        return torch.autograd.grad(sum(g.float().square().sum() for g in grads), weights)

    for mine, other in zip(product(stage.run), product(stage.plain), strict=True):
        assert error(mine, other.double()) < 0.05


@gpu
@pytest.mark.gpu
def test_a_kernel_that_does_not_compile_is_no_disaster(monkeypatch):
    monkeypatch.setattr(stage, "_kernels", lambda *_: (_ for _ in ()).throw(RuntimeError("no such compiler")))
    stage._supported.cache_clear()
    x, weights, biases = problem(32, 32, 1, 1)
    with pytest.warns(UserWarning, match="without its own kernels.*no such compiler"):
        assert not stage.applies((x.dtype, x.device), 32, list(weights), biases)
    stage._supported.cache_clear()


@gpu
@pytest.mark.gpu
def test_in_a_captured_graph():
    x, weights, biases = problem(32, 32, 8, 2)
    weights = [w.detach().requires_grad_() for w in weights]

    def step():
        return torch.autograd.grad(stage.run(x, weights, biases).square().sum(), weights)

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


@pytest.mark.parametrize("options", [{}, {"shortcut": "pool-projection"}, {"shortcut": "pool-pad"}, {"bias": "after"}])
def test_a_network_cut_into_stages_is_the_same_network(options, monkeypatch):
    """The cutting alone, on any machine: plain operations in the kernels' place."""
    torch.manual_seed(0)
    model = build("resnetpp", depth=20, width=4, **options).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    sizes = []

    def applies(where, size, weights, biases):
        sizes.append(size)
        return all(w.shape[0] == w.shape[1] for w in weights) and None not in biases

    calls = []
    expected = model(x)
    monkeypatch.setattr(stage, "applies", applies)
    monkeypatch.setattr(stage, "run", lambda *args: (calls.append(len(args[1])), stage.plain(*args))[1])
    torch.testing.assert_close(model(x), expected)
    whole = options in ({}, {"shortcut": "pool-projection"})
    assert calls == ([6, 5, 5] if whole else [])
    assert not whole or sizes == [16] * 3 + [8] * 3 + [4] * 3


@pytest.mark.parametrize(
    ("images", "fits", "expected"),
    [
        ((2, 3, 16, 16), {8, 4}, [8, 4]),  # the first stage is plain blocks: they hand on what the second starts from
        ((2, 3, 16, 16), {16, 4}, [16, 4]),
        ((2, 3, 17, 17), {17, 9, 5}, [17, 9, 5]),  # a padded convolution of stride 2 rounds up
        ((2, 3, 17, 17), {8, 4}, []),
        ((2, 3, 12, 16), {16, 8, 4}, []),
        ((0, 3, 16, 16), {16, 8, 4}, []),
    ],
    ids=str,
)
def test_stages_that_apply_to_a_part_only(images, fits, expected, monkeypatch):
    """Some stages by kernels and others by blocks, odd sizes, images that are not square, none at all."""
    torch.manual_seed(0)
    model = build("resnetpp", depth=20, width=4).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    x = torch.randn(images, dtype=torch.float64)
    calls = []
    plain = model(x)
    monkeypatch.setattr(stage, "applies", lambda where, size, weights, biases: size in fits)
    monkeypatch.setattr(stage, "run", lambda *args: (calls.append(args[0].shape[-1]), stage.plain(*args))[1])
    torch.testing.assert_close(model(x), plain)
    assert calls == expected


def test_elsewhere_they_do_not_apply():
    """On a CPU, in float32, at another size or without biases the plain operations serve."""
    weights = [torch.empty(32, 32, 3, 3, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)] * 2
    bias = [torch.empty(32)]
    assert not stage.applies((torch.bfloat16, torch.device("cpu")), 32, weights, bias)
    cuda = torch.device("cuda", 0)
    assert not stage.applies((torch.float32, cuda), 32, weights, bias)
    assert not stage.applies((torch.bfloat16, cuda), 31, weights, bias)
    assert not stage.applies((torch.bfloat16, cuda), 32, weights, [None])


@pytest.mark.parametrize("shape", stage.SHAPES.values(), ids=str)
def test_shared_memory_fits(shape):
    assert max(shape.shared_bytes, shape.weight_shared_bytes) <= 227 * 1024


@gpu
@pytest.mark.gpu
def test_a_small_head_has_the_right_gradients():
    """The classifier's written-out weight gradient, and the one of it."""
    from atmc.nn import weightnorm

    x = torch.randn(32, 24, device="cuda", dtype=torch.float64, requires_grad=True)
    weight = torch.randn(10, 24, device="cuda", dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(weightnorm.SmallLinear.apply(x, weight), torch.nn.functional.linear(x, weight))
    assert torch.autograd.gradcheck(weightnorm.SmallLinear.apply, (x[:4], weight))
    assert torch.autograd.gradgradcheck(weightnorm.SmallLinear.apply, (x[:2], weight[:3]))


def test_a_small_head_under_autocast():
    """The product is in bf16 there, its factors are not."""
    from atmc.nn import weightnorm

    x, weight = torch.randn(4, 6, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    grads = []
    for function in (weightnorm.SmallLinear.apply, torch.nn.functional.linear):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, weight)
        grads.append(torch.autograd.grad(y.float().square().sum(), (x, weight)))
    for mine, other in zip(*grads, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02)
