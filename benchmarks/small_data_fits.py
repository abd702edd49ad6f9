"""One fit of `small_data.py`: a set, a split and a row, scored on the split's test part."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import atmc
from atmc.posterior import Posterior
from atmc.target.likelihoods import Categorical, Heteroscedastic
from small_data_sets import HIDDEN, RANDOM, Split

MEMBERS = 5
# Rows of `atmc.sample`: what is passed beside network, data and epochs.
SAMPLED: dict[str, dict[str, Any]] = {
    "atmc": {},
    "atmc-auto": {"temperature": "auto"},
    "atmc-one-scale": {"likelihood": "learned-noise"},
    "atmc-heteroscedastic": {"likelihood": "heteroscedastic"},
}


def network(inputs: int, outputs: int, hidden: int, seed: int) -> nn.Sequential:
    """The network of the published protocol: one hidden layer of ReLU units."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def fit(name: str, row: str, data: Split, split: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Scores of one row on one split, with the seconds that the fit took."""
    began, used = time.perf_counter(), time.process_time()
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if row.startswith("ensemble"):
            found = _ensemble(name, row, data, split)
        elif row == "laplace":
            found = _laplace(name, data, split)
        else:
            found = _sampled(name, row, data, split, settings)
        said = sorted({str(w.message) for w in caught if issubclass(w.category, UserWarning)})
    posterior, more = found
    more |= {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
    more["device"] = "cuda" if torch.cuda.is_available() and row.startswith("atmc") else "cpu"
    scores = posterior if isinstance(posterior, dict) else posterior.evaluate(data.test_x, data.test_y)["predictive"]
    if name not in HIDDEN:
        more["guess"] = math.log(int(data.y.max()) + 1)
    return {"set": name, "row": row, "split": split, **scores, **more, "warnings": said}


def _sampled(name: str, row: str, data: Split, split: int, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    how = {**SAMPLED[row], **{key: value for key, value in settings.items() if key != "steps"}}
    if "steps" in settings:
        how["epochs"] = max(1, settings["steps"] // max(16, len(data.x) // 64))
    model = _network(name, data, 2 if how.get("likelihood") == "heteroscedastic" else 1, split)
    posterior = atmc.sample(model, (data.x, data.y), seed=split, progress=None, **how)
    more: dict[str, Any] = {"samples": len(posterior)}
    if posterior.pilots:
        more["pilots"] = list(posterior.pilots)
    if name in HIDDEN:
        more["noise"] = float(posterior.regress(data.test_x).aleatoric.mean().sqrt())
    return posterior, more


def _network(name: str, data: Split, outputs: int, seed: int) -> nn.Module:
    """One hidden layer for rows of numbers, two convolutions for the 28 x 28 images."""
    if name in HIDDEN:
        return network(data.x.shape[1], outputs, HIDDEN[name], seed)
    torch.manual_seed(seed)
    classes = int(data.y.max()) + 1
    if name == RANDOM:
        return _random_network(data.x.shape[1:], classes, np.random.default_rng([seed, 2]))
    if data.x.shape[-1] == 28:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 49, classes),
        )
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(data.x.shape[1:]), 50), nn.ReLU(), nn.Linear(50, classes))


def _random_network(shape: Sequence[int], classes: int, rng: np.random.Generator) -> nn.Module:
    """One to three layers of 16 to 256 units, of any usual activation; images may get a convolution first."""
    activation = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU)[rng.integers(4)]
    layers: list[nn.Module] = []
    if len(shape) == 3 and rng.random() < 0.5:
        channels = int(rng.choice([8, 16, 32]))
        layers += [nn.Conv2d(shape[0], channels, 3, stride=2, padding=1), activation()]
        shape = (channels, (shape[1] + 1) // 2, (shape[2] + 1) // 2)
    layers.append(nn.Flatten())
    width = math.prod(shape)
    for _ in range(rng.integers(1, 4)):
        new = int(2 ** rng.integers(4, 9))
        layers += [nn.Linear(width, new), activation()]
        width = new
    return nn.Sequential(*layers, nn.Linear(width, classes))


def _ensemble(name: str, row: str, data: Split, split: int) -> tuple[Posterior, dict[str, Any]]:
    """Five networks, each stopped where a tenth of the training part of its own is best; regressions learn the noise.

    `ensemble` has one standard deviation for all inputs, `ensemble-heteroscedastic` an output for it.
    """
    members: list[nn.Module] = []
    law: Any = Categorical()
    y = data.y
    if name in HIDDEN:
        y = y.double()
        law = Heteroscedastic(center=float(y.mean()), spread=float(y.std(unbiased=False)))
    for member in range(MEMBERS):
        seed = 1000 * split + member
        model = _network(name, data, 2 if row.endswith("heteroscedastic") else 1, seed)
        if name in HIDDEN and row == "ensemble":
            model = atmc.nn.WithNoise(model, 1)
        members.append(_trained(model, data.x, y, law, seed, *((4000, 0.01) if name in HIDDEN else (2000, 0.003))))
    return Posterior(members, members[0], likelihood=law), {"samples": MEMBERS}


def _trained(model: nn.Module, x: Tensor, y: Tensor, law: Any, seed: int, steps: int, lr: float) -> nn.Module:
    """AdamW with a cosine from `lr` to 0; the weights of the least held-out loss."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    held, kept = order[: len(x) // 10], order[len(x) // 10 :]
    batch = min(len(kept), 256 if law.task == "regression" else 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    best, state = math.inf, copy.deepcopy(model.state_dict())
    for step in range(steps):
        rows = kept[torch.randint(len(kept), (batch,), generator=generator)]
        loss = law.nll(model(x[rows]), y[rows]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 25 == 24:
            with torch.no_grad():
                value = float(law.nll(model(x[held]), y[held]).mean())
            if value < best:
                best, state = value, copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    return model.eval()


def _laplace(name: str, data: Split, split: int) -> tuple[dict[str, float], dict[str, Any]]:
    """laplace-torch, if it is installed: all weights, Kronecker factors, prior and noise by marginal likelihood."""
    from laplace.marglik_training import marglik_training

    y = data.y.double()
    center, spread = y.mean(), y.std(unbiased=False)
    t = ((y - center) / spread).float()[:, None]
    batch, steps = min(len(data.x), 256), 4000  # as for a member of the ensemble
    whole = torch.utils.data.TensorDataset(data.x, t)
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(whole), batch, drop_last=False)
    loader: Any = torch.utils.data.DataLoader(whole, batch_size=None, sampler=order)
    torch.manual_seed(split)
    epochs = max(20, steps // len(order))
    la, _, _, _ = marglik_training(
        model=network(data.x.shape[1], 1, HIDDEN[name], split),
        train_loader=loader,
        likelihood="regression",
        hessian_structure="kron",
        n_epochs=epochs,
        n_epochs_burnin=epochs // 10,
        marglik_frequency=max(1, epochs // 200),
        optimizer_kwargs={"lr": 1e-2},
        scheduler_cls=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_kwargs={"T_max": epochs * len(order)},
        prior_structure="layerwise",
    )
    with torch.no_grad():
        mean, variance = la(data.test_x)
    std = (variance.reshape(-1).double() + float(la.sigma_noise) ** 2).sqrt() * spread
    error = data.test_y.double() - (mean.reshape(-1).double() * spread + center)
    nll = 0.5 * (error / std).square() + std.log() + 0.5 * math.log(2 * math.pi)
    inside = (error.abs() <= 1.6448536 * std).double().mean()
    scores = {"rmse": float(error.square().mean().sqrt()), "nll": float(nll.mean()), "coverage90": float(inside)}
    return scores, {"samples": 1}
