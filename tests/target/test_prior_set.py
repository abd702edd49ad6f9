"""The set of a model's priors: one log-density, one gradient, by closed form, in any layout."""

import pytest
import torch
from torch import nn

from atmc.common.errors import InputError
from atmc.target import priors


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.direction = nn.Parameter(
            (torch.randn(5, 4, 3, 3, dtype=dtype) * 0.2).to(memory_format=torch.channels_last)
        )
        self.scale = nn.Parameter(torch.randn(5, dtype=dtype))
        self.bias = nn.Parameter(torch.randn(5, dtype=dtype))
        self.heavy = nn.Parameter(torch.randn(6, 7, dtype=dtype))
        self.sparse = nn.Parameter(torch.randn(9, dtype=dtype))
        self.loose = nn.Parameter(torch.randn(3, dtype=dtype))
        self.group = nn.Parameter(torch.randn(4, 6, dtype=dtype))


RULE = priors.PriorRule(
    [
        priors.on(priors.StudentT(3.0, 0.5), name="heavy"),
        priors.on(priors.Horseshoe(0.3), name="sparse"),
        priors.on(priors.Flat(), name="loose"),
        priors.on(priors.GroupLaplace(2.0), name="group"),
        *priors.resnetpp().clauses,
    ],
    improper_ok=True,
)


def reference(net: nn.Module, given: priors.PriorSet) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The sum of each prior's own log-density, and its gradient by plain autograd."""
    total = torch.stack([given[name].log_prob(p) for name, p in net.named_parameters()]).sum()
    return total.detach(), list(torch.autograd.grad(-total, list(net.parameters())))


def test_log_prob_is_the_sum_and_its_backward_the_closed_form():
    net = Net()
    given = RULE.assign(net)
    total, expected = reference(net, given)
    value = given.log_prob(list(net.parameters()))
    torch.testing.assert_close(value.detach(), total)
    (-value).backward()
    for parameter, grad in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-12, atol=1e-12)
        assert parameter.grad.stride() == parameter.stride()


def test_add_grad_adds_in_place_and_gives_the_log_prior():
    net = Net()
    given = RULE.assign(net)
    total, expected = reference(net, given)
    grads = {name: torch.full_like(p, 0.5) for name, p in net.named_parameters()}
    given.add_grad_(dict(net.named_parameters()), grads, alpha=2.0)
    for name, grad in zip(grads, expected, strict=True):
        torch.testing.assert_close(grads[name], 0.5 + 2.0 * grad, rtol=1e-12, atol=1e-12)
    again = [torch.zeros(p.shape, dtype=p.dtype) for p in net.parameters()]
    torch.testing.assert_close(given.add_grad_and_log_prob_(list(net.parameters()), again), total)
    torch.testing.assert_close(again, expected, rtol=1e-12, atol=1e-12)


def test_float32_keeps_its_dtype_and_loses_little():
    net, wide = Net(torch.float32), Net()
    wide.load_state_dict({name: value.double() for name, value in net.state_dict().items()})
    given = RULE.assign(net)
    value = given.log_prob(list(net.parameters()))
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.detach().double(), reference(wide, given)[0], rtol=1e-6, atol=1e-4)


def test_a_large_constant_does_not_swallow_the_value():
    """Constants of millions are added in float64: the float32 result is right to its own last digit."""
    shape = (512, 4_608)
    given = priors.PriorSet({"direction": (priors.Direction(), shape)})
    x = torch.randn(shape) / 4_608**0.5
    exact = priors.Direction().log_prob(x.double())
    assert abs(float(exact)) > 1e6
    torch.testing.assert_close(given.log_prob([x]).double(), exact, rtol=1.3e-7, atol=0.0)


def test_wrong_tensors_are_named():
    net = Net()
    given = RULE.assign(net)
    tensors = list(net.parameters())
    with pytest.raises(InputError, match="7 tensors wanted"):
        given.log_prob(tensors[:-1])
    with pytest.raises(InputError, match="no tensor given for direction"):
        given.log_prob({"scale": net.scale})
    with pytest.raises(InputError, match="gradient of bias has shape"):
        given.add_grad_(tensors, [t if t is not net.bias else torch.zeros(4) for t in tensors])


def test_a_draw_of_the_whole_set():
    net = Net(torch.float32)
    given = priors.resnetpp().assign(net)
    draw = given.sample(torch.Generator().manual_seed(0))
    assert {name: tuple(value.shape) for name, value in draw.items()} == given.shapes
    net.load_state_dict(draw)
    assert torch.isfinite(given.log_prob(list(net.parameters())))


def test_the_transforms_of_torch_func_go_through():
    """As loops over several chains, or with functional_call, want them."""
    net = Net()
    given = RULE.assign(net)
    params = {name: p.detach() for name, p in net.named_parameters()}
    other = {name: 0.5 * p for name, p in params.items()}
    stacked = {name: torch.stack([p, other[name]]) for name, p in params.items()}
    _, expected = reference(net, given)
    found = torch.func.grad(given.log_prob)(params)
    values = torch.func.vmap(given.log_prob)(stacked)
    slopes = torch.func.vmap(torch.func.grad(given.log_prob))(stacked)
    torch.testing.assert_close(values, torch.stack([given.log_prob(params), given.log_prob(other)]))
    for name, slope in zip(params, expected, strict=True):
        torch.testing.assert_close(found[name], -slope)
        torch.testing.assert_close(slopes[name][0], -slope)
