"""The compiled loss: the numbers of the plain one, and a note with the reason where there is no compiler for it."""

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from torch import Tensor, nn

from atmc.engine.compiled_loss import BatchLoss
from atmc.nn import WNLinear, build
from atmc.nn.with_noise import WithNoise
from atmc.target import Potential


def target(model: nn.Module) -> Potential:
    """What a batch's loss is of: any number of examples and no prior will do here."""
    return Potential(model, 1000, None, improper_ok=True)


class Net(nn.Module):
    """A user's network, with a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(self.layer(x))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 4), torch.arange(8) % 3


@pytest.mark.slow
def test_the_same_loss_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither a program for each vector unit of the machine, nor torch's headers compiled beforehand.
    monkeypatch.setattr(inductor.cpp, "vec_isa_ok", False)
    monkeypatch.setattr(inductor, "cpp_cache_precompile_headers", False)
    x, y = batch()
    model = Net()
    loss = BatchLoss(target(model), None, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loss.compile(x, y, list(model.parameters()))
    assert model.calls == 0
    assert loss._run != loss.plain
    for run in (loss, loss.plain):
        torch.testing.assert_close(run(x, y), BatchLoss(target(copy.deepcopy(model)), None, False)(x, y))
    got = torch.autograd.grad(loss(x, y), list(model.parameters()))
    torch.testing.assert_close(got, torch.autograd.grad(loss.plain(x, y), list(model.parameters())))

    weights = torch.rand(8)  # as of a batch drawn by importance
    drawn = BatchLoss(target(model), None, True)
    drawn.compile(x, y, list(model.parameters()), weights)
    assert drawn._run_weighted != drawn.plain_weighted
    (value, outputs), (wanted, plain) = drawn.weighted(x, y, weights), drawn.plain_weighted(x, y, weights)
    torch.testing.assert_close((value, outputs), (wanted, plain))
    assert not outputs.requires_grad
    got = torch.autograd.grad(value, list(model.parameters()))
    torch.testing.assert_close(got, torch.autograd.grad(wanted, list(model.parameters())))


def test_without_a_compiler_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = batch()
    model = Net()
    loss = BatchLoss(target(model), None, True)
    torch.compiler.reset()
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(inductor, "force_disable_caches", True)
    with pytest.warns(UserWarning, match="torch.compile cannot compile Net, which runs uncompiled"):
        loss.compile(x, y, list(model.parameters()))
    assert model.calls == 0
    torch.testing.assert_close(loss(x, y), loss.plain(x, y))
    loss.compile(x, y, list(model.parameters()))  # not a second time, and so no second warning


def compile_with(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Let torch.compile trace as ever, but make code by another backend."""
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))


class Opaque(Net):
    """A network that torch.compile passes over without an error."""

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Branches(Net):
    """A network that torch.compile takes in parts without an error."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x if x.sum() > 0 else x)


@pytest.mark.parametrize("kind", [Opaque, Branches])
def test_what_the_compiler_leaves_out_is_said(monkeypatch: pytest.MonkeyPatch, kind: type[Net]) -> None:
    compile_with(monkeypatch, "aot_eager")
    x, y = batch()
    model = kind()
    loss = BatchLoss(target(model), None, True)
    said = f"cannot compile {kind.__name__} as a whole; what it leaves out .*Unsupported: "
    with pytest.warns(UserWarning, match=said):
        loss.compile(x, y, list(model.parameters()))
    assert model.calls == 0
    assert loss._run != loss.plain, "the rest is compiled"
    torch.testing.assert_close(loss(x, y), loss.plain(x, y))


def test_many_networks_in_one_process_are_all_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function has eight compiled versions by torch's own limits, and 256 in all; after that it runs as it is."""
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compile_with(monkeypatch, keep)
    x, y = batch()
    # Other tests may have raised the limits already. monkeypatch would delete the settings afterwards.
    limits = torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=12)
    with limits, warnings.catch_warnings():
        warnings.filterwarnings("error", "run.compile")
        for width in range(3, 73):
            model = nn.Linear(4, width)
            BatchLoss(target(model), None, True).compile(x, y, list(model.parameters()))
    assert len(graphs) == 70


@pytest.mark.parametrize(("name", "norm"), [("resnet", "frn"), ("resnetpp", None)])
def test_blocks_that_cannot_be_compiled_run_as_they_are(
    monkeypatch: pytest.MonkeyPatch, name: str, norm: str | None
) -> None:
    def broken(graph: Any, _: Any) -> Any:
        raise RuntimeError("no compiler here")

    compile_with(monkeypatch, broken)
    x, y = torch.randn(2, 3, 8, 8), torch.arange(2)
    model = build(name, depth=8, width=4, norm=norm)
    loss = BatchLoss(target(model), None, True)
    with pytest.warns(UserWarning, match="torch.compile cannot compile ResNet.*, which runs uncompiled and slower"):
        loss.compile(x, y, list(model.parameters()))
    twin = copy.deepcopy(model)
    torch.testing.assert_close(loss(x, y), BatchLoss(target(twin), None, False)(x, y))


def test_a_mistake_of_the_users_stays_his() -> None:
    _, y = batch()
    model = Net()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        BatchLoss(target(model), None, True).compile(torch.randn(8, 5), y, list(model.parameters()))


def test_nothing_is_compiled_unasked() -> None:
    loss = BatchLoss(target(Net()), None, False)
    loss.compile(*batch(), list(loss.model.parameters()))
    assert loss._run == loss.plain


class Reads(Net):
    """Looks at a value in its forward pass, which on a GPU waits for it."""

    mode = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.mode:
            raise RuntimeError("called a synchronizing CUDA operation")  # as torch does in this mode
        return super().forward(x)


class Law:
    """A user's likelihood that looks at a value."""

    task = "classification"

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        if Reads.mode:
            raise RuntimeError("called a synchronizing CUDA operation")
        return nn.functional.cross_entropy(outputs, y, reduction="none")


class ReadingLayer(WNLinear):
    """A layer of the user's that looks at a value."""

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        if Reads.mode:
            raise RuntimeError("called a synchronizing CUDA operation")
        return super().forward(x, weight)


def with_a_part_of_the_users() -> nn.Module:
    """A network of ours in which the last layer is the user's."""
    model = build("mlp", depth=2, width=4, image_size=2)
    model.layers[1] = ReadingLayer(4, 10)
    return model


@pytest.mark.parametrize(
    ("model", "law", "said"),
    [
        (Reads, None, "Reads reads values back from the GPU in its forward pass, as"),
        (lambda: WithNoise(Reads(), 3), None, "Reads reads values back from the GPU in its forward pass, as"),
        (with_a_part_of_the_users, None, "MLP reads values back from the GPU in its forward pass, as"),
        (
            lambda: build("mlp", depth=1, image_size=2),
            Law(),
            "MLP reads values .* in its forward pass or the likelihood",
        ),
    ],
)
def test_what_reads_values_back_is_named(
    monkeypatch: pytest.MonkeyPatch, model: Callable[[], nn.Module], law: Any, said: str
) -> None:
    x, y = batch()
    modes: list[object] = []

    def switch(mode: object) -> None:
        modes.append(mode)
        monkeypatch.setattr(Reads, "mode", 1 if mode == "error" else mode)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switch)
    network = model()
    loss = BatchLoss(Potential(network, 1000, None, law, improper_ok=True), None, False)
    with pytest.warns(UserWarning, match=said + ".* cannot be recorded in a CUDA graph"):
        assert not loss.recordable(x, y, list(network.parameters()))
    assert all(part.calls == 0 for part in network.modules() if isinstance(part, Reads))
    assert modes == ["error", 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not loss.recordable(x, y, list(network.parameters()))  # said once
        for plain in (Net(), build("mlp", depth=1, image_size=2)):
            assert BatchLoss(target(plain), None, False).recordable(x, y, list(plain.parameters()))


def test_other_errors_are_not_taken_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    _, y = batch()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        BatchLoss(target(model := Net()), None, False).recordable(torch.randn(8, 5), y, list(model.parameters()))
