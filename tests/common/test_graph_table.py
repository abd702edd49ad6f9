"""A table filled during a capture: it is there at every replay, and the graph does not bring it."""

import copy

import pytest
import torch

import atmc
from atmc import nn as networks
from atmc.common.graph_table import GraphTable
from atmc.target import Potential, priors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def copies_and_kernels(work) -> tuple[list[str], list[str]]:
    """What runs on the device during `work`, by name."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [n for n in names if "memcpy" in n.lower()], [n for n in names if "memcpy" not in n.lower()]


def test_the_table_is_there_and_no_part_of_the_graph():
    device = torch.device("cuda:0")
    values = torch.arange(48).reshape(6, 8) * 2**40
    # PyTorch's streams come from a pool of 32: one of these is what the table would be copied on.
    for stream in [torch.cuda.Stream() for _ in range(33)]:
        table = GraphTable(values.shape, device)
        out = torch.zeros_like(table.words)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            table.fill(values)
            torch.add(table.words, 1, out=out)
        copies, kernels = copies_and_kernels(graph.replay)
        assert copies == []
        assert len(kernels) == 1
        assert torch.equal(out.cpu(), values + 1)


def test_a_captured_step_of_sampler_and_priors_copies_nothing():
    model = networks.build("resnetpp", depth=8, width=16, classes=10).cuda()
    potential = Potential(model, 64, priors.resnetpp())
    sampler = atmc.ATMC(model.parameters(), lr=1e-4, seed=1)
    x, y = torch.randn(8, 3, 32, 32, device="cuda"), torch.randint(10, (8,), device="cuda")

    def step() -> None:
        sampler.zero_grad()
        (potential.nll_mean(x, y) * 64).backward()
        potential.add_prior_grad_()
        sampler.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    copies, kernels = copies_and_kernels(graph.replay)
    assert [name for name in copies if "HtoD" in name] == []
    assert any("step_kernel" in name for name in kernels)
    assert any("prior_kernel" in name for name in kernels)
    copy.deepcopy(potential.prior_set)  # tables on the device do not come along
