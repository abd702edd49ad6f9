"""Keep the temperatures, thermostats and training loss of a row's run in results/cifar10/exploration.json.

Manifests and metrics are enough (`find RUN -name manifest.json -o -name metrics.jsonl`); weights are not needed.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from atmc.common.errors import InputError
from atmc.report.output_files import write
from atmc.storage.run_directory import RunDir
from cifar10_store import check_name

FILE = "exploration.json"
READINGS = ("configurational_temperature", "silent_share", "thermostat_q50", "thermostat_q99", "kinetic_temperature")
COLUMNS = ("epoch", "loss", "kinetic_temperature", "thermostat_q50", "thermostat_q99")
EVERY = 5  # rows of the log, one of which is kept


def keep(run: Path, row: str, called: str, folder: Path) -> dict[str, Any]:
    """Put the run of a row into exploration.json, replacing its earlier entry; returns the entry."""
    for needed in (FILE, f"{check_name(row)}.toml"):
        if not (folder / needed).exists():
            raise InputError(f"{folder} has no {needed}: it keeps the runs of rows that were collected")
    found = entry(RunDir.open(run), row, called)
    kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
    same = [number for number, other in enumerate(kept["runs"]) if other["name"].endswith(f"(the row {row})")]
    if same:
        kept["runs"][same[0]] = found
    else:
        kept["runs"].append(found)
    write(folder / FILE, in_lines(kept))
    return found


def entry(run: RunDir, row: str, called: str) -> dict[str, Any]:
    """Samples in the order of epochs, of all chains; of the log every so many rows, of the first chain."""
    rows = run.metrics()
    logs = [log for log in rows if log["event"] == "log"]
    # A sample that was lost in a rollback is drawn again: the later row counts.
    taken = {(one["chain"], one["index"]): one for one in rows if one["event"] == "sample"}
    samples = sorted(taken.values(), key=lambda one: (round(one["epoch"], 1), one["chain"]))
    if not samples or any("test" not in one.get("scores", {}) for one in samples):
        raise InputError(f"{run.path} has no samples that were scored on the test set")
    model, data, chains = run.recipe.model, run.manifest["data"], run.recipe.chains
    first = [log for log in logs if log["chain"] == 0][::EVERY]
    return {
        "name": f"{called} (the row {row})",
        "network": f"{model.name}-{model.depth}x{model.width}",
        "settings": {"recipe": f"{row}.toml"},
        "note": f"{data['examples']:,} training images, scores on the test set, the run's own (in float32), single"
        f" only; images_per_second of one of {chains} chain(s); the trace is that of the first",
        "samples": [said(one) for one in samples],
        "rollbacks": [
            {key: digits(value) if isinstance(value, float) else value for key, value in other.items()}
            for other in rows
            if other["event"] == "rollback"
        ],
        "images_per_second": round(statistics.median(log.get("images_per_second") or 0.0 for log in logs)),
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


def digits(value: float | None) -> float | None:
    """Four of them."""
    return None if value is None else float(f"{value:.4g}")


def in_lines(kept: dict[str, Any]) -> str:
    """JSON with one run in a line, so that a new one is a line in a diff."""
    runs = [json.dumps(run, ensure_ascii=False) for run in kept["runs"]]
    head = [f' "{key}": {json.dumps(kept[key], ensure_ascii=False)},' for key in kept if key != "runs"]
    return "\n".join(["{", *head, ' "runs": [', ",\n".join(f"  {run}" for run in runs), " ]", "}", ""])
