"""A Python batch is read without running a word of it."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atmc.common.errors import InputError
from atmc.data.fetch.safe_pickle import read_batch


class Attack:
    """Unpickled the ordinary way, this leaves a file behind."""

    def __init__(self, call: Any, *args: object) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.args


def batch(**more: object) -> dict[object, object]:
    return {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2], **more}


@pytest.mark.parametrize("protocol", range(6))
def test_honest_batches_of_every_protocol(protocol: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    if protocol == 5:  # numpy's out-of-band route calls another function: not one these files were written with
        with pytest.raises(InputError, match="_frombuffer"):
            read_batch(pickle.dumps({b"data": pixels, b"labels": [0, 1, 2, 3]}, protocol=5), "b")
        return
    got, labels = read_batch(pickle.dumps({b"data": pixels, b"labels": [0, 1, 2, 3]}, protocol=protocol), "b")
    assert np.array_equal(got, pixels)
    assert labels == [0, 1, 2, 3]
    fortran = np.asfortranarray(pixels)
    assert np.array_equal(read_batch(pickle.dumps({"data": fortran, "labels": [0] * 4}, protocol=2), "b")[0], pixels)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_batch_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    attacks: list[object] = [
        Attack(os.system, f"touch {mark}"),
        Attack(eval, f"open({str(mark)!r}, 'w')"),
        Attack(exec, f"open({str(mark)!r}, 'w')"),
        Attack(open, str(mark), "w"),
        Attack(getattr, os, "system"),
        Attack(np.load, str(mark), None, True),
        Attack(np.memmap, str(mark), "u1", "w+", 0, (8,)),
    ]
    for attack in attacks:
        try:
            data = pickle.dumps(batch(**{"labels": attack}), protocol=protocol)
        except (pickle.PicklingError, TypeError):
            continue  # this protocol cannot write it
        with pytest.raises(InputError, match="b is refused"):
            read_batch(data, "b")
        assert not mark.exists()
    pickle.loads(pickle.dumps(Attack(open, str(mark), "w"), protocol=protocol)).close()
    assert mark.exists()  # the attack is a real one


@pytest.mark.parametrize(
    "content",
    [
        [1, 2, 3],
        {b"labels": [1, 2]},
        {b"data": np.zeros((2, 3072), np.uint8)},
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 2]},
        {b"data": np.array([None, print], dtype=object), b"labels": [1, 2]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2, 3]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 1000]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [True, "x"]},
        {b"data": np.zeros(3072, np.uint8), b"labels": [1]},
        {b"data": bytes(3072), b"labels": [1]},
    ],
)
def test_what_is_no_batch_is_refused(content: object) -> None:
    with pytest.raises(InputError, match="b is refused"):
        read_batch(pickle.dumps(content, protocol=2), "b")


def test_broken_pickles_are_refused() -> None:
    whole = pickle.dumps(batch(), protocol=2)
    rng = np.random.default_rng(3)
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InputError, match="b is refused"):
            read_batch(whole[:cut], "b")
    for _ in range(300):  # any flipped byte is refused or harmless; never another exception
        damaged = bytearray(whole)
        damaged[int(rng.integers(len(damaged) - 6200, len(damaged)) if rng.random() < 0.2 else rng.integers(200))] ^= (
            int(rng.integers(1, 256))
        )
        try:
            pixels, labels = read_batch(bytes(damaged), "b")
        except InputError:
            continue
        assert pixels.dtype == np.uint8
        assert len(pixels) == len(labels)
