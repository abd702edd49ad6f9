"""The fused kernel: equal to the plain path, in every layout; on a GPU also capturable, free of host waits, one launch.

Without a GPU the kernel runs in Triton's interpreter, where Triton is installed at all.
"""

import importlib.util

import pytest
import torch
from torch import nn

from atmc.target import Potential, priors

HAS_TRITON = importlib.util.find_spec("triton") is not None
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Net(nn.Module):
    """Every kind of density and every layout the table has to deal with."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int, size: float = 1.0) -> torch.Tensor:
            return torch.randn(shape, generator=generator) * size

        self.direction = nn.Parameter(draw(7, 5, 3, 3, size=0.2).to(memory_format=torch.channels_last))
        self.direction_long = nn.Parameter(draw(4, 1300, size=0.03))
        self.direction_one = nn.Parameter(draw(6, 8, 1, 1, size=0.4).to(memory_format=torch.channels_last))
        self.group = nn.Parameter(draw(6, 11))
        self.scale = nn.Parameter(draw(700))
        self.bias = nn.Parameter(draw(33))
        self.heavy = nn.Parameter(draw(5, 300))
        self.sparse = nn.Parameter(draw(1025, size=10.0))
        self.transposed = nn.Parameter(draw(9, 8).t())
        self.gaps = nn.Parameter(draw(9, 8)[:, ::2])
        self.loose = nn.Parameter(draw(3))
        self.single = nn.Parameter(draw())
        with torch.no_grad():
            self.group[2] = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, self.direction).mean((2, 3)) * self.single


RULE = priors.PriorRule(
    [
        priors.on(priors.Direction(), name="direction*"),
        priors.on(priors.GroupLaplace(2.0), name="group"),
        priors.on(priors.GroupLaplace(5.0), name="scale"),
        priors.on(priors.StudentT(3.0, 0.5, loc=0.2), name="heavy"),
        priors.on(priors.Horseshoe(0.3), name="sparse"),
        priors.on(priors.Laplace(0.7, loc=0.1), name="transposed"),
        priors.on(priors.Flat(), name="loose"),
        priors.on(priors.Normal(0.5)),
    ],
    improper_ok=True,
)


def check_against_float64(device: str) -> None:
    """Value, fresh gradients and added gradients of the fused path against plain autograd in float64."""
    net = Net().to(device)
    given = RULE.assign(net)
    xs = list(net.parameters())
    assert given._fused.takes(xs)
    total = torch.stack([given[name].log_prob(p.double()) for name, p in net.named_parameters()]).sum()
    expected = [g.double() for g in torch.autograd.grad(-total, xs)]

    value = given.log_prob(xs)
    torch.testing.assert_close(value.detach().double(), total.detach(), rtol=1e-5, atol=0.0)
    fresh = torch.autograd.grad(-2.0 * value, xs)
    for name, x, got, want in zip(given.names, xs, fresh, expected, strict=True):
        torch.testing.assert_close(got.double(), 2.0 * want, rtol=2e-5, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
        if name != "gaps":
            assert got.stride() == x.stride()
    # Gradients laid out as their parameters are, and (left to the plain path where they are not) contiguous ones.
    for grads in ([torch.ones_like(x) for x in xs], [torch.ones(x.shape, device=device) for x in xs]):
        log_prior = given.add_grad_and_log_prob_(xs, grads, alpha=0.5)
        torch.testing.assert_close(log_prior.double(), total.detach(), rtol=1e-5, atol=0.0)
        for got, want in zip(grads, expected, strict=True):
            torch.testing.assert_close(got.double(), 1.0 + 0.5 * want, rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself runs on this machine's GPU")
def test_the_kernel_in_triton_interpreter(in_interpreter):
    in_interpreter("check_against_float64('cpu')")


def test_the_plain_path_is_taken_on_a_cpu():
    net = Net()
    assert not RULE.assign(net)._fused.takes(list(net.parameters()))


@gpu
@pytest.mark.gpu
def test_fused_priors_on_the_gpu():
    check_against_float64("cuda")


@gpu
@pytest.mark.gpu
def test_one_launch_and_no_host_wait():
    net = nn.ModuleList([Net() for _ in range(10)]).cuda()
    rule = RULE.override(priors.Normal(1.0), name="*.gaps").override(priors.Normal(1.0), name="*.loose")
    xs = [p.detach().clone() for p in net.parameters()]
    given = rule.assign(net)
    grads = [torch.zeros_like(x) for x in xs]
    given.add_grad_and_log_prob_(xs, grads)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            given.add_grad_(xs, grads)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    kernels = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, kernels


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("grads_in_graph", [False, True])
def test_a_captured_step_follows_the_parameters(grads_in_graph):
    """Both ways to a gradient inside one graph, replayed after the parameters moved, against the eager result."""
    net = Net().cuda()
    potential = Potential(net, 64, RULE)
    x = torch.randn(8, 5, 6, 6, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(7, (8,), device="cuda")

    def step() -> None:
        potential(x, y).backward()

    def two_step() -> None:
        # Parameters that the loss does not reach start from a gradient of zero.
        for p in net.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        (potential.data_weight * potential.nll_mean(x, y)).backward()
        potential.add_prior_grad_()

    # One stream for all that is recorded: autograd binds a parameter's accumulation to the stream that was current when
    # its node was made, for as long as any graph holds that node. So nothing made outside may outlive its line.
    side = torch.cuda.Stream()
    for way in (step, two_step):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                way()
        torch.cuda.current_stream().wait_stream(side)
        if grads_in_graph:
            for p in net.parameters():
                p.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):  # the stream that autograd has seen in the warm-up
            way()
        # Other gradient buffers come and go: the tables the graph points at must stay.
        others = [[torch.zeros_like(p) for p in net.parameters()] for _ in range(6)]
        for grads in others:
            potential.prior_set.add_grad_(potential.parameters(), grads)
        for _ in range(2):
            with torch.no_grad():
                for p in net.parameters():
                    p.mul_(1.1)
                    p.grad.zero_()
            graph.replay()
            captured = [p.grad.clone() for p in net.parameters()]
            log_prior = potential.log_prior.clone()
            expected = torch.autograd.grad(Potential(net, 64, RULE)(x, y), list(net.parameters()))
            torch.testing.assert_close(captured, list(expected), rtol=1e-3, atol=1e-3)
            with torch.no_grad():
                fresh = RULE.assign(net).log_prob(list(net.parameters()))
            torch.testing.assert_close(log_prior, fresh, rtol=1e-5, atol=1e-2)
        for p in net.parameters():
            p.grad = None


@gpu
@pytest.mark.gpu
def test_validation_does_not_wait_after_the_first_call():
    net = Net().cuda()
    potential = Potential(net, 64, RULE)
    x, y = torch.randn(8, 5, 6, 6, device="cuda"), torch.randint(7, (8,), device="cuda")
    potential(x, y).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        potential(x, y).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(ValueError, match="out of range"):
        Potential(net, 64, RULE)(x, y + 7)
