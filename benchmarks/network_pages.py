"""The tables of docs/networks.md, from results/networks/. `docs_tables.py` writes them into the page.

A number that was not measured is a dash.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from atmc.common.text import plural
from atmc.nn import build
from network_rows import NETWORKS
from pages import ROOT, markdown

FOLDER = ROOT / "results" / "networks"
# Where the images a second of a network are: (part, contestant) of norm_kernels.json.
SPEEDS = {
    "gn-ws": ("wrn16", "gn-ws"),
    "evonorm-s0": ("wrn16", "evonorm-s0"),
    "frn": ("wrn16", "frn"),
    "bn": ("wrn16", "bn, compiled"),
    "wrn28": ("wrn28", "gn-ws"),
}
SHOWN = ("gn-ws", "evonorm-s0", "frn", "bn", "resnetpp", "wrn28", "depth110")
NONE = "–"


def _json(name: str) -> Any:
    path = FOLDER / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _rows() -> dict[str, dict[str, Any]]:
    return {row["row"]: row for row in _json("table.json")}


def _parameters(network: str) -> str:
    with torch.device("meta"):
        model = build(classes=10, **NETWORKS[network][1])
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M"


def _speed(network: str) -> str:
    if network == "resnetpp":
        return f"{_json('cuda.json')['rows'][0]['images_per_second']['resnetpp']:,.0f}"
    wanted = SPEEDS.get(network)
    for row in _json("norm_kernels.json")["rows"]:
        if (row["part"], row["contestant"]) == wanted:
            return f"{row['images_per_second']:,.0f}"
    return NONE


def _scores(rows: dict[str, dict[str, Any]], kind: str) -> dict[str, str]:
    """Accuracy / NLL by network, the best of each in bold."""
    found = {each: row for each in SHOWN if (row := rows.get(f"{kind}-{each}")) and row.get("nll") is not None}
    if not found:
        return {}
    best = max(row["accuracy"] for row in found.values()), min(row["nll"] for row in found.values())
    texts = {}
    for each, row in found.items():
        accuracy, nll = f"{100 * row['accuracy']:.2f}", f"{row['nll']:.3f}"
        accuracy = f"**{accuracy}**" if row["accuracy"] == best[0] else accuracy
        texts[each] = f"{accuracy} / {f'**{nll}**' if row['nll'] == best[1] else nll}"
    return texts


def _stable(row: dict[str, Any] | None) -> str:
    """The largest jump, and what went wrong besides."""
    if row is None:
        return NONE
    if str(row["status"]).startswith("stopped"):
        return "diverged"
    trouble = [plural(row[f"{kind}s"], kind) for kind in ("jump", "rollback") if row[f"{kind}s"]]
    return f"{row['jump']:.2f}" + (f", {', '.join(trouble)}" if trouble else "")


def networks() -> str:
    """One line for each network: size, speed, scores on held-out images, stability."""
    rows = _rows()
    short, long = _scores(rows, "sgd60"), _scores(rows, "sgd200")
    lines = []
    for each in SHOWN:
        stable = "cannot be sampled" if each == "bn" else _stable(rows.get(f"atmc30-{each}"))
        cells = [short.get(each, NONE), long.get(each, NONE), _stable(rows.get(f"sgd30-{each}")), stable]
        if each not in ("wrn28", "depth110"):
            cells[2] = _stable(rows.get(f"sgd60-{each}"))
        lines.append([NETWORKS[each][0], _parameters(each), _speed(each), *cells])
    heads = ["network", "parameters", "images/s", "SGD 60 epochs, % / NLL", "200 epochs", "jump, SGD", "jump, ATMC"]
    measured = [any(line[at] != NONE for line in lines) for at in range(len(heads))]
    chosen = [[cell for cell, there in zip(line, measured, strict=True) if there] for line in [heads, *lines]]
    return markdown(chosen[0], chosen[1:])


def drift() -> str:
    """Filter lengths along a chain, at the first sample, the middle and the end."""
    lines = []
    for row in _rows().values():
        if not row.get("lengths"):
            continue
        curve = row["lengths"]
        parts = [curve[0], curve[len(curve) // 2], curve[-1]]
        squares = " → ".join(f"{part['mean_square']:.3g}" for part in parts)
        steps = " → ".join(f"{part['step']:.2f}" for part in parts)
        epochs = " → ".join(f"{part['epoch']:.0f}" for part in parts)
        lines.append([f"{row['temperature']:g}", epochs, squares, f"{row['expected_mean_square']:g}", steps])
    lines = lines or [[NONE] * 5]
    return markdown(["T", "epochs", "mean squared length", "2T", "effective step, relative"], lines)


def conversion() -> str:
    """Accuracy after a conversion to GroupNorm + WS, by epochs of fine-tuning."""
    row = next((row for row in _rows().values() if row.get("tuned")), None)
    if row is None:
        return markdown(["WRN-16-4", "accuracy % / NLL"], [[NONE, NONE]])
    said = {"with BatchNorm, 60 epochs of SGD": row["before"]}
    for tuned in row["tuned"]:
        count = tuned["epochs"]
        said["converted" if not count else f"and fine-tuned for {count} epoch{'s' * (count > 1)}"] = tuned
    lines = [[name, f"{100 * found['accuracy']:.2f} / {found['nll']:.3f}"] for name, found in said.items()]
    return markdown(["WRN-16-4", "accuracy % / NLL"], lines)


def custom() -> str:
    """Custom networks through `atmc.sample` beside the plain loop."""
    record = _json("own_network.json")
    heads = [
        "network",
        "plain loop, images/s",
        "`atmc.sample`",
        "ratio",
        "peak MB, plain / sampled, without data",
        "first step, s",
    ]
    lines = []
    for row in record["rows"] if record else []:
        own, ours = row["plain"], row["sampled"]
        began = row.get("start_up")
        memory = f"{own['peak_mb']:,.0f} / {ours['peak_mb'] - ours.get('data_mb', 0.0):,.0f}"
        first = f"{began['cold']:.0f} cold, {began['warm']:.0f} warm" if began else NONE
        speeds = [f"{own['rate']:,.0f}", f"{ours['rate']:,.0f}", f"{ours['rate'] / own['rate']:.3f}"]
        lines.append([row["network"], *speeds, memory, first])
    return markdown(heads, lines or [[NONE] * len(heads)])


BLOCKS = {
    "networks table": networks,
    "networks drift": drift,
    "networks conversion": conversion,
    "networks custom": custom,
}
