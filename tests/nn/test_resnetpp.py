"""ResNet++: signals through great depth, every variant, compilation of one block for all, training without jumps."""

import copy
import itertools

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from atmc.nn import resnet, resnetpp, signals


def natural_images(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Normalised images with the 1/f spectrum of photographs and correlated colours."""
    generator = torch.Generator().manual_seed(seed)
    frequency = torch.fft.fftfreq(size)
    radius = (frequency[:, None] ** 2 + frequency[None] ** 2).sqrt()
    radius[0, 0] = 1 / size
    noise = torch.randn(count, 3, size, size, generator=generator)
    noise = noise + 2 * noise.mean(1, keepdim=True)
    images = torch.fft.ifft2(torch.fft.fft2(noise) / radius).real
    return (images - images.mean()) / images.std()


@pytest.mark.parametrize(
    ("depth", "width", "size", "images"),
    [(110, 16, 32, "natural"), (110, 16, 32, "white"), (50, 64, 64, "natural"), (50, 64, 64, "white")],
)
def test_signals_pass_at_initialisation(depth: int, width: int, size: int, images: str) -> None:
    """Mean square within 1.8 and gradient norm within 1.6 of the first block's at every block; mean square near one."""
    torch.manual_seed(1)
    model = resnetpp(depth, width)
    x = natural_images(4, size) if images == "natural" else torch.randn(4, 3, size, size)
    rows = signals(model, x, torch.arange(4))
    blocks = rows[1:]
    assert len(blocks) == (54 if depth == 110 else 16)
    for row in blocks:
        assert 1 / 1.8 < row.mean_square / blocks[0].mean_square < 1.8, row
        assert 1 / 1.6 < row.grad_norm / blocks[0].grad_norm < 1.6, row
        assert 0.5 < row.mean_square < 2.2, row
        assert abs(row.mean) < 0.3, row


def test_selu_after_the_addition_does_not_survive_depth() -> None:
    """Why "pre" is the default: the same measurement on "post" fails by an order of magnitude."""
    torch.manual_seed(1)
    rows = signals(resnetpp(110, 8, order="post"), torch.randn(2, 3, 16, 16), torch.arange(2))
    assert rows[-1].mean_square / rows[1].mean_square > 10
    assert rows[1].grad_norm / rows[-1].grad_norm > 10


def test_every_parameter_learns_in_every_variant() -> None:
    x, y = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    orders, gains = ("pre", "post"), ("scale", "scalar", "fixed")
    biases = ("inner", "before", "after", "scalar", "none")
    shortcuts = ("projection", "pool-projection", "pool-pad")
    for order, gain, bias, shortcut in itertools.product(orders, gains, biases, shortcuts):
        model = resnetpp(8, 2, order=order, gain=gain, bias=bias, shortcut=shortcut)
        F.cross_entropy(model(x), y).backward()
        missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert not missing, (order, gain, bias, shortcut, missing)


def test_filter_response_variant_has_no_undetermined_scales() -> None:
    model = resnetpp(14, 4, norm="frn")
    names = [name for name, _ in model.named_parameters()]
    assert not [name for name in names if "convs" in name and "scale" in name]
    x = torch.randn(2, 3, 8, 8)
    before = model(x)
    for block in model.blocks:
        block.convs[0].scale.mul_(2)  # a buffer here: FRN undoes it
    torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-3)
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("gain", "scale"), [("scale", 0.1), ("scalar", 1.0), ("fixed", 1.0)])
def test_a_branch_starts_small_however_it_is_done(gain: str, scale: float) -> None:
    torch.manual_seed(0)
    model = resnetpp(20, 8, gain=gain)
    assert model.blocks[0].convs[-1].scale.unique().item() == pytest.approx(scale)
    reference = resnetpp(20, 8)
    with torch.no_grad():
        for ours, theirs in zip(model.blocks, reference.blocks, strict=True):
            for conv, other in zip(ours.layers(), theirs.layers(), strict=True):
                conv.direction.copy_(other.direction)
        model.stem.direction.copy_(reference.stem.direction)
        model.head.direction.copy_(reference.head.direction)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model(x), reference(x))


def test_depth_dependent_branch_scale() -> None:
    assert resnetpp(20, 4, branch_scale="depth", gain="fixed").blocks[0].kind.gain == pytest.approx(1 / 3)
    learned = resnetpp(20, 4, branch_scale="depth", gain="scale").blocks[0].convs[-1].scale
    torch.testing.assert_close(learned, torch.full((4,), 1 / 3))


def test_unknown_variant() -> None:
    with pytest.raises(ValueError, match="order must be one of"):
        resnetpp(8, order="during")


@pytest.mark.parametrize("make", [resnetpp, resnet])
def test_one_compiled_block_serves_all(make) -> None:
    """As many compilations as there are shapes (3 stages, 2 transitions, a stem for ResNet++), whatever the depth."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make(20, 2)
    x = torch.randn(2, 3, 8, 8)
    plain = model(x)
    expected = torch.autograd.grad(plain.square().sum(), list(model.parameters()))
    counter = CompileCounterWithBackend("aot_eager")
    model.compile_blocks(backend=counter)
    compiled = model(x)
    torch.testing.assert_close(compiled, plain)
    for ours, theirs in zip(
        torch.autograd.grad(compiled.square().sum(), list(model.parameters())), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == (6 if make is resnetpp else 5)
    torch._dynamo.reset()


def test_copies_are_independent() -> None:
    model = resnetpp(8, 4)
    x = torch.randn(2, 3, 8, 8)
    other = copy.deepcopy(model)
    before = model(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    torch.testing.assert_close(model(x), before)
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(model(x), other(x))


@pytest.mark.parametrize("depth", [20, 56])
def test_sgd_with_momentum_does_not_jump(depth: int) -> None:
    """Digits, learning rate 0.2, momentum 0.9: the ten-step loss falls and never doubles on the way."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    x, y = (x - x.mean()) / x.std(), torch.tensor(digits.target)
    model = resnetpp(depth, 4, in_channels=1)
    optimiser = torch.optim.SGD(model.parameters(), 0.2, 0.9)
    losses: list[float] = []
    for _ in range(80):
        index = torch.randint(len(x), (64,))
        loss = F.cross_entropy(model(x[index]), y[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    smooth = [sum(losses[i : i + 10]) / 10 for i in range(len(losses) - 9)]
    lowest = list(itertools.accumulate(smooth, min))
    assert max(now / low for now, low in zip(smooth, lowest, strict=True)) < 2
    assert max(losses) < 3
    assert smooth[-1] < 0.4


def test_stream_is_kept_for_measurement() -> None:
    model: nn.Module = resnetpp(14, 4)
    keep: list[torch.Tensor] = []
    model(torch.randn(1, 3, 16, 16), keep)
    assert [tuple(x.shape[1:]) for x in keep[::2]] == [(4, 16, 16), (4, 16, 16), (8, 8, 8), (16, 4, 4)]
