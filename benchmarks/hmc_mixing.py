"""Which directions have not mixed? R-hat and ESS of predictions, and the slowest layers, of the rows in results/hmc.

The seeds of a row are chains of one posterior: R-hat compares them, and so do agreement and the scores of all together.

    python benchmarks/hmc_mixing.py [results/hmc]    # prints a table and writes mixing.json beside the rows

From the log-probabilities of 500 validation labels and the projections of weights that every row keeps (.npz). The
first fifth of the samples of each chain is left out.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from atmc.diagnose.convergence import mixing_of
from atmc.posterior import metrics
from hmc_scores import BURN_IN, agreement_of_chains, autocorrelation


def later(chains: Any) -> Any:
    """Whether each sample is beyond the burn-in of its chain."""
    keep = np.zeros(len(chains), dtype=bool)
    for chain in np.unique(chains):
        own = np.flatnonzero(chains == chain)
        keep[own[int(BURN_IN * len(own)) :]] = True
    return keep


def of_row(paths: list[Path]) -> dict[str, Any]:
    """Of the seeds of one row; those that have come further are cut to as many samples of each chain."""
    files = [np.load(path) for path in paths]
    length = min(int(np.bincount(kept["chains"]).min()) for kept in files)
    first = [_first(kept["chains"], length) for kept in files]
    chains = np.concatenate(
        [number * 100 + kept["chains"][some] for number, (kept, some) in enumerate(zip(files, first, strict=True))]
    )
    keep = later(chains)
    each = (
        np.concatenate([kept["traces"][some] for kept, some in zip(files, first, strict=True)])[keep]
        .astype(np.float64)
        .T
    )
    found = mixing_of(each, -each.mean(0), chains[keep].tolist(), 200, 0)
    # Rows measured before projections were sorted by name came without them.
    known = all("projections" in kept for kept in files)
    along = (
        np.concatenate([kept["projections"][some] for kept, some in zip(files, first, strict=True)])
        if known
        else np.empty(0)
    )
    names = files[0]["tensors"] if known else []
    lags: dict[str, float] = {}
    for index, name in enumerate(names):
        values = [autocorrelation(along[keep & (chains == c), index], (1,)).get("1") for c in np.unique(chains)]
        some = [value for value in values if value is not None]
        if some:
            lags[str(name)] = float(np.mean(some))
    slow = sorted(lags.items(), key=lambda item: -item[1])
    return {
        "row": paths[0].stem.rpartition("-")[0],
        "seeds": len(paths),
        "chains": found.chains,
        "draws": found.draws,
        "rhat_loss": _short(found.rhat_loss),
        "rhat_median": _short(np.nanmedian(found.rhat)),
        "rhat_q95": _short(np.nanquantile(found.rhat, 0.95)),
        "ess_median": _short(np.nanmedian(found.ess)),
        "ess_loss": _short(found.ess_loss),
        "p_value": _short(found.p_value),
        "prediction_lag1": _short(autocorrelation(each[:, chains[keep] == chains[0]].T, (1,)).get("1", np.nan)),
        "weights_lag1_median": _short(np.median(list(lags.values())) if lags else np.nan),
        "slowest": {name: _short(value) for name, value in slow[:4]},
        "fastest": {name: _short(value) for name, value in slow[-4:]},
        **together(files),
    }


def _first(chains: Any, count: int) -> Any:
    """Which samples are among the first `count` of their chain."""
    return np.sort(np.concatenate([np.flatnonzero(chains == chain)[:count] for chain in np.unique(chains)]))


def together(files: list[Any]) -> dict[str, Any]:
    """How far averages of all samples of the seeds agree, and the scores of the average of them all, on each split."""
    if len(files) < 2:
        return {}
    found = {}
    for split in ("validation", "test"):
        means = np.stack([kept[f"{split}_mean"].astype(np.float32) for kept in files])
        scores = metrics.scores(means.mean(0), files[0][f"{split}_labels"].astype(np.int64))
        pairs = agreement_of_chains(means, np.arange(len(means)))
        found[split] = {**pairs, "error": _short(1 - scores["accuracy"]), "nll": _short(scores["nll"])}
    return found


def _short(value: Any) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/hmc")
    seeds: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.glob("*-[0-9].npz")):
        row = json.loads(path.with_suffix(".json").read_text())
        seeds[f"{row['row']} {row['wanted_steps']}"].append(path)
    rows = [of_row(paths) for paths in seeds.values()]
    for row in rows:
        numbers = " ".join(f"{key} {row[key]}" for key in ("rhat_median", "rhat_q95", "ess_median", "prediction_lag1"))
        print(f"{row['row']:22} {row['chains']} × {row['draws']}  {numbers}  slowest {row['slowest']}")
    (folder / "mixing.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
