"""The largest stable learning rate of ResNet++, by the kind of branch gain; on digits, on a CPU, in minutes.

    python benchmarks/learning_rate.py [--out results/blocks]

Depth 56, width 4, SGD with momentum 0.9, batch 64, 80 steps, no warm-up, two starts each. Reported is the mean of the
last ten losses (infinite where it diverged) and the worst ratio of a ten-step mean to the lowest one before.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F

from atmc.data import load
from atmc.nn import resnetpp


def train(gain: str, lr: float, seed: int) -> tuple[float, float]:
    """(last ten-step loss, worst jump) of one run."""
    data = load("digits", "train")
    x = data.images.float() / 255.0
    x = (x - x.mean()) / x.std()
    torch.manual_seed(seed)
    model = resnetpp(56, 4, in_channels=1, gain=gain)
    optimizer = torch.optim.SGD(model.parameters(), lr, 0.9)
    losses = []
    for _ in range(80):
        index = torch.randint(len(x), (64,))
        loss = F.cross_entropy(model(x[index]), data.labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    smooth = [sum(losses[i : i + 10]) / 10 for i in range(len(losses) - 9)]
    lowest, jump = math.inf, 0.0
    for value in smooth:
        lowest = min(lowest, value)
        jump = max(jump, value / lowest) if math.isfinite(value) else math.inf
    return smooth[-1] if math.isfinite(smooth[-1]) else math.inf, jump


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/blocks"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for lr in (0.1, 0.2, 0.4):
        for gain in ("scale", "scalar", "fixed"):
            runs = [train(gain, lr, seed) for seed in (0, 1)]
            rows.append({"lr": lr, "gain": gain, "loss": [r[0] for r in runs], "jump": [r[1] for r in runs]})
            print(f"lr {lr:<4g} {gain:7s} " + "  ".join(f"loss {a:6.3f}, jump {b:5.2f}" for a, b in runs), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    record = {"command": "python benchmarks/learning_rate.py", "torch": torch.__version__, "rows": rows}
    text = json.dumps(record, indent=1).replace("Infinity", "null")
    (options.out / "learning-rate-digits.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
