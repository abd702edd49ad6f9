"""What a row of the HMC benchmark says, from its run directory: scores, ambiguity, temperatures, autocorrelation.

Needs only numpy and torch, since it runs where the chains ran: weights of 100 samples do not travel.

`ambiguity` is the one of the published rows: mean over samples of −log p(y) minus that of their geometric mean. The
label cancels: it is −log Σ_c exp(mean_k log p_k(c)), the mean KL of the geometric mean to the samples.
`mutual_information` is the mean KL of the samples to their arithmetic mean, the one that is scored.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from atmc.posterior import metrics
from atmc.storage.run_directory import RunDir

Floats = npt.NDArray[np.float64]
FLOOR = 1e-30
BURN_IN = 0.2  # of the samples, left out of `later` and of autocorrelations
TRACED = 500  # validation images whose log-probabilities travel
PROJECTIONS = 4  # of each tensor's weights


def curve(probs: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> dict[str, list[float]]:
    """Scores of the average of the first 1, 2, … samples."""
    rows = np.arange(len(labels))
    total, logs = np.zeros(probs.shape[1:]), np.zeros(probs.shape[1:])
    own_entropy, found = 0.0, []
    for count, sample in enumerate(probs.astype(np.float64), start=1):
        log = np.log(np.maximum(sample, FLOOR))
        total += sample
        logs += log
        own_entropy -= float((sample * log).sum(1).mean())
        mean = total / count
        entropy = -float((mean * np.log(np.maximum(mean, FLOOR))).sum(1).mean())
        found.append(
            {
                "error": float((mean.argmax(1) != labels).mean()),
                "nll": -float(np.log(np.maximum(mean[rows, labels], FLOOR)).mean()),
                "ece": float(metrics.ece(mean, labels)),
                "ambiguity": -float(np.log(np.exp(logs / count).sum(1)).mean()),
                "mutual_information": entropy - own_entropy / count,
            }
        )
    return {key: [round(row[key], 5) for row in found] for key in found[0]}


def singles(probs: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> dict[str, list[float]]:
    """Error and NLL of each sample by itself."""
    own = probs[:, np.arange(len(labels)), labels]
    return {
        "error": [round(float(e), 5) for e in (probs.argmax(2) != labels).mean(1)],
        "nll": [round(float(e), 5) for e in -np.log(np.maximum(own, FLOOR)).mean(1)],
    }


def autocorrelation(values: Floats, lags: Sequence[int] = (1, 2, 5, 10, 20)) -> dict[str, float]:
    """Correlation of samples so many apart, over all columns of `[samples, quantities]` together.

    The mean over the chain is taken off, so that independent samples have −1/samples, not 0.
    """
    x = values - values.mean(0)
    variance = float((x * x).mean())
    if variance == 0.0:
        return {}
    return {str(lag): round(float((x[lag:] * x[:-lag]).mean()) / variance, 4) for lag in lags if lag < len(x) // 2}


def projections(run: RunDir) -> tuple[list[str], Floats, Floats]:
    """Names of tensors; random projections of them, `[samples, tensors, PROJECTIONS]`; and root mean squares."""
    names: list[str] = []
    rows, sizes = [], []
    for sample in run.bank:
        names = sorted(sample)  # files have them in any order
        row, size = [], []
        for name in names:
            flat = sample[name].double().reshape(-1)
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            signs = torch.randint(0, 2, (PROJECTIONS, flat.numel()), generator=generator).double() * 2 - 1
            row.append((signs @ flat / math.sqrt(flat.numel())).numpy())
            size.append(float(flat.square().mean().sqrt()))
        rows.append(np.stack(row))
        sizes.append(size)
    return names, np.stack(rows), np.asarray(sizes)


def by_layer(run: RunDir, names: list[str], along: Floats, rms: Floats) -> dict[str, dict[str, float]]:
    """Of each tensor: temperatures (means over later samples), size, autocorrelation of projections, one sample apart.

    With several chains the correlation is the mean over chains.
    """
    drawn = [row for row in run.metrics() if row["event"] == "sample" and "tensors" in row]
    drawn = drawn[int(BURN_IN * len(drawn)) :]
    owners = np.array([run.bank.chain_of(i) for i in range(len(run.bank))])
    found = {}
    for index, name in enumerate(names):
        readings = np.array([row["tensors"][name] for row in drawn], dtype=np.float64).reshape(len(drawn), 2)
        lag: list[float] = []
        for chain in np.unique(owners):
            own = along[owners == chain, index]
            corr = autocorrelation(own[int(BURN_IN * len(own)) :], (1,))
            lag += corr.values()
        numbers = {
            "kinetic": _mean(readings[:, 0]),
            "configurational": _mean(readings[:, 1]),
            "rms": float(rms[-1, index]),
            "lag1": _mean(lag),
        }
        found[name] = {key: round(value, 4) for key, value in numbers.items() if math.isfinite(value)}
    return found


def _phase(row: dict[str, Any], cycle: int) -> float:
    """How far its cycle has come when a row of the log ends."""
    return ((row["step"] - 1) % cycle + 1) / cycle


def temperatures(logs: list[dict[str, Any]], cycle: int | None) -> dict[str, float]:
    """Means over the later rows of the log; that along the gradient noise also by how far its cycle has come."""
    later = logs[int(BURN_IN * len(logs)) :]
    readings = "kinetic_temperature", "noise_temperature", "kick_excess"
    found = {key: _mean(row.get(key) for row in later) for key in readings}
    if cycle:
        for name, low, high in (("start", 0.0, 0.4), ("middle", 0.4, 0.8), ("end", 0.8, 1.0)):
            part = [row for row in later if low < _phase(row, cycle) <= high]
            found[f"noise_temperature_{name}"] = _mean(row.get("noise_temperature") for row in part)
    last = later[-1] if later else {}
    found |= {key: float(last[key]) for key in last if key.startswith("thermostat_")}
    return {key: round(value, 4) for key, value in found.items() if math.isfinite(value)}


def training_loss(logs: list[dict[str, Any]], cycle: int | None) -> float:
    """Mean loss of the later rows, of cycles in their last tenth, where samples are taken."""
    later = logs[int(BURN_IN * len(logs)) :]
    if cycle:
        later = [row for row in later if _phase(row, cycle) > 0.9] or later
    return _mean(row["loss"] for row in later)


def agreement_of_chains(probs: npt.NDArray[np.float32], owners: npt.NDArray[np.int64]) -> dict[str, float]:
    """Of the averages of two chains, mean over pairs: share of equal answers, and total variation."""
    means = [probs[owners == chain].mean(0) for chain in np.unique(owners)]
    pairs = [(p, q) for i, p in enumerate(means) for q in means[:i]]
    if not pairs:
        return {}
    return {
        "agreement": round(_mean(metrics.agreement(p, q) for p, q in pairs), 4),
        "total_variation": round(_mean(metrics.total_variation(p, q) for p, q in pairs), 4),
    }


def summary(run: RunDir, cycle: int | None, warm: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers of a row, and arrays that are kept with it. Cycles begin after `warm` steps."""
    logs = [row for row in run.metrics() if row["event"] == "log" and row["phase"] == "main"]
    logs = [{**row, "step": row["step"] - warm} for row in logs]
    owners = np.array([run.bank.chain_of(i) for i in range(len(run.bank))])
    found: dict[str, Any] = {"samples": len(run.bank), "training_loss": round(training_loss(logs, cycle), 4)}
    found |= temperatures(logs, cycle)
    rates = [row["images_per_second"] for row in logs if row.get("images_per_second")]
    batch = run.recipe.data.batch_size
    found["ms_per_step"] = round(1000 * batch / float(np.median(rates)), 3) if rates else None
    found["rollbacks"] = sum(row["event"] == "rollback" for row in run.metrics())
    kept: dict[str, Any] = {}
    for split in ("validation", "test"):
        labels_of = run.labels(split)
        assert labels_of is not None
        labels, probs = labels_of.numpy(), run.predictions(split).numpy()
        grown = curve(probs, labels)
        later = curve(probs[int(BURN_IN * len(probs)) :], labels)
        found[split] = {
            "average": {key: values[-1] for key, values in grown.items()},
            "later": {key: values[-1] for key, values in later.items()},
            "curve": grown,
            "singles": singles(probs, labels),
            "chains": agreement_of_chains(probs, owners),
        }
        mean = probs.mean(0, dtype=np.float64).astype(np.float16)
        kept |= {f"{split}_mean": mean, f"{split}_labels": labels.astype(np.uint8)}
        kept[f"{split}_probs"] = probs.astype(np.float16)
        if split == "validation":
            some = np.linspace(0, len(labels) - 1, min(TRACED, len(labels))).round().astype(int)
            logp = np.log(np.maximum(probs[:, some, labels[some]], FLOOR))
            kept["traces"] = logp.astype(np.float16)
            one = logp[owners == owners[0]].astype(np.float64)
            found["autocorrelation"] = autocorrelation(one[int(BURN_IN * len(one)) :])
    names, along, rms = projections(run)
    kept |= {"chains": owners, "tensors": np.array(names), "projections": along.astype(np.float32)}
    kept["rms"] = rms.astype(np.float32)
    found["layers"] = by_layer(run, names, along, rms)
    return found, kept


def _mean(values: Iterable[Any]) -> float:
    known = [float(v) for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else math.nan
