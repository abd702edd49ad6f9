"""`atmc.sample` and `Posterior` take data as people have them: data sets, loaders, tables, dicts, tokens."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from atmc import sample
from atmc.common.errors import InputError, RunError
from atmc.data import OwnData, read_own
from atmc.data.own_batches import OwnBatches
from atmc.diagnose.doctor import doctor
from atmc.storage.run_directory import RunDir

pytestmark = pytest.mark.filterwarnings("ignore")
MORE: dict[str, Any] = {"epochs": 6, "progress": None, "batch_size": 20}
X = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def net(inputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, 2))


class Items(Dataset[Any]):
    """A map-style data set with a transform, and dicts or pairs for items."""

    def __init__(self, transform: Any = None, form: str = "pair", x: Any = X, y: Any = Y) -> None:
        self.transform, self.form, self.x, self.y = transform or (lambda x: x), form, x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        x, y = self.transform(self.x[i]), int(self.y[i])
        return {"x": x, "label": y} if self.form == "dict" else (x, y)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Items())


def double_pairs(items: list[Any]) -> Any:
    """A collate function of one's own."""
    return [torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])]


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(X, Y),
        Items(),
        Items(form="dict"),
        Stream(),
        DataLoader(Items(), batch_size=7, shuffle=True, drop_last=True),
        DataLoader(Items(form="dict"), batch_size=7, num_workers=1),
        DataLoader(Items(), batch_size=7, collate_fn=double_pairs),
        DataLoader(Stream(), batch_size=7),
        [SimpleNamespace(to_numpy=lambda: X.double().numpy()), SimpleNamespace(to_numpy=lambda: Y.numpy())],
    ],
    ids=["tensors", "pairs", "dicts", "stream", "loader", "workers", "collate", "stream-loader", "pandas"],
)
def test_the_same_examples_give_the_same_samples(data: Any) -> None:
    """However they come, and in whatever order a loader would show them."""
    expected, found = (sample(net(), given, **MORE) for given in ((X, Y), data))
    assert all(torch.equal(expected.state(-1)[name], tensor) for name, tensor in found.state(-1).items())
    assert found.evaluate(data if not isinstance(data, list) else (X, Y)) == expected.evaluate(X, Y)
    if not isinstance(data, list):
        torch.testing.assert_close(found.predict(data).probs, expected.predict(X).probs)


def test_a_loader_says_the_size_of_batches(tmp_path: Path) -> None:
    sample(net(), DataLoader(TensorDataset(X, Y), batch_size=16), epochs=2, out=tmp_path / "run", progress=None)
    assert RunDir.open(tmp_path / "run").recipe.data.batch_size == 16


def test_pictures_in_folders_keep_the_names_of_their_classes(tmp_path: Path) -> None:
    """As torchvision's ImageFolder has them: PIL pictures, `classes`, and perhaps no transform."""
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (6, 5, 3), dtype=np.uint8)) for _ in range(40)]
    folder = Items(x=pictures, y=torch.arange(40) % 2)
    folder.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    found = read_own(folder)
    assert found.images.dtype == torch.uint8
    assert found.shape == (3, 6, 5)
    assert found.classes == ("cat", "dog")
    assert torch.equal(found.images[3].permute(1, 2, 0), torch.from_numpy(np.array(pictures[3])))
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 2))
    posterior = sample(model, folder, test=folder, **MORE)
    assert posterior.classes == ("cat", "dog")
    assert posterior.predict(folder).probs.shape == (40, 2)
    grey = Items(lambda picture: picture.convert("L"), x=pictures, y=torch.arange(40) % 2)
    assert read_own(grey).shape == (1, 6, 5)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(tokens).mean(1))
        return out


def test_integer_tokens_and_whole_numbers() -> None:
    tokens = torch.randint(0, 50, (80, 5), generator=torch.Generator().manual_seed(1))
    labels = (tokens[:, 0] > 25).long()
    posterior = sample(Tokens(), (tokens, labels), test=(tokens, labels), **MORE)
    assert posterior.predict(tokens).probs.shape == (80, 2)
    assert torch.equal(posterior.predict(Items(x=tokens, y=labels)).probs, posterior.predict(tokens).probs)
    whole = (10 * X).long()  # for a network without an embedding they are numbers
    expected, found = (sample(net(), (x, Y), **MORE) for x in (whole.float(), whole))
    assert torch.equal(expected.state(-1)["0.weight"], found.state(-1)["0.weight"])
    assert torch.equal(found.predict(whole).probs, expected.predict(whole.float()).probs)


def jitter(x: torch.Tensor) -> torch.Tensor:
    """An augmentation that draws from three generators of random numbers."""
    return x + 0.1 * torch.randn(3) + 0.01 * float(np.random.rand()) + 0.01 * random.random()  # noqa: NPY002


def test_an_augmentation_of_ones_own_is_drawn_anew_and_said(tmp_path: Path) -> None:
    data = read_own(DataLoader(Items(jitter), batch_size=7, num_workers=1))
    assert isinstance(data, OwnData)
    assert not isinstance(read_own(Items()), OwnData)
    feeds = [OwnBatches(read_own(Items(jitter)), 20, seed=3), OwnBatches(data, 20, seed=3)]
    first, second = (torch.stack([feed.batch(step)[0] for step in range(8)]) for feed in feeds)
    torch.testing.assert_close(first, second)  # whatever the workers
    feeds[0].start(5)
    torch.testing.assert_close(feeds[0].batch(5)[0], first[5])  # a resumed run draws the same
    (x, y), (again, _) = feeds[0].batch(6), feeds[1].with_seed(4).batch(6)
    near = torch.cdist(x, X).argmin(1)
    assert torch.equal(Y[near], y)
    assert 0.01 < float((x - X[near]).abs().mean()) < 0.3
    assert not torch.equal(x, again)
    for feed in feeds:
        feed.close()
    model = net()  # which seeds torch's generator: before it is looked at
    state = random.getstate(), torch.get_rng_state()
    with pytest.warns(UserWarning, match=r"transform draws at random: .* departs from Bayes' rule"):
        posterior = sample(model, Items(jitter), out=tmp_path / "run", **MORE)
    assert (random.getstate(), True) == (state[0], torch.equal(torch.get_rng_state(), state[1]))
    run = RunDir.open(tmp_path / "run")
    assert run.recipe.data.augment == "own"
    assert any("augmented (own)" in advice.evidence for advice in doctor(run))
    whole = sample(net(), Items(jitter), **{**MORE, "out": tmp_path / "whole"})
    with pytest.raises(RunError, match="out of time"):
        sample(net(), Items(jitter), out=tmp_path / "parts", time_budget=1e-3, **MORE)
    parts = sample(net(), Items(jitter), out=tmp_path / "parts", **MORE)
    assert len(parts) == len(posterior)
    assert torch.equal(parts.state(-1)["0.weight"], whole.state(-1)["0.weight"])


def broken(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(3) if random.random() < 0.9 else torch.randn(4)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (DataLoader(Items(), batch_size=5, sampler=WeightedRandomSampler([1.0] * 80, 80)), "more than once.*Dataset"),
        (TensorDataset(X), r"a batch must be \(inputs, labels\) or a dict with labels, not 1 parts"),
        (TensorDataset(X, Y, Y), "not 3 parts"),
        (X, "data must be"),
        (Items(lambda x: {"a": x, "b": x}), r"the network does not take the inputs a \[3\], b \[3\]"),
        (Items(lambda x: "text"), "a batch holds .*; numbers are needed"),
        (DataLoader([(torch.zeros(n), 0) for n in (2, 3)], batch_size=1), r"examples of shapes \[2\] and \[3\]"),
        (DataLoader([{"a": X[0], "b": X[0]}]), "a batch with the entries a, b: it takes one of labels"),
        (TensorDataset(torch.full((4, 3), torch.nan), Y[:4]), "NaN or infinite values, first in example 0"),
        (TensorDataset(X[:0], Y[:0]), "there are no examples"),
        ((SimpleNamespace(to_numpy=lambda: np.array([["a", 1]], object), dtypes={"town": np.dtype("O"),
          "age": np.dtype("i8")}), Y[:1]), "the columns town are not numbers"),
    ],
)  # fmt: skip
def test_bad_data_are_one_line(data: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        sample(net(), data, **MORE)
    assert "\n" not in str(refused.value)


def test_bad_inputs_of_a_posterior_are_one_line() -> None:
    posterior = sample(net(), (X, Y), **MORE)
    assert posterior.evaluate(DataLoader(TensorDataset(X, Y), batch_size=9)) == posterior.evaluate(X, Y)
    assert torch.equal(posterior.predict({"x": X, "label": Y}).probs, posterior.predict(X).probs)
    with pytest.raises(InputError, match=r"evaluate needs labels: .* not a Tensor alone"):
        posterior.evaluate(X)
    with pytest.raises(InputError, match=r"inputs a \[3\], b \[3\], and the network takes one tensor of shape \[3\]"):
        posterior.predict({"a": X, "b": X})
