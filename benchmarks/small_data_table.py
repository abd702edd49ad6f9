"""The table of `small_data.py`, from the fits that are there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


def write(out: Path) -> None:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in sorted(out.glob("fits/*/*.json")):
        one = json.loads(file.read_text())
        found.setdefault((one["set"], one["row"]), []).append(one)
    for (name, row), fits in sorted(found.items()):
        def mean(key: str) -> str:
            values = [f[key] for f in fits if key in f]
            if not values:
                return "-"
            m = sum(values) / len(values)
            s = math.sqrt(sum((v - m) ** 2 for v in values) / len(values) / max(1, len(values)))
            return f"{m:.3f}±{s:.3f}"
        print(f"{name:10s} {row:26s} {len(fits):3d}", *(f"{k} {mean(k)}" for k in ("rmse", "nll", "coverage90", "accuracy", "seconds", "noise", "samples")))
