"""What the fixed part of a network makes of the examples, computed once and kept.

A network of which only the last module is sampled computes the same features for every step and every sample. The run
is then one of that module on the features: its steps cost what the module costs.
"""

import hashlib
from dataclasses import replace

import torch
from torch import Tensor, nn

from atmc.common.errors import InputError
from atmc.data import ImageData, eval_batches
from atmc.data.streamed_source import IN_MEMORY
from atmc.engine.run_data import Examples, RunData
from atmc.nn.parts import Tail, features_of, last_module

_AT_ONCE = 256


def with_features(
    model: nn.Module, data: RunData, fixed: dict[str, Tensor], device: torch.device
) -> tuple[nn.Module, RunData]:
    """The last module alone and its inputs in place of the examples; both unchanged where that cannot be done."""
    few = data.train.subset(torch.arange(min(2, len(data.train))), "train")
    example, _ = next(iter(eval_batches(few, 2, "cpu", workers=0)))
    place = last_module(model.cpu(), [name for name, p in model.named_parameters() if p.requires_grad], example)
    if place is None:
        return model, data
    one = next(features_of(model, place, [example]))
    sets = {"train": data.train, **data.evaluate}
    if sum(len(found) for found in sets.values()) * one[0].numel() * one.element_size() > IN_MEMORY:
        return model, data
    model.to(device)
    seal = _seal(place, fixed)
    made = {split: _features(model, place, found, device, seal) for split, found in sets.items()}
    train = made.pop("train")
    return Tail(model.cpu(), place), RunData(train, dict(made), inputs=data.train)


def _features(model: nn.Module, place: str, data: Examples, device: torch.device, seal: str) -> ImageData:
    if not len(data):
        raise InputError(f"{data.name}: there are no examples")
    batches = eval_batches(data, min(_AT_ONCE, len(data)), device, workers=0)
    parts = [features.float().cpu() for features in features_of(model, place, (x for x, _ in batches))]
    made = ImageData.from_tensors(
        torch.cat(parts), data.labels, name=data.name, split=data.split, classes=tuple(data.classes)
    )
    # Known by what they were made of: another device makes the same ones with other roundings.
    return replace(made, digest=hashlib.sha256(f"{data.digest} {seal}".encode()).hexdigest())


def _seal(place: str, fixed: dict[str, Tensor]) -> str:
    """A checksum of what makes the features."""
    seal = hashlib.sha256(place.encode())
    for name, tensor in sorted(fixed.items()):
        seal.update(name.encode())
        seal.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return seal.hexdigest()
