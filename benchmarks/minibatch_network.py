"""A network 1–50–1 on sixty points through `atmc.sample`: spreads of its outputs over those of NUTS, by region.

    python benchmarks/minibatch_network.py --out results/minibatch [--seeds 0 1 2]

The call as it comes, at T = 1: noise of scale 0.1, Normal(0, 1) prior, all data in every step; reference
`tests/law/nuts_reference.npz`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import atmc
from minibatch_law import REFERENCE


def ratios(seed: int) -> dict[str, Any]:
    known = np.load(REFERENCE)
    x, y, grid = (torch.tensor(known[f"network_{n}"], dtype=torch.float32)[:, None] for n in ("x", "y", "grid"))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
    target = {"likelihood": atmc.likelihoods.Gaussian(0.1), "prior": atmc.priors.gaussian(1.0)}
    began = time.process_time()
    posterior = atmc.sample(model, (x, y), seed=seed, progress=None, **target)
    ratio = posterior.regress(grid).epistemic.sqrt().flatten().numpy() / known["network_sd"]
    at = grid.flatten().numpy()
    data = (np.abs(at + 1.35) < 0.6) | (np.abs(at - 1.25) < 0.7)
    regions = {"data": data, "gap": np.abs(at + 0.1) < 0.4, "outside": np.abs(at) > 2.5}
    found = {key: round(float(ratio[where].mean()), 3) for key, where in regions.items()}
    return {"seed": seed, **found, "samples": len(posterior), "cpu_s": time.process_time() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in options.seeds:
        rows.append(ratios(seed))
        print(rows[-1], flush=True)
    (options.out / "network.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
