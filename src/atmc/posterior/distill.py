"""Distillation: train one network to match the predictive of all samples.

The student minimises mean_x KL(p̄(x) ‖ q(x)) = mean_x Σ_c p̄_c log(p̄_c / q_c). Inputs need no labels. The student has no
epistemic uncertainty; `Distilled.scores` compares its scores with the ensemble's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from atmc.posterior.inputs import pick_device
from atmc.posterior.metrics import scores
from atmc.posterior.predict import predict
from atmc.posterior.uncertainty import entropy

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior


@dataclass(frozen=True)
class Distilled:
    """The student, its training loss and its scores."""

    model: nn.Module
    posterior: Posterior  # the student as a posterior of one sample: predict, save, export
    divergence: list[float]  # mean KL(p̄ ‖ q) over each epoch, nats
    scores: dict[str, dict[str, float]]  # "student", "ensemble", "single"; empty where nothing was held out


def distill(
    posterior: Posterior,
    x: Any,
    *,
    student: nn.Module | None = None,
    epochs: int = 30,
    batch_size: int = 128,
    lr: float = 1e-3,
    seed: int = 0,
    held_out: tuple[Any, Any] | None = None,
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Distilled:
    """Train `student` (default: a copy of the last sample) on `x` to match the predictive.

    The optimizer is AdamW with a cosine schedule from `lr` to zero.

    Args:
        x: a tensor `[N, ...]` (uint8 pixels or normalised floats) or a data set.
        held_out: (inputs, labels) to score at the end.
        augment: `augment(batch, generator)`; the teacher then predicts each augmented batch, K forward passes a step.
    """
    if len(posterior) == 0:
        raise ValueError("the posterior has no samples to distil")
    posterior.need_classes("distilling is for classifiers", "use posterior.regress(x), or posterior[-5:] to be faster")
    if epochs < 1 or batch_size < 1:
        raise ValueError("epochs and batch_size must be at least 1")
    inputs = torch.as_tensor(getattr(x, "images", x))
    where = pick_device(inputs.device, device)
    model = copy.deepcopy(posterior[-1] if student is None else student).to(where).train().requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    teacher = posterior.predict(inputs, device=where).probs.to(where) if augment is None else None

    size = min(batch_size, len(inputs))
    steps = -(-len(inputs) // size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    history: list[float] = []
    first = True
    for epoch in range(epochs):
        total = torch.zeros((), device=where)
        for rows in torch.split(torch.randperm(len(inputs), generator=generator), size):
            batch = inputs[rows.to(inputs.device)]
            if augment is not None:
                batch = augment(batch, generator)
            if teacher is None:
                target = predict(posterior, batch, device=where, check_scale=first).probs.to(where)
            else:
                target = teacher[rows]
            first = False
            loss = divergence(target.float(), model(posterior.prepare(batch, where)))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(rows)
        history.append(float(total) / len(inputs))
        if not history[-1] < 1e3:  # nats: no network that still learns is so far away; NaN is not below it either
            raise RuntimeError(f"distillation diverged in epoch {epoch + 1}: use a smaller lr than {lr}")
        if progress is not None:
            progress(epoch + 1, history[-1])
    model = model.cpu().eval().requires_grad_(False)
    single = alone(posterior, model)
    return Distilled(model, single, history, compare(posterior, single, held_out, where) if held_out else {})


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """mean KL(target ‖ softmax(logits)) in nats: cross-entropy less the target's own entropy."""
    cross = -(target * functional.log_softmax(logits.float(), dim=-1)).sum(dim=-1)
    return (cross - entropy(target)).mean()


def alone(posterior: Posterior, model: nn.Module) -> Posterior:
    """`model` as a posterior of one sample that takes the same inputs."""
    from atmc.posterior.posterior import Posterior as Kind

    return Kind(
        [model],
        model,
        mean=posterior.mean,
        std=posterior.std,
        classes=posterior.classes,
        shape=posterior.shape,
        example=posterior.example,
        crop=posterior.crop,
    )


def compare(
    posterior: Posterior, student: Posterior, held_out: tuple[Any, Any], device: torch.device
) -> dict[str, dict[str, float]]:
    """Scores of the student, of the whole posterior and of its last sample on held-out data."""
    x, y = held_out
    rows = {"student": student, "ensemble": posterior, "single": posterior[-1:]}
    return {name: scores(p.predict(x, device=device).probs, y) for name, p in rows.items()}
