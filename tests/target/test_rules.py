"""Rules: which parameter gets which prior, what happens to one that gets none, and what `describe` says."""

import pytest
import torch
from torch import nn

from atmc.common.errors import InputError
from atmc.nn import WNConv2d, WNLinear
from atmc.target import priors


class Net(nn.Module):
    """One of everything a network here may own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = WNConv2d(3, 4, 3)
        self.plain = nn.Conv2d(4, 6, 3)
        self.norm = nn.GroupNorm(2, 6)
        self.gain = nn.Parameter(torch.ones(()))
        self.head = WNLinear(6, 10)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)


def test_resnetpp_covers_every_trainable_parameter_as_the_paper_says():
    given = priors.resnetpp(b=3.0, bias_scale=0.5).assign(Net()).priors
    assert given == {
        "gain": priors.Normal(1.0),
        "stem.direction": priors.Direction(),
        "stem.scale": priors.GroupLaplace(3.0),
        "stem.bias": priors.Normal(0.5),
        "plain.weight": priors.Normal(1 / 6),
        "plain.bias": priors.Normal(0.5),
        "norm.weight": priors.Normal(1.0),
        "norm.bias": priors.Normal(0.5),
        "head.direction": priors.Direction(),
        "head.scale": priors.GroupLaplace(3.0),
        "head.bias": priors.Normal(0.5),
    }
    assert priors.resnetpp().assign(Net())["stem.scale"] == priors.GroupLaplace(5.0)
    assert priors.resnetpp(scales=priors.Horseshoe(0.1)).assign(Net())["head.scale"] == priors.Horseshoe(0.1)


def test_names_follow_the_model_and_shared_parameters_count_once():
    net = Net()
    net.tied = net.head
    names = priors.gaussian(1.0).assign(net).names
    assert names == tuple(name for name, p in net.named_parameters() if p.requires_grad)


def test_gaussian_with_and_without_fan_in():
    assert set(priors.gaussian(0.3).assign(Net()).priors.values()) == {priors.Normal(0.3)}
    given = priors.gaussian(2.0, fan_in=True).assign(Net())
    assert given["plain.weight"] == priors.Normal(2.0 / 6)
    assert given["plain.bias"] == priors.Normal(2.0)


def test_clauses_match_by_name_by_dotted_name_by_type_and_by_class_name():
    rule = priors.PriorRule(
        [
            priors.on(priors.Laplace(1.0), name="head.*"),
            priors.on(priors.Laplace(2.0), module=nn.Conv2d, name="weight"),
            priors.on(priors.Laplace(3.0), module="WN*", name="direction"),
            priors.on(lambda name, p: priors.Normal(float(p.numel()))),
        ]
    )
    given = rule.assign(Net())
    assert given["head.direction"] == priors.Laplace(1.0)
    assert given["plain.weight"] == priors.Laplace(2.0)
    assert given["stem.direction"] == priors.Laplace(3.0)
    assert given["norm.weight"] == priors.Normal(6.0)


def test_override_wins():
    rule = priors.resnetpp().override(priors.StudentT(3.0, 1.0), name="scale", module=WNLinear)
    given = rule.assign(Net())
    assert given["head.scale"] == priors.StudentT(3.0, 1.0)
    assert given["stem.scale"] == priors.GroupLaplace(5.0)


def test_a_parameter_without_a_prior_is_named():
    rule = priors.PriorRule([priors.on(priors.Normal(1.0), module=(WNConv2d, WNLinear))], name="mine")
    with pytest.raises(InputError, match=r"no prior for gain, plain\.weight, .*'mine'"):
        rule.assign(Net())
    with pytest.raises(InputError, match="nothing to sample"):
        rule.assign(nn.ReLU())


def test_an_improper_prior_is_refused_unless_asked_for():
    rule = priors.resnetpp().override(priors.Flat(), name="gain")
    with pytest.raises(InputError, match=r"improper prior on gain.*improper_ok=True"):
        rule.assign(Net())
    given = rule.assign(Net(), improper_ok=True)
    assert given["gain"] == priors.Flat()
    assert "Flat (improper) 1" in given.describe()
    allowed = priors.PriorRule([priors.on(priors.Flat())], improper_ok=True)
    assert allowed.assign(Net()).log_prob([p.detach() for p in Net().parameters() if p.requires_grad]) == 0.0


def test_describe_is_a_table_of_every_parameter():
    text = priors.resnetpp().assign(Net()).describe()
    lines = text.splitlines()
    assert lines[0].split() == ["parameter", "shape", "prior"]
    assert any(line.split() == ["stem.direction", "4×3×3×3", "Direction(d=27)"] for line in lines)
    assert any(line.split() == ["head.scale", "10", "GroupLaplace(scale=5)"] for line in lines)
    assert any(line.split() == ["gain", "scalar", "Normal(scale=1)"] for line in lines)
    assert len(lines) == 2 + 11 + 1
    total = sum(p.numel() for p in Net().parameters() if p.requires_grad)
    assert lines[-1].startswith(f"11 parameters, {total:,} numbers: ")


def test_rules_by_the_name_a_recipe_uses():
    assert priors.build("resnetpp", 2.0).assign(Net())["stem.scale"] == priors.GroupLaplace(2.0)
    assert priors.build("gaussian").assign(Net())["stem.scale"] == priors.Normal(1.0)
    assert priors.build("horseshoe", 0.2).assign(Net())["stem.scale"] == priors.Horseshoe(0.2)
    for name in ("laplace", "student-t", "gaussian-fan-in"):
        assert len(priors.build(name, 0.5).assign(Net())) == 11
    decay = priors.build("gaussian-weights", 0.5).assign(Net())  # weights alone; gains and biases have a wide prior
    shapes = {name: p.ndim for name, p in Net().named_parameters() if p.requires_grad}
    assert {name: decay[name] for name in shapes} == {
        name: priors.Normal(0.5 if ndim >= 2 else 1.0) for name, ndim in shapes.items()
    }
    with pytest.raises(InputError, match=r"unknown prior 'gausian'; did you mean gaussian\?"):
        priors.build("gausian")


@pytest.mark.parametrize("norm", [None, "frn"])
def test_every_parameter_of_the_projects_own_network_has_a_proper_prior(norm):
    from atmc.nn import resnetpp

    model = resnetpp(8, width=4, norm=norm)
    given = priors.resnetpp().assign(model)
    assert given.names == tuple(name for name, _ in model.named_parameters())
    for name, prior in given.priors.items():
        assert isinstance(prior, priors.Direction) == name.endswith("direction")
        assert isinstance(prior, priors.GroupLaplace) == name.endswith("scale")
