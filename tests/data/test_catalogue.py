"""Data sets by name, and the words of a name that is wrong."""

from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.common.errors import InputError, RunError
from atmc.data import (
    ArraySource,
    DeviceBatches,
    EvalBatches,
    ImageData,
    StreamBatches,
    available,
    default_root,
    eval_batches,
    fetch,
    hold_out,
    load,
    open_source,
    train_batches,
)
from atmc.data.fetch import cifar10


def test_digits() -> None:
    train, test = load("digits", "train"), load("digits", "test")
    assert (len(train), len(test)) == (1297, 500)
    assert train.shape == (1, 8, 8)
    assert train.images.dtype == torch.uint8
    assert int(train.images.max()) == 255
    assert torch.bincount(test.labels).min() >= 48  # each class gives its share
    assert (train.mean, train.std) == (test.mean, test.std)
    assert float(train.images.float().mean()) / 255 == pytest.approx(train.mean[0], abs=1e-5)
    # The split is fixed for ever: results on it compare.
    assert train.digest[:16] == "905968d00023949b"
    assert test.digest[:16] == "cd5284e8d44643c9"
    # No image is in both (there are no duplicates in the set).
    assert len(torch.cat([train.images, test.images]).reshape(1797, -1).unique(dim=0)) == 1797


def test_digits_with_few_labels() -> None:
    """`digits?train=N` teaches N images and tests on all others, by the rule of `digits`."""
    train, test = load("digits?train=200"), load("digits?train=200", "test")
    assert (len(train), len(test)) == (200, 1597)
    assert torch.bincount(train.labels).tolist() == pytest.approx([20] * 10, abs=1)
    assert len(torch.cat([train.images, test.images]).reshape(1797, -1).unique(dim=0)) == 1797
    assert (train.mean, train.std) == (test.mean, test.std)
    assert train.mean != load("digits").mean, "standardised by what may be known: the training images"
    # Fixed for ever too, and part of every larger training set.
    assert train.digest[:16] == "ebe31f62bf781de4"
    larger = load("digits?train=300").images.reshape(300, -1)
    assert len(torch.cat([larger, train.images.reshape(200, -1)]).unique(dim=0)) == 300
    assert load("digits?train=1297").digest == load("digits").digest
    assert open_source("digits?train=200").digest == train.digest
    assert fetch("digits?train=200") is None
    for wrong, words in (
        ("digits?train=9", "choose 10 to 1796"),
        ("digits?train=1797", "choose 10 to 1796"),
        ("digits?train=few", "no whole number"),
        ("digits?test=200", "unknown option 'test'"),
        ("digits:200", "unknown data set"),
    ):
        with pytest.raises(InputError, match=words):
            load(wrong)


def test_hold_out_is_fixed_and_stratified() -> None:
    train = load("digits")
    rest, held = hold_out(train, 200)
    assert (len(rest), len(held)) == (1097, 200)
    assert held.split == "validation"
    assert rest.split == "train"
    share = torch.bincount(held.labels) / torch.bincount(train.labels) * 1297
    assert float((share - 200).abs().max()) < 12
    torch.manual_seed(1)
    assert hold_out(train, 200)[1].digest == held.digest
    both = torch.cat([rest.images, held.images]).reshape(1297, -1)
    assert torch.equal(both.unique(dim=0), train.images.reshape(1297, -1).unique(dim=0))
    # A larger validation set contains the smaller one.
    larger = hold_out(train, 300)[1].images.reshape(300, -1)
    assert len(torch.cat([larger, held.images.reshape(200, -1)]).unique(dim=0)) == 300
    assert len(hold_out(train, 0)[1]) == 0
    with pytest.raises(InputError, match="cannot hold out 1297 of 1297"):
        hold_out(train, 1297)


def test_synthetic_data_of_any_shape() -> None:
    train = load("synthetic:2x6x5?classes=4&train=400&test=100&seed=3")
    assert train.images.shape == (400, 2, 6, 5)
    assert torch.bincount(train.labels).tolist() == [100] * 4
    test = load("synthetic:2x6x5?classes=4&train=400&test=100&seed=3", "test")
    assert len(test) == 100
    assert load("synthetic:2x6x5?classes=4&train=400&seed=3").digest == train.digest
    assert load("synthetic:2x6x5?classes=4&train=400&seed=4").digest != train.digest
    # It can be learned: the nearest class mean of the training set is right about the test set.
    centres = torch.stack([train.images[train.labels == c].float().mean(0) for c in range(4)])
    guess = (test.images.float()[:, None] - centres).flatten(2).square().sum(-1).argmin(1)
    assert float((guess == test.labels).float().mean()) > 0.9
    assert float(train.images.float().mean()) / 255 == pytest.approx(train.mean[0], abs=0.05)
    assert load("synthetic:12?train=20").images.shape == (20, 12)
    x, _ = DeviceBatches(load("synthetic:12?train=20"), 5).batch(0)
    assert x.shape == (5, 12)
    assert load("synthetic").shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar-10", r"unknown data set 'cifar-10'; did you mean cifar10\?"),
        ("nonsense", "there are digits, cifar10"),
        ("synthetic:3x0x3", "is no size such as"),
        ("synthetic:3x4x4?clases=3", r"unknown option 'clases'; did you mean classes\?"),
        ("synthetic:3x4x4?classes=few", "classes = 'few' is no whole number"),
        ("folder:", "name a path after folder:"),
        ("folder:x?channels=2", "channels 1 or 3"),
        ("folder:x?crop=big", "crop = 'big' is no number"),
    ],
)
def test_a_wrong_name_is_one_clear_line(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_wrong_split_and_an_absent_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="digits has no split 'valid'"):
        load("digits", "valid")
    for name in ("cifar10", "mnist", "fashion-mnist"):
        with pytest.raises(InputError, match=f"is missing; run `atmc data get {name}`"):
            load(name, root=tmp_path)
    with pytest.raises(InputError, match="unknown data set"):
        fetch("imagenet", tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        fetch("mnist", tmp_path, source=tmp_path / "no")
    assert fetch("digits", tmp_path) is None


def test_the_list_knows_what_is_whole(tiny_cifar: Any, tmp_path: Path) -> None:
    rows = {row.name: row for row in available(tmp_path)}
    named = ["digits", "cifar10", "fashion-mnist", "mnist", "imagenette", "imagewoof", "tiny-imagenet"]
    assert list(rows) == [*named, "imagenet-mini", "folder", "shards", "synthetic"]
    assert rows["digits"].state == "ready"
    assert rows["cifar10"].state == "absent"
    assert rows["cifar10"].detail == "atmc data get cifar10"
    assert rows["folder"].state == "pattern"
    tiny_cifar.folder(cifar10.folder(tmp_path), tiny_cifar.binary)  # well-made, but not the published files
    row = {row.name: row for row in available(str(tmp_path))}["cifar10"]
    assert row.state == "damaged"
    assert "data_batch_1.bin is incomplete or altered" in row.detail


def test_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATMC_DATA", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("ATMC_DATA")
    assert default_root() == Path.home() / ".cache" / "atmc"


def test_the_kind_of_batches_follows_the_data() -> None:
    data = load("synthetic:1x4x4?train=40")
    assert isinstance(train_batches(data, 8), DeviceBatches)
    assert isinstance(eval_batches(data, 8), EvalBatches)
    source = open_source("synthetic:1x4x4?train=40")
    assert isinstance(source, ArraySource)
    stream = train_batches(source, 8, augment="crop-flip", seed=1, workers=0)
    assert isinstance(stream, StreamBatches)
    whole = train_batches(data, 8, augment="crop-flip", seed=1)
    assert torch.equal(stream.batch(2)[0], whole.batch(2)[0])
    for a, b in zip(eval_batches(source, 16, workers=0), eval_batches(data, 16), strict=True):
        assert torch.equal(a[0], b[0])


def test_tensors_of_ones_own() -> None:
    data = ImageData.from_tensors(torch.randint(0, 256, (20, 3, 4, 4), dtype=torch.uint8), torch.arange(20) % 5)
    assert data.classes == ("0", "1", "2", "3", "4")
    x, _ = DeviceBatches(data, 20).batch(0)
    assert x.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-4)
    assert x.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-4)
    constant = ImageData.from_tensors(torch.full((4, 1, 2, 2), 9, dtype=torch.uint8), torch.zeros(4))
    assert constant.std == (1.0,)
    with pytest.raises(ValueError, match="20 images but 3 labels"):
        ImageData.from_tensors(data.images, torch.zeros(3))


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match=r"mnist could not be stored under .*: Not a directory"):
        fetch("mnist", tmp_path / "file", source=tmp_path)
