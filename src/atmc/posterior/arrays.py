"""Check the arrays that metrics take: probabilities `[N, C]` or `[K, N, C]`, labels, weights, scores.

Probabilities may be NumPy arrays, torch tensors on any device, or lists, in any floating type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# 1,000 probabilities rounded to float16 sum to one within about 1e-3. Logits and unnormalised scores miss by far more.
SUM_TOLERANCE = 1e-2


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """`values` as a NumPy array; torch tensors are detached, moved to the CPU and, if bfloat16, widened."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        return np.asarray(values.numpy())
    return np.asarray(values)


def floor_of(values: npt.NDArray[Any]) -> float:
    """The smallest positive number that the type of `values` can hold.

    A probability stored as zero was below this before rounding, so logarithms read it as this: 6.0e-8 for float16
    (16.6 nats), 1.4e-45 for float32 (103 nats), 4.9e-324 for float64 (744 nats).
    """
    kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    return float(np.finfo(kind).smallest_subnormal)


def _verify(probs: Floats, what: str) -> None:
    if not np.isfinite(probs).all():
        row = int(np.argwhere(~np.isfinite(probs).all(axis=-1))[0, 0])
        raise ValueError(f"{what} are not finite (first at example {row}): the network that made them has diverged")
    if probs.min() < 0.0 or np.abs(probs.sum(axis=-1) - 1.0).max() > SUM_TOLERANCE:
        raise ValueError(f"{what} must be >= 0 and sum to 1 over the last axis: pass probabilities, not logits")


def check_probs(probs: Any) -> Floats:
    """`probs` as float64 `[N, C]`, or a ValueError in one line that says what is wrong with them."""
    array = to_numpy(probs)
    if array.ndim != 2 or array.shape[1] < 1:
        raise ValueError(f"probabilities must have the shape [examples, classes], not {list(array.shape)}")
    if array.shape[0] == 0:
        raise ValueError("there are no examples: probabilities have the shape [0, classes]")
    if array.dtype.kind != "f":
        raise ValueError(f"probabilities must be floating-point numbers, not {array.dtype}")
    wide = array.astype(np.float64)
    _verify(wide, "probabilities")
    return wide


def check_samples(probs: Any) -> npt.NDArray[Any]:
    """`probs` as `[K, N, C]` in its own type: K may be large, so widening is left to `each_sample`."""
    array = to_numpy(probs)
    if array.ndim != 3:
        raise ValueError(f"probabilities must have the shape [samples, examples, classes], not {list(array.shape)}")
    if array.shape[0] == 0:
        raise ValueError("there are no posterior samples: collect at least one before asking for a predictive")
    if array.shape[1] == 0 or array.shape[2] == 0:
        raise ValueError(f"there are no examples or no classes: probabilities have the shape {list(array.shape)}")
    if array.dtype.kind != "f":
        raise ValueError(f"probabilities must be floating-point numbers, not {array.dtype}")
    return array


def each_sample(probs: npt.NDArray[Any]) -> Iterator[Floats]:
    """Each posterior sample's `[N, C]` in float64, checked, one in memory at a time."""
    for k in range(probs.shape[0]):
        wide = probs[k].astype(np.float64)
        _verify(wide, f"probabilities of sample {k}")
        yield wide


def check_labels(labels: Any, examples: int, classes: int | None = None) -> Ints:
    """`labels` as int64 `[N]`, each within the classes; a class that never occurs is no error."""
    array = to_numpy(labels)
    if array.shape != (examples,):
        raise ValueError(f"labels must have the shape [{examples}], one per example, not {list(array.shape)}")
    if array.dtype.kind not in "iub":
        raise ValueError(f"labels must be whole numbers, not {array.dtype}")
    wide = array.astype(np.int64)
    if classes is not None and (wide.min() < 0 or wide.max() >= classes):
        raise ValueError(f"labels must lie in 0..{classes - 1}; found {int(wide.min())}..{int(wide.max())}")
    return wide


def check_weights(weights: Any, samples: int) -> Floats:
    """Sample weights, non-negative, divided by their sum; None means equal weights 1/K."""
    if weights is None:
        return np.full(samples, 1.0 / samples)
    array = to_numpy(weights).astype(np.float64)
    if array.shape != (samples,):
        raise ValueError(f"weights must have the shape [{samples}], one per sample, not {list(array.shape)}")
    if not np.isfinite(array).all() or array.min() < 0.0 or array.sum() <= 0.0:
        raise ValueError("weights must be finite, >= 0 and not all zero")
    return np.asarray(array / array.sum())


def positions(index: Any, length: int) -> list[int]:
    """Which of `length` things a list, an array or a mask names; negative numbers count from the end."""
    array = np.asarray(to_numpy(index))
    if array.ndim == 1 and array.dtype == np.bool_:
        if array.size != length:
            raise IndexError(f"a mask for {length} samples has {length} entries, not {array.size}")
        return [int(i) for i in np.flatnonzero(array)]
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise TypeError("samples are chosen by whole numbers, slices, or lists of whole numbers or of true and false")
    for i in array.tolist():
        if not -length <= i < length:
            raise IndexError(f"sample {i} of {length}")
    return [int(i) % length for i in array.tolist()]


def check_scores(scores: Any, what: str = "scores") -> Floats:
    """One finite number per example, `[N]` in float64, N >= 1."""
    array = to_numpy(scores).astype(np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{what} must have the shape [examples] with at least one example, not {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} are not finite (first at example {int(np.argmin(np.isfinite(array)))})")
    return array
