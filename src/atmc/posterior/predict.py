"""Prediction in batches of inputs and groups of samples, so that any number of either fits in memory.

Usually all samples fit on the device (16 samples of 3.4 M parameters are 218 MB). Otherwise each group of samples is
loaded once and all batches pass through it, so that no weights are read twice for one prediction.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atmc.posterior.batched_forward import Forward, Loop, choose, make
from atmc.posterior.inputs import as_batches, fitting, home_of, pick_device
from atmc.posterior.uncertainty import Moments, Prediction

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior

# Examples per batch where the caller names none, by device type.
BATCH = {"cpu": 128, "cuda": 1000}
# Measuring costs about one batch's work; with fewer batches than this it is not worth it.
WORTH_MEASURING = 8
# Part of the free memory that samples may take; the rest is for activations.
SHARE = {"cpu": 0.25, "cuda": 0.5}


def predict(
    posterior: Posterior,
    inputs: Any,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    strategy: str = "auto",
    samples_at_once: int | None = None,
    check_scale: bool = True,
) -> Prediction:
    """The predictive for `inputs`; see `Posterior.predict`. Without `check_scale` nothing is read back before it."""
    home = home_of(inputs)
    target = pick_device(home, device)
    batches, count = as_batches(inputs, batch_of(batch_size, target), posterior.shape)
    if strategy == "graph" and target.type != "cuda":
        raise ValueError(f"strategy 'graph' is for CUDA devices, not for {target}: choose loop, together or auto")
    groups = grouped(posterior, target, samples_at_once)
    if len(groups) > 1 and isinstance(batches, Iterator):
        batches = list(batches)  # a one-pass stream has to be kept to be passed through the next group
    kept: list[Moments] = []
    parts: list[Prediction] = []
    with torch.no_grad():  # not inference_mode: its tensors could not be used in anybody's training afterwards
        for g, group in enumerate(groups):
            forward: Forward | None = None
            for b, raw in enumerate(batches):
                x = posterior.prepare(raw, target, dtype, check_scale=check_scale and g == b == 0)
                with fitting(posterior.model, posterior.shape, raw):
                    model, x = posterior.split(x, target)
                    forward = forward or ready(posterior, model, group, target, strategy, x, count)
                    found = forward.run(x)
                if len(groups) == 1:  # nothing will be added: keep the result and not its sums, four times as large
                    parts.append(found.result(len(posterior), posterior.classes))
                elif g == 0:
                    kept.append(found)
                else:
                    kept[b].merge_(found)
        parts += [sums.result(len(posterior), posterior.classes) for sums in kept]
        result = Prediction.concat(parts)
        if not bool(torch.isfinite(result.probs).all()):
            raise RuntimeError(blame(posterior, inputs))
    return result.to(home)


def batch_of(size: int | None, device: torch.device) -> int:
    """Examples per batch: as asked, or what suits the device."""
    if size is not None and size < 1:
        raise ValueError(f"batch_size must be at least 1, not {size}")
    return size or BATCH.get(device.type, 256)


def sample_probs(
    posterior: Posterior,
    inputs: Any,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Each sample's probabilities `[K, N, C]` in float32 on the CPU."""
    target = pick_device(home_of(inputs), device)
    batches, _ = as_batches(inputs, batch_of(batch_size, target), posterior.shape)
    groups = grouped(posterior, target, None)
    if len(groups) > 1 and isinstance(batches, Iterator):
        batches = list(batches)
    rows: list[list[Tensor]] = [[] for _ in range(len(posterior))]
    with torch.no_grad():
        for group in groups:
            states = on_device(posterior, group, target)
            for b, raw in enumerate(batches):
                x = posterior.prepare(raw, target, dtype, check_scale=group.start == b == 0)
                with fitting(posterior.model, posterior.shape, raw):
                    model, x = posterior.split(x, target)
                    loop = Loop(model, states, [1.0] * len(states), posterior.to_probs)
                    for k, probs in zip(group, loop.each(x), strict=True):
                        rows[k].append(probs.float().cpu())
    if not rows[0]:
        raise ValueError("there are no examples to predict: the input is empty")
    found = torch.stack([torch.cat(parts) for parts in rows])
    if not bool(torch.isfinite(found).all()):
        raise RuntimeError(blame(posterior, inputs))
    return found


def on_device(posterior: Posterior, group: range, target: torch.device) -> list[dict[str, Tensor]]:
    """The tensors of some samples on a device."""
    return [{name: tensor.to(target) for name, tensor in posterior.state(k).items()} for k in group]


def ready(
    posterior: Posterior,
    model: nn.Module,
    group: range,
    target: torch.device,
    strategy: str,
    x: Tensor,
    batches: int | None,
) -> Forward:
    """Samples of `group` with a strategy, on `model` (see `Posterior.split`); kept for the next call if all are."""
    whole = len(group) == len(posterior)
    key = (str(target), strategy, x.dtype, tuple(x.shape))
    if whole and posterior.held is not None and posterior.held[0] == key:
        return posterior.held[1]
    posterior.held = None  # let go of the old before taking the new
    states = on_device(posterior, group, target)
    weights = [float(posterior.weights[k]) for k in group]
    kind = strategy
    if strategy == "auto":
        measure = batches is None or batches >= WORTH_MEASURING
        kind = choose(model, states, weights, posterior.to_probs, x) if measure else "loop"
    forward = make(kind, model, states, weights, posterior.to_probs)
    if whole and (strategy != "auto" or measure):
        posterior.held = (key, forward)
    return forward


def grouped(posterior: Posterior, target: torch.device, at_once: int | None) -> list[range]:
    """Groups of consecutive samples that fit on the device; `at_once` overrides the estimate."""
    if len(posterior) == 0:
        raise ValueError("the posterior has no samples: run the sampler past its burn-in, then predict")
    if at_once is not None and at_once < 1:
        raise ValueError(f"samples_at_once must be at least 1, not {at_once}")
    fit = at_once or max(1, int(free_memory(target) * SHARE.get(target.type, 0.25) // max(posterior.bytes_each, 1)))
    count = math.ceil(len(posterior) / fit)
    size = math.ceil(len(posterior) / count)
    return [range(s, min(s + size, len(posterior))) for s in range(0, len(posterior), size)]


def free_memory(device: torch.device) -> int:
    """Free bytes on the device; 4 GiB if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def blame(posterior: Posterior, inputs: Any) -> str:
    """Why a prediction is not finite, in one line."""
    for k in range(len(posterior)):
        for name, tensor in posterior.state(k).items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return f"sample {k} is not finite (in {name}): the chain diverged there; leave that sample out"
    whole = getattr(inputs, "images", inputs)
    if isinstance(whole, Tensor) and whole.is_floating_point() and not bool(torch.isfinite(whole).all()):
        return "the inputs hold NaN or infinity: predictions for them mean nothing"
    return "the network's outputs are not finite though samples and inputs are: it overflows in this precision"
