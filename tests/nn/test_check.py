"""`check` names what cannot be sampled, by type and by watching the network run, and is silent about what can."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atmc.nn import check, convert, mlp, resnet, resnetpp
from atmc.nn.check import Finding


def kinds(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.name, finding.kind) for finding in findings]


@pytest.mark.parametrize(
    ("model", "size"),
    [(resnetpp(8, 4), 8), (resnet(8, 4, norm="frn"), 8), (mlp(in_channels=3), 8), (nn.Conv2d(3, 2, 3), 5)],
)
def test_what_can_be_sampled_passes(model: nn.Module, size: int) -> None:
    assert check(model) == []
    assert check(model, torch.randn(4, 3, size, size)) == []


def test_batchnorm_counts_while_training() -> None:
    model = resnet(8, 4)
    findings = check(model)
    assert len(findings) == 1 + 6
    assert findings[0].name == "stem_norm"
    assert "convert" in str(findings[0])
    assert check(model.eval()) == []
    assert kinds(check(nn.BatchNorm2d(3, track_running_stats=False).eval())) == [("", "batch-statistics")]


def test_dropout_of_every_kind() -> None:
    model = nn.Sequential(
        nn.Dropout(0.1),
        nn.AlphaDropout(0.2),
        nn.Dropout2d(0.3),
        nn.Dropout(0.0),
        nn.LSTM(4, 4, 2, dropout=0.1),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.RReLU(),
    )
    assert not any(kind == "dropout" for _, kind in kinds(check(model.eval()))), "there it does nothing"
    found = kinds(check(model.train()))
    assert all("pass atmc.nn.convert(model)" in str(f) for f in check(model) if f.kind == "dropout")
    assert [name for name, kind in found if kind == "dropout"] == ["0", "1", "2", "4", "5"]
    assert ("6", "noise") in found


def test_other_libraries_layers_by_name() -> None:
    class DropPath(nn.Identity):
        pass

    class MyBatchNorm(nn.Identity):
        pass

    class FrozenBatchNorm2d(nn.Identity):
        pass

    found = kinds(check(nn.Sequential(DropPath(), MyBatchNorm(), FrozenBatchNorm2d())))
    assert found == [("0", "noise"), ("1", "batch-statistics")]


def test_instance_norm_and_lazy_layers() -> None:
    model = nn.Sequential(nn.InstanceNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True), nn.LazyLinear(3))
    assert kinds(check(model)) == [("1", "batch-statistics"), ("2", "uninitialised")]


class Hidden(nn.Module):
    """Does in its forward what no layer's type shows."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "noise":
            x = F.dropout(x, 0.5)
        if self.what == "batch-statistics":
            x = x - x.mean(0)
        if self.what == "hidden-state":
            self.calls += 1
        return self.layer(x)


@pytest.mark.parametrize("what", ["noise", "batch-statistics", "hidden-state"])
@pytest.mark.parametrize("size", [2, 5])
def test_watching_the_network_run(what: str, size: int) -> None:
    torch.manual_seed(0)
    model = Hidden(what)
    assert check(model) == []
    state = torch.random.get_rng_state()
    assert kinds(check(model, torch.randn(size, 4, generator=torch.Generator().manual_seed(1)))) == [("", what)]
    assert model.calls == 0  # The network itself was left alone,
    assert torch.equal(torch.random.get_rng_state(), state)  # and so was the random state.


def test_a_named_layer_explains_what_is_seen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    assert kinds(check(model, torch.randn(4, 4))) == [("1", "batch-statistics"), ("2", "dropout")]
    assert check(convert(model), torch.randn(4, 4)) == []


def test_needs_two_examples() -> None:
    with pytest.raises(ValueError, match="two or more"):
        check(nn.Linear(3, 2), torch.zeros(1, 3))


def test_an_output_that_is_no_tensor_is_named() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(ValueError, match="one tensor, not tuple"):
        check(Pair(), torch.randn(3, 2))


def test_noise_of_rate_0_is_none() -> None:
    class DropPath(nn.Identity):
        def __init__(self, drop_prob: float) -> None:
            super().__init__()
            self.drop_prob = drop_prob

    assert check(nn.Sequential(DropPath(0.0))) == []
    assert kinds(check(nn.Sequential(DropPath(0.1)))) == [("0", "noise")]
