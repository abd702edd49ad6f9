"""Networks by name, the small fully connected one, and the measurements."""

import json

import pytest
import torch
import torch.nn.functional as F

from atmc.common.errors import InputError
from atmc.nn import MLP, ResNet, ResNetPP, build, convert, mlp, top_eigenvalue


def test_names() -> None:
    assert isinstance(build("resnetpp", depth=8, width=4, classes=3, image_size=8, norm=None), ResNetPP)
    assert isinstance(build("resnet", depth=8, width=4, norm="frn", in_channels=1), ResNet)
    assert isinstance(build("mlp", depth=2, width=8, in_channels=1, image_size=8, norm=None), MLP)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnetpp", {"depth": 14, "width": 2, "classes": 3, "norm": "frn", "bias": "before", "branch_scale": "depth"}),
        ("resnet", {"depth": 18, "width": 2, "in_channels": 1, "small_input": True, "activation": "silu"}),
        ("mlp", {"depth": 2, "width": 5, "in_features": 7}),
    ],
)
def test_a_network_remembers_how_it_was_made(name: str, options: dict) -> None:
    model = build(name, **options)
    made = json.loads(json.dumps(model.made_by))
    twin = build(made["build"], **made["args"])
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 7) if name == "mlp" else torch.randn(2, 1 if name == "resnet" else 3, 8, 8)
    torch.testing.assert_close(twin.eval()(x), model.eval()(x))
    assert twin.made_by == model.made_by
    assert not hasattr(convert(model), "made_by")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnetp", {}, "did you mean resnetpp"),
        ("vit", {}, "there are resnetpp, resnet, wide-resnet, resnet-v2, resnet-frn, mlp"),
        ("resnet", {"dept": 8}, "has no option 'dept'; did you mean depth"),
        ("mlp", {"norm": "frn"}, "has no option 'norm'"),
        ("resnetpp", {"depth": 9}, "6n\\+2"),
        ("resnetpp", {}, "depth"),
    ],
)
def test_bad_requests(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, **options)


def test_mlp() -> None:
    torch.manual_seed(0)
    model = mlp(depth=8, width=256, in_channels=1, image_size=16)
    x = torch.randn(64, 1, 16, 16)
    hidden = x.flatten(1)
    for layer in model.layers[:-1]:
        hidden = F.selu(layer(hidden))
    assert hidden.square().mean().item() == pytest.approx(1, rel=0.15)  # SELU's fixed point, seven layers deep
    torch.testing.assert_close(model(x), model.layers[-1](hidden))
    assert model(x.bfloat16()).dtype == torch.float32
    with pytest.raises(ValueError, match="built for 256 inputs"):
        model(torch.randn(2, 3))
    with pytest.raises(ValueError, match="at least 1"):
        mlp(depth=0)


@pytest.mark.parametrize("values", [(7.0, 3.0, 1.0, -0.5), (-7.0, 3.0, 1.0, 0.5)])
def test_top_eigenvalue_of_a_known_hessian(values: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(4, 4))[0]
    hessian = basis @ torch.diag(torch.tensor(values)) @ basis.T
    a, b = torch.randn(3, requires_grad=True), torch.randn(1, requires_grad=True)

    def loss() -> torch.Tensor:
        theta = torch.cat([a, b])
        return 0.5 * theta @ hessian @ theta

    assert top_eigenvalue(loss, [a, b], 60) == pytest.approx(max(values), rel=1e-3)


def test_top_eigenvalue_of_a_network() -> None:
    """Against the whole Hessian, written out."""
    torch.manual_seed(0)
    model = MLP(2, 3, 3, in_features=4).double()
    x, y = torch.randn(16, 4, dtype=torch.float64), torch.randint(3, (16,))
    names, params = zip(*model.named_parameters(), strict=True)
    sizes = [p.numel() for p in params]

    def flat_loss(flat: torch.Tensor) -> torch.Tensor:
        parts = [part.view_as(p) for part, p in zip(flat.split(sizes), params, strict=True)]
        return F.cross_entropy(torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (x,)), y)

    flat = torch.cat([p.detach().flatten() for p in params])
    exact = torch.linalg.eigvalsh(torch.autograd.functional.hessian(flat_loss, flat))[-1].item()
    assert top_eigenvalue(lambda: F.cross_entropy(model(x), y), params, 200) == pytest.approx(exact, rel=1e-3)
