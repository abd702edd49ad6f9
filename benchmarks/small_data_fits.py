"""One fit of `small_data.py`: a set, a split and a row, scored on the split's test part."""

from __future__ import annotations

import copy
import math
import time
import warnings
from typing import Any

import numpy as np
import torch
from small_data_sets import HIDDEN, Split
from torch import Tensor, nn
from torch.nn import functional

import atmc
from atmc.posterior import Posterior, metrics
from atmc.target.likelihoods import Heteroscedastic

MEMBERS = 5
# Rows of `atmc.sample`: what is passed beside network, data and epochs.
SAMPLED: dict[str, dict[str, Any]] = {
    "atmc": {},
    "atmc-auto": {"temperature": "auto"},
    "atmc-heteroscedastic": {"likelihood": "heteroscedastic"},
    "atmc-student-t": {"likelihood": "student-t"},
}
STEPS = 20_000  # of a chain, about


def network(inputs: int, outputs: int, hidden: int, seed: int) -> nn.Sequential:
    """The network of the published protocol: one hidden layer of ReLU units."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def fit(name: str, row: str, data: Split, split: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Scores of one row on one split, with the seconds that the fit took."""
    began = time.perf_counter()
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
    seconds = time.perf_counter() - began
    scores = posterior if isinstance(posterior, dict) else posterior.evaluate(data.test_x, data.test_y)["predictive"]
    return {"set": name, "row": row, "split": split, "seconds": seconds, **scores, **more, "warnings": said}


def _sampled(name: str, row: str, data: Split, split: int, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    how = {**SAMPLED[row], **{key: value for key, value in settings.items() if key not in ("steps", "batch")}}
    batch = settings.get("batch") or _batch(len(data.x))
    batch = min(batch, len(data.x))
    epochs = max(1, round(settings.get("steps", STEPS) * batch / len(data.x)))
    outputs = 2 if "heteroscedastic" in str(how.get("likelihood")) else 1
    model = _network(name, data, outputs, split)
    posterior = atmc.sample(
        model, (data.x, data.y), epochs=epochs, batch_size=batch, seed=split, progress=None, **how
    )
    more: dict[str, Any] = {"samples": len(posterior), "epochs": epochs, "batch": batch}
    if name in HIDDEN:
        more["noise"] = float(posterior.regress(data.test_x).aleatoric.mean().sqrt())
    return posterior, more


def _batch(count: int) -> int:
    """All examples of a small set at once."""
    return count if count <= 2000 else 500


def _network(name: str, data: Split, outputs: int, seed: int) -> nn.Module:
    if name in HIDDEN:
        return network(data.x.shape[1], outputs, HIDDEN[name], seed)
    raise NotImplementedError(name)


def _ensemble(name: str, row: str, data: Split, split: int) -> tuple[Posterior, dict[str, Any]]:
    """Five networks with learned noise, each stopped where a tenth of the training part of its own is best."""
    members = []
    y = data.y.double()
    center, spread = float(y.mean()), float(y.std(unbiased=False))
    law = Heteroscedastic(center=center, spread=spread)
    shared = row == "ensemble"
    for member in range(MEMBERS):
        model: nn.Module = network(data.x.shape[1], 1 if shared else 2, HIDDEN[name], 1000 * split + member)
        if shared:
            model = atmc.nn.WithNoise(model, 1)
        members.append(_trained(model, data.x, y, law, 1000 * split + member))
    return Posterior(members, members[0], likelihood=law), {"samples": MEMBERS}


def _trained(model: nn.Module, x: Tensor, y: Tensor, law: Any, seed: int, steps: int = 4000) -> nn.Module:
    """Adam with a cosine from 0.01 to 0; the weights of the least held-out loss."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    held, kept = order[: len(x) // 10], order[len(x) // 10 :]
    batch = min(len(kept), 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1e-4)
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
    batch = min(len(data.x), 512)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.x, t), batch_size=batch, shuffle=True)
    model = network(data.x.shape[1], 1, HIDDEN[name], split)
    epochs = max(50, min(1000, 20_000 * batch // len(data.x)))
    la, _, _, _ = marglik_training(
        model=model,
        train_loader=loader,
        likelihood="regression",
        hessian_structure="kron",
        n_epochs=epochs,
        optimizer_kwargs={"lr": 1e-2},
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
