"""What `atmc.sample` says to somebody who calls it for the first time: each mistake in one line, with its cure."""

import dataclasses
import os
import re
import signal
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atmc import likelihoods
from atmc.api import sampling, step_speed
from atmc.api.arguments import work
from atmc.api.defaults import default_recipe
from atmc.api.sampling import sample
from atmc.common.errors import InputError, RunError
from atmc.data import ImageData
from atmc.engine.progress import Progress
from atmc.samplers import SAMPLERS
from atmc.storage.run_directory import RunDir

X = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(200) % 3


def net(outputs: int, *end: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, outputs), *end)


def holed(values: torch.Tensor, row: int) -> torch.Tensor:
    values = values.clone()
    values[row] = torch.nan
    return values


def refusal(model: Any, data: Any, **more: Any) -> str:
    """The line with which a call is refused; it comes without a warning that it makes pointless."""
    with warnings.catch_warnings(action="error"), pytest.raises(InputError) as caught:
        sample(model, data, **{"epochs": 20, "progress": None, **more})
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ((X, Y + 1), "test: label 3 of example 2 is out of range: .* 0 to 2; if these count from 1, pass y - 1"),
        ((X[:, :4], Y), r"test: the network does not take examples of shape \[4\]"),
        ((X, Y.float()), r"test: .*not torch.float32: pass y\.long\(\)"),
        ((holed(X, 7), Y), "test: the inputs hold NaN .* first in example 7"),
        ((X, Y[:3]), "test: 200 inputs and 3 labels"),
        (5, r"test must be \(inputs, labels\), a Dataset, a DataLoader or an ImageData"),
        (ImageData.from_tensors(X, Y + 7, split="test"), "test: label 7 of example 0"),
    ],
)
def test_a_wrong_test_set_is_refused_before_anything_is_written(test: Any, words: str, tmp_path: Path) -> None:
    assert re.search(words, refusal(net(3), (X, Y), test=test, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_right_test_set_is_taken(tmp_path: Path) -> None:
    assert len(sample(net(3), (X, Y), test=(X, Y), epochs=8, out=tmp_path / "run", progress=None)) > 1


def test_regression_targets_of_a_test_set_may_lack_an_axis(tmp_path: Path) -> None:
    """They could before they were looked at, and such runs go on."""
    gaussian = likelihoods.Gaussian(0.5)
    pair = (X, X[:, :1])
    sample(net(1), pair, test=(X, X[:, 0]), likelihood=gaussian, epochs=8, out=tmp_path, progress=None)
    assert RunDir.open(tmp_path).predictions("test").shape[1:] == (200, 1)
    said = refusal(net(1), pair, test=(X, holed(X[:, 0], 4)), likelihood=gaussian)
    assert said == "test: the regression targets hold NaN or infinite values, first in example 4"


@pytest.mark.parametrize(
    ("outputs", "labels", "cure"),
    [
        (3, Y.float(), r"labels of torch\.float32 mean a regression.* for classes pass y\.long\(\)$"),
        (2, X[:, 0], r"outputs are \[200, 2\] and the targets \[200\]: they must have one shape$"),
        (1, holed(X[:, :1], 9), "first in example 9"),
        (3, Y[:, None], r"must be \[200\].* not \[200, 1\]: pass y\.squeeze\(1\)$"),
        (3, nn.functional.one_hot(Y), r"pass y\.argmax\(1\)$"),
        (3, nn.functional.one_hot(Y).bool(), r"pass y\.int\(\)\.argmax\(1\)$"),
        (2, Y > 0, r"pass y\.long\(\)$"),
        (1, (Y > 0).long(), "two classes need two outputs"),
        (1, Y, "3 classes need 3 outputs"),
        (3, [f"class {k}" for k in Y], "number the classes 0…C−1"),
        (3, np.array([f"class {k}" for k in Y]), "number the classes 0…C−1"),
    ],
)
def test_labels_that_do_not_fit_are_told_what_does(outputs: int, labels: Any, cure: str) -> None:
    assert re.search(cure, refusal(net(outputs), (X, labels)))


def test_the_cures_are_cures() -> None:
    hot = nn.functional.one_hot(Y)
    for labels in (Y.float().long(), Y[:, None].squeeze(1), hot.argmax(1), hot.bool().int().argmax(1)):
        assert sample(net(3), (X, labels), epochs=1, progress=None)
    for targets in (X[:, 0], X[:, :1]):
        assert sample(net(1), (X, targets), epochs=1, progress=None)


def test_float_labels_mean_a_regression_and_the_warning_says_what_classes_need() -> None:
    said = r"torch\.float32 mean a regression.*; for classes pass "
    with pytest.warns(UserWarning, match=said + r"y\.long\(\)"):
        sample(net(1), (X, (Y > 0).float()[:, None]), epochs=1, progress=None)
    with pytest.warns(UserWarning, match=said + r"y\.argmax\(1\)"):
        sample(net(3), (X, nn.functional.one_hot(Y).float()), epochs=1, progress=None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        sample(net(1), (X, X[:, :1]), epochs=1, progress=None)
    assert not any("regression" in str(one.message) for one in seen)  # numbers that are no classes need no word


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 5000}, r"^batch_size=5000 is larger than the 200 examples$"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"overrides": ["data.batch_size=5000"]}, r"data\.batch_size = 5000 is larger than the 200"),
        ({"sampler": "atcm"}, "not 'atcm': did you mean 'atmc'?"),
        ({"sampler": "ATMC"}, "not 'ATMC': did you mean 'atmc'?$"),
        ({"sampler": "digits-atmc.toml"}, "a recipe goes into recipe="),
        ({"recipe": "my.toml"}, r"no recipe my\.toml: there is no such file"),
        ({"recipe": "Digits-SGD.toml"}, "there is no such file; did you mean digits-sgd?"),
        ({"model": nn.Linear}, r"not the class Linear: pass Linear\(…\)"),
        ({"model": torch.tanh}, r"must be a torch\.nn\.Module"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], words: str) -> None:
    assert re.search(words.replace("?", r"\?"), refusal(arguments.pop("model", net(3)), (X, Y), **arguments))


@pytest.mark.parametrize("name", ["m.py", "m.py/run"])
def test_a_file_is_no_run_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("kept")
    assert "m.py is a file and cannot hold a run: name a folder" in refusal(net(3), (X, Y), out=tmp_path / name)
    assert (tmp_path / "m.py").read_text() == "kept"


def test_probabilities_where_logits_belong_give_a_warning() -> None:
    with pytest.warns(UserWarning, match="leave out the softmax"):
        sample(net(3, nn.Softmax(1)), (X, Y), epochs=1, progress=None)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*leave out the softmax")
        for end in (nn.LogSoftmax(1), nn.ReLU(), nn.Identity()):
            sample(net(3, end), (X, Y), epochs=1, progress=None)


@pytest.mark.parametrize(("epochs", "words"), [(1, "only 1 sample:"), (4, "only [234] samples:")])
def test_few_samples_give_a_warning(epochs: int, words: str) -> None:
    with pytest.warns(UserWarning, match=words + ".*more epochs"):
        sample(net(3), (X, Y), epochs=epochs, batch_size=12, progress=None)


@pytest.mark.parametrize(("epochs", "said"), [(4, 1), (8, 0)])
def test_few_samples_for_want_of_time_are_said_to_be_that(
    epochs: int, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = sampling.run
    monkeypatch.setattr(sampling, "run", lambda *args, **more: dataclasses.replace(go(*args, **more), status="budget"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        sample(net(3), (X, Y), epochs=epochs, batch_size=12, progress=None)
    told = [
        "out of time at epoch 5 of 5, ",
        "the samples predict hardly better than guessing",
    ]  # both are true of the first
    assert len(seen) == said * len(told)
    assert all(words in str(one.message) for one, words in zip(seen, told, strict=False))


def test_one_ordinary_network_is_not_few_samples() -> None:
    with warnings.catch_warnings(action="error"):
        assert len(sample(net(3), (X, Y), "sgd", epochs=2, progress=None)) == 1


class Interrupting(Progress):
    """Ctrl-C at the first row of an `event`, or at the `nth`."""

    def __init__(self, event: str, nth: int = 1) -> None:
        self.event, self.left = event, nth

    def row(self, row: Any, samples: int) -> None:
        if row["event"] == self.event:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_says_so_and_goes_on(tmp_path: Path) -> None:
    whole = sample(net(3), (X, Y), epochs=200, progress=None)
    stopped = r"interrupted at epoch \d+ of 3700, "  # of 16 steps each with all data, and 500 of SGD
    with pytest.raises(RunError, match=stopped + "0 samples; the same call goes on where it stopped"):
        sample(net(3), (X, Y), epochs=200, out=tmp_path, progress=Interrupting("log"))
    with pytest.warns(UserWarning, match=stopped + r"[1-9]\d* samples?; the same call goes on") as seen:
        some = sample(net(3), (X, Y), epochs=200, out=tmp_path, progress=Interrupting("sample"))
    assert 0 < len(some) < len(whole)
    assert len(seen) == 1  # and none about few samples
    assert seen[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        posterior = sample(net(3), (X, Y), epochs=200, out=tmp_path, progress=None)
    assert len(posterior) == len(whole)
    for k in range(len(whole)):
        assert all(torch.equal(posterior.state(k)[name], tensor) for name, tensor in whole.state(k).items())


def test_an_interrupted_run_in_memory_is_told_of_out() -> None:
    with pytest.raises(RunError, match=r"interrupted .* 0 samples; with out= the same call could go on"):
        sample(net(3), (X, Y), epochs=200, progress=Interrupting("log"))
    with pytest.warns(UserWarning, match=r"interrupted .*with out= the same call could go on"):
        assert sample(net(3), (X, Y), epochs=200, progress=Interrupting("sample"))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("overrides", "small", "expected"), [([], 1, 1), (["run.threads=2"], 1, 2), ([], 0, 2)])
def test_small_networks_have_one_thread_unless_it_is_set(
    overrides: list[str], small: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, seen = step_speed.find_step_size, []

    def noting(*args: Any) -> Any:
        seen.append(torch.get_num_threads())
        torch.set_num_threads(1)  # not to wait for it
        return search(*args)

    monkeypatch.setattr(step_speed, "find_step_size", noting)
    monkeypatch.setattr(step_speed, "SMALL", small * step_speed.SMALL)
    sample(net(3), (X, Y), epochs=1, out=tmp_path, overrides=overrides, progress=None)
    assert seen == [expected]  # the search for the speed goes as the run does
    assert torch.get_num_threads() == 2
    found = RunDir.open(tmp_path)
    assert found.manifest["sessions"][0]["hardware"]["threads"] == expected
    assert found.recipe.run.threads == (None if small == 0 else expected)


@pytest.mark.parametrize("named", [True, False])
def test_a_run_from_before_goes_on_with_its_threads(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: Any = {"sampler": "sghmc"} if named else {"recipe": default_recipe("sghmc", 200, 10)}
    monkeypatch.setattr(step_speed, "SMALL", 0)
    sample(net(3), (X, Y), **how, epochs=10, out=tmp_path / "before", progress=None)
    monkeypatch.undo()
    sample(net(3), (X, Y), **how, epochs=12, out=tmp_path / "before", progress=None)
    assert RunDir.open(tmp_path / "before").recipe.run.threads is None
    sample(net(3), (X, Y), **how, epochs=10, out=tmp_path / "new", progress=None)
    assert RunDir.open(tmp_path / "new").recipe.run.threads == 1
    sample(net(3), (X, Y), **how, epochs=10, out=tmp_path / "new", overrides=["run.threads=2"], progress=None)
    assert RunDir.open(tmp_path / "new").recipe.run.threads == 2


def test_work_is_counted() -> None:
    data = ImageData.from_tensors(X, Y)
    assert work(net(3), data) == 2 * (5 * 16 + 16 + 16 * 3 + 3)  # products, and no less than two for each parameter
    pictures = ImageData.from_tensors(torch.zeros(4, 3, 8, 8), Y[:4])
    conv = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 3))
    assert work(conv, pictures) == 2 * (64 * 4 * 27 + 256 * 3)


class Listening(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(("patience", "count"), [(0.0, 1), (600.0, 0)])
def test_a_long_search_for_the_speed_is_told_of(patience: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_speed, "PATIENCE", patience)
    listening = Listening()
    sample(net(3), (X, Y), epochs=1, progress=listening)
    assert sum("searching for the speed" in note for note in listening.notes) == count


def test_every_sampler_is_suggested() -> None:
    for name in [*SAMPLERS, "sgd"]:
        assert name in refusal(net(3), (X, Y), sampler="nothing-like-it")


def test_one_row_of_a_matrix_is_a_test_set(tmp_path: Path) -> None:
    """It counts as contiguous whatever its stride, and could not be sealed."""
    x = torch.randn(64, 5)
    net = torch.nn.Linear(5, 1)
    more: dict[str, Any] = {"likelihood": likelihoods.Gaussian(0.5), "epochs": 10, "progress": None}
    sample(net, (x, x[:, :1]), test=(x[:1], x[:1, 0]), out=tmp_path / "run", **more)


@pytest.mark.parametrize("pair", [(None, torch.zeros(4)), (torch.zeros(4, 5), None)])
def test_none_is_no_data(pair: Any) -> None:
    with pytest.raises(InputError, match=r"data must be \(inputs, labels\).*None"):
        sample(torch.nn.Linear(5, 2), pair)


def test_pictures_of_another_size_are_no_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that pools takes them; and a run that was begun with them goes on."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    x, y = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8), torch.arange(64) % 2
    larger = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8)
    call = partial(sample, net, (x, y), test=(larger, y[:8]), epochs=20, out=tmp_path / "run", progress=None)
    with pytest.raises(InputError, match=r"test: examples of shape \[3, 12, 12\], .* \[3, 8, 8\]: resize them"):
        call()
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as older:
        older.setattr(sampling, "check_sizes", lambda given: None)
        with pytest.raises(RunError, match="goes on"):
            call(time_budget=1e-3)
    assert len(call()) > 0
