"""What the run of a row says of itself, beside those that looked for settings: results/cifar10/exploration.json.

Probabilities say how good a row is, and not how it went: temperatures, thermostats and the training loss are in a run's
metrics. Manifests and metrics are enough (`find RUN -name manifest.json -o -name metrics.jsonl`): weights can stay
where the run was made.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atmc.chain.rundir import RunDir
from atmc.errors import InputError
from atmc.report.files import write

FILE = "exploration.json"
READINGS = ("configurational_temperature", "silent_share", "thermostat_q50", "thermostat_q99", "kinetic_temperature")
COLUMNS = ("epoch", "loss", "kinetic_temperature", "thermostat_q50", "thermostat_q99")
NOTE = (
    "50,000 training images, scores on the test set, the run's own (in float32; the stored samples have the digits of "
    "float16), single only; images_per_second of one of four chains; the trace is that of the first"
)


def keep(run: Path, row: str, called: str, folder: Path, *, note: str = NOTE, every: int = 5) -> dict[str, Any]:
    """Put the run of a row into exploration.json, in place of what it said of that row before; returns the entry."""
    path = folder / FILE
    if not path.exists():
        raise InputError(f"{folder} has no {FILE} to put the run into")
    found = entry(RunDir.open(run), row, called, note, every)
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept["runs"] = [other for other in kept["runs"] if not other["name"].endswith(f"(the row {row})")] + [found]
    write(path, in_lines(kept))
    return found


def entry(run: RunDir, row: str, called: str, note: str, every: int) -> dict[str, Any]:
    """Samples in the order of epochs, of all chains; of the log every so many rows, of the first chain."""
    logs = [log for log in run.metrics() if log["event"] == "log"]
    samples = [taken for taken in run.metrics() if taken["event"] == "sample"]
    samples.sort(key=lambda taken: (round(taken["epoch"], 1), taken["chain"]))
    first = [log for log in logs if log["chain"] == 0][::every]
    speeds = [log["images_per_second"] for log in logs if log.get("images_per_second")]
    model = run.recipe.model
    return {
        "name": f"{called} (the row {row})",
        "network": f"{model.name}-{model.depth}x{model.width}",
        "settings": {"recipe": f"{row}.toml"},
        "note": note,
        "samples": [said(taken) for taken in samples],
        "rollbacks": [short(other) for other in run.metrics() if other["event"] == "rollback"],
        "images_per_second": round(statistics.median(speeds)),
        "seconds": round(max(log["seconds"] for log in logs), 1),
        "trace": {"columns": COLUMNS, "rows": [[digits(log.get(key)) for key in COLUMNS] for log in first]},
    }


def said(taken: dict[str, Any]) -> dict[str, Any]:
    """A sample: when, of which chain, its own scores on the test set, and the readings there."""
    alone = taken["scores"]["test"]["single"]
    return {
        "epoch": round(taken["epoch"], 1),
        "chain": taken["chain"],
        **{f"single {score}": digits(alone[score]) for score in ("accuracy", "nll")},
        **{key: digits(taken[key]) for key in READINGS if taken.get(key) is not None},
    }


def short(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics with its numbers in four digits."""
    return {key: digits(value) if isinstance(value, float) else value for key, value in row.items()}


def digits(value: float | None) -> float | None:
    """Four of them."""
    return None if value is None else float(f"{value:.4g}")


def in_lines(kept: dict[str, Any]) -> str:
    """JSON with one run in a line, so that a new one is a line in a diff."""
    runs: Sequence[str] = [json.dumps(run, ensure_ascii=False) for run in kept["runs"]]
    head = [f' "{key}": {json.dumps(kept[key], ensure_ascii=False)},' for key in kept if key != "runs"]
    return "\n".join(["{", *head, ' "runs": [', ",\n".join(f"  {run}" for run in runs), " ]", "}", ""])
