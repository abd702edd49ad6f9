"""Normalisers of one example: known functions, gradients, groups, the fused kernels, and impossible requests."""

import importlib.util
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.nn import BatchNormAct, FilterResponseNorm2d, NormAct
from atmc.nn.norm_functions import KINDS, norm_act, norm_act_reference
from atmc.nn.normalisation import groups_for, norm_act_layer

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the fused kernels need a CUDA device")
HAS_TRITON = importlib.util.find_spec("triton") is not None


def randomised(layer: NormAct) -> NormAct:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def test_group_norm_is_torchs() -> None:
    layer = randomised(NormAct(32, "gn", "silu"))
    x = 3 * torch.randn(4, 32, 6, 5) + 1
    torch.testing.assert_close(layer(x), F.silu(F.group_norm(x, 2, layer.gain, layer.bias)))
    relu = NormAct(32, "gn", "relu")
    torch.testing.assert_close(relu(x), F.relu(F.group_norm(x, 2)))


def test_evonorm_is_its_formula() -> None:
    layer = randomised(NormAct(32, "evonorm-s0"))
    x = 2 * torch.randn(3, 32, 4, 4) + 0.5
    spread = x.view(3, 2, -1).var(-1, correction=0).add(1e-5).sqrt().repeat_interleave(16, 1)[:, :, None, None]
    gain, bias, v = (p.view(1, -1, 1, 1) for p in (layer.gain, layer.bias, layer.swish))
    torch.testing.assert_close(layer(x), x * torch.sigmoid(v * x) / spread * gain + bias)


def test_frn_is_the_one_we_had() -> None:
    old, new = FilterResponseNorm2d(8), randomised(NormAct(8, "frn", "tlu"))
    with torch.no_grad():
        for mine, theirs in ((old.gain, new.gain), (old.bias, new.bias), (old.threshold, new.threshold)):
            mine.copy_(theirs)
    x = torch.randn(2, 8, 5, 5)
    torch.testing.assert_close(new(x), old(x))
    both = NormAct(8, "frn", "silu", threshold=True)
    both.load_state_dict(new.state_dict())
    torch.testing.assert_close(both(x), F.silu(old(x)))
    assert NormAct(8, "frn", "silu").threshold is None


@pytest.mark.parametrize("norm", ["gn", "evonorm-s0", "frn"])
def test_examples_do_not_meet_and_batchnorm_ones_do(norm: str) -> None:
    x = torch.randn(4, 16, 4, 4)
    other = torch.cat([x[:1], torch.randn(3, 16, 4, 4)])
    layer = NormAct(16, norm)
    torch.testing.assert_close(layer(x)[0], layer(other)[0])
    coupled = norm_act_layer(16, "bn", "relu")
    assert isinstance(coupled, BatchNormAct)
    assert (coupled(x)[0] - coupled(other)[0]).abs().max() > 1e-2


@pytest.mark.parametrize("norm", ["gn", "evonorm-s0", "frn", "bn"])
def test_sums_and_biases_inside_are_those_outside(norm: str) -> None:
    layer = norm_act_layer(16, norm, "silu")
    x, h, res, shift = torch.randn(2, 16, 3, 3), torch.randn(2, 16, 3, 3), torch.randn(2, 16, 3, 3), torch.randn(16)
    y, s = layer.add(x, h)
    torch.testing.assert_close(s, x + h)
    torch.testing.assert_close(y, layer(x + h))
    torch.testing.assert_close(layer(x, shift), layer(x + shift.view(1, -1, 1, 1)))
    y, s = layer.add(x, None)
    assert s is x
    torch.testing.assert_close(y, layer(x))
    if norm != "evonorm-s0":  # which activates before the sum
        plain = norm_act_layer(16, norm, "identity")
        plain.load_state_dict(layer.state_dict())
        torch.testing.assert_close(layer(x, None, res), F.silu(plain(x) + res))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_reference(kind: str) -> None:
    torch.manual_seed(0)
    double = {"dtype": torch.float64, "requires_grad": True}
    x, h, res = (torch.randn(2, 6, 2, 3, **double) for _ in range(3))
    gain, bias, extra, pre = (torch.randn(6, **double) for _ in range(4))
    extra = None if kind == "gn" else extra

    def call(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        x, h, res, pre, gain, bias, extra = tensors
        return norm_act_reference(x, gain, bias, extra, kind, "silu", 2, 1e-5, pre, h, res)

    assert torch.autograd.gradcheck(call, (x, h, res, pre, gain, bias, extra))


def test_precision_and_layout_follow_the_input() -> None:
    layer = NormAct(16)
    x = torch.randn(2, 16, 4, 4).bfloat16().to(memory_format=torch.channels_last)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert (y - layer(x.float())).abs().max() < 0.02
    # Statistics in float32: a mean that swallows bf16's digits does not swallow the spread.
    far = (torch.randn(1, 16, 8, 8) + 100).bfloat16()
    torch.testing.assert_close(layer(far).float(), layer(far.float()), atol=0.02, rtol=0.02)


def test_groups() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [groups_for(c) for c in (16, 64, 160, 640)] == [1, 4, 10, 40]
    for channels, groups, size in (
        (24, 2, 12),
        (20, 1, 20),
        (40, 2, 20),
        (17, 1, 17),
        (50, 5, 10),
        (3, 1, 3),
        (8, 1, 8),
    ):
        with pytest.warns(UserWarning, match=f"{channels} channels .* groups of {size} are used"):
            assert groups_for(channels) == groups


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("layer",), "norm must be one of gn, evonorm-s0, frn, bn, not 'layer'"),
        (("gn", "selu"), "activation must be one of silu, relu, tlu, identity, not 'selu'"),
        (("gn", "tlu"), "belongs to norm 'frn' alone"),
        (("gn", "silu", True), "belongs to norm 'frn'"),
        (("evonorm-s0", "relu"), "contains its own activation"),
        (("bn",), "use norm_act_layer"),
    ],
)
def test_bad_requests(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NormAct(16, *arguments)


# -- the kernels ------------------------------------------------------------------------------------------------------

CASES = [  # act, shape, groups, what there is beside x
    ("silu", (2, 32, 8, 8), 2, ""),
    ("relu", (3, 24, 5, 7), 2, "h"),
    ("silu", (2, 20, 3, 3), 1, "h pre_bias"),
    ("silu", (2, 48, 4, 4), 3, "res pre_bias threshold"),
    ("identity", (2, 8, 5, 5), 1, "res threshold"),
]


def check_kernels(device: str, dtype: torch.dtype, limit: float, cases: list = CASES) -> None:
    """Outputs and all gradients against float64, and two runs against each other."""
    import atmc.nn.kernels.norm_act_op  # noqa: F401

    for kind in KINDS:
        for act, shape, groups, parts in cases:
            torch.manual_seed(0)
            c = shape[1]
            given = {"x": 2 * torch.randn(shape) + 0.7, "gain": 1 + 0.3 * torch.randn(c), "bias": torch.randn(c)}
            given |= {"h": torch.randn(shape), "res": torch.randn(shape), "pre_bias": torch.randn(c)}
            # Multiples of 1/16: bfloat16 holds x + pre_bias + h exactly, so no rounding turns the sign at a ReLU.
            given |= {k: (16 * given[k].clamp(-5, 5)).round() / 16 for k in ("x", "h", "pre_bias")}
            given = {k: v for k, v in given.items() if k in ("x", "gain", "bias") or k in parts.split()}
            if kind == "evonorm" or (kind == "frn" and "threshold" in parts.split()):
                given["extra"] = 0.5 * torch.randn(c)
            given = {k: v.to(dtype) if v.ndim == 4 else v for k, v in given.items()}
            seeds = [torch.randn(shape).to(dtype) for _ in range(2)]
            want = _results(norm_act_reference, given, seeds, (kind, act, groups), lambda t: t.double())
            placed = [_results(_fused, given, seeds, (kind, act, groups), lambda t: _on(t, device)) for _ in range(2)]
            for name, got, again, wanted in zip(*[iter(placed[0])], *placed, want, strict=True):
                assert torch.equal(got, again), "two runs differ"
                error = (got.double().cpu() - wanted).norm() / wanted.norm()
                assert error < limit, (kind, act, shape, parts, name.shape, float(error))


def _on(t: Tensor, device: str) -> Tensor:
    return t.to(device, memory_format=torch.channels_last) if t.ndim == 4 else t.to(device)


def _fused(kind: str, act: str, groups: int, **given: Tensor) -> tuple[Tensor, Tensor]:
    names = ("x", "h", "res", "pre_bias", "gain", "bias", "extra")
    codes = KINDS.index(kind), ("identity", "relu", "silu").index(act)
    y, s, _ = torch.ops.atmc.norm_act(*(given.get(name) for name in names), *codes, groups, 1e-5)
    return y, s


def _results(function, given, seeds, kinds, change) -> list[Tensor]:
    kind, act, groups = kinds
    leaves = {name: change(value).detach().requires_grad_() for name, value in given.items()}
    y, s = function(kind=kind, act=act, groups=groups, **leaves)
    outs = [y, s] if "h" in given else [y]
    grads = torch.autograd.grad(outs, list(leaves.values()), [change(seed) for seed in seeds[: len(outs)]])
    return [t.detach() for t in (*outs, *grads)]


def check_looped(device: str) -> None:
    """Groups too large for registers, read in chunks of which the last is not full."""
    from atmc.nn.kernels import norm_act_triton as kernels

    before = kernels.RESIDENT_ELEMENTS, kernels.LOOP_ELEMENTS
    kernels.RESIDENT_ELEMENTS, kernels.LOOP_ELEMENTS = 256, 128
    try:
        check_kernels(device, torch.float32, 1e-4, CASES[:4])
    finally:
        kernels.RESIDENT_ELEMENTS, kernels.LOOP_ELEMENTS = before


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run on this machine's GPU")
@pytest.mark.parametrize("call", ["check_kernels('cpu', __import__('torch').float32, 1e-4)", "check_looped('cpu')"])
def test_the_kernels_in_triton_interpreter(call: str, in_interpreter: Callable[[str], None]) -> None:
    in_interpreter(call)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-3)])
def test_kernels_on_the_gpu(dtype: torch.dtype, limit: float) -> None:
    check_kernels("cuda", dtype, limit, [*CASES, ("silu", (4, 64, 32, 32), 4, "h"), ("relu", (2, 64, 56, 56), 4, "")])


@gpu
@pytest.mark.gpu
def test_looped_kernels_on_the_gpu() -> None:
    check_looped("cuda")


@gpu
@pytest.mark.gpu
def test_second_derivatives_on_the_gpu() -> None:
    layer = randomised(NormAct(16)).cuda()
    x = torch.randn(2, 16, 4, 4, device="cuda", requires_grad=True)

    def curvature(layer: NormAct, x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    want = curvature(layer.double().cpu(), x.detach().double().cpu().requires_grad_())
    torch.testing.assert_close(curvature(layer.float().cuda(), x).double().cpu(), want, rtol=1e-3, atol=1e-3)


@gpu
@pytest.mark.gpu
def test_the_gpu_takes_the_kernel_and_a_graph_records_it() -> None:
    layer = NormAct(32).cuda()
    x = torch.randn(4, 32, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    want = norm_act_reference(x, layer.gain, layer.bias, None, "gn", "silu", 2)[0]
    with torch.no_grad():
        norm_act(x, layer.gain, layer.bias, None, "gn", "silu", 2)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        y.zero_()
        graph.replay()
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
