"""The tables of docs/networks.md, from results/networks/. `docs_tables.py` writes them into the page.

A number that was not measured is a dash.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from atmc.common.text import plural
from atmc.nn import build
from atmc.nn.standardisation import WSConv2d
from atmc.posterior.calibration import calibrated_nll_each
from filter_lengths import NETWORK as SMALL
from network_rows import NETWORKS, Row, is_worse
from pages import ROOT, markdown

FOLDER = ROOT / "results" / "networks"
# Where the images a second of a network are: (part, contestant) of norm_kernels.json.
SPEEDS = {
    "gn-ws": ("wrn16", "gn-ws"),
    "evonorm-s0": ("wrn16", "evonorm-s0"),
    "frn": ("wrn16", "frn"),
    "bn": ("wrn16", "bn, compiled"),
    "wrn28": ("wrn28", "gn-ws"),
    "depth110": ("deep", "gn-ws"),
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


def _better(rows: dict[str, dict[str, Any]], epochs: int, network: str) -> dict[str, Any] | None:
    """The run of SGD with the weight decay that was more accurate after 60 epochs."""
    kinds = [f"sgd{epochs}{decay}" for decay in ("w", "")]
    table = list(rows.values())
    better = [kind for kind in kinds if not is_worse(Row(f"sgd200{kind[len(f'sgd{epochs}') :]}", network, 200), table)]
    return next((rows[f"{kind}-{network}"] for kind in better if f"{kind}-{network}" in rows), None)


def _scores(rows: dict[str, dict[str, Any] | None]) -> dict[str, str]:
    """Accuracy / NLL by network, the best of each in bold."""
    found = {each: row for each, row in rows.items() if row and row.get("nll") is not None}
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
    trouble = []
    if row["status"] != "done":
        trouble.append(f"stopped after {row['reached']:g} of {row['epochs']} epochs")
    trouble += [plural(row[f"{kind}s"], kind) for kind in ("jump", "rollback") if row[f"{kind}s"]]
    return f"{row['jump']:.2f}" + (f", {', '.join(trouble)}" if trouble else "")


def networks() -> str:
    """One line for each network: size, speed, scores on held-out images, stability."""
    rows = _rows()
    short, weights = (_scores({each: rows.get(f"{kind}-{each}") for each in SHOWN}) for kind in ("sgd60", "sgd60w"))
    long = _scores({each: _better(rows, 200, each) for each in SHOWN})
    lines = []
    for each in SHOWN:
        stable = "cannot be sampled" if each == "bn" else _stable(rows.get(f"atmc30-{each}"))
        sgd = _better(rows, 60, each) or rows.get(f"sgd30-{each}")
        cells = [scores.get(each, NONE) for scores in (short, weights, long)] + [_stable(sgd), stable]
        lines.append([NETWORKS[each][0], _parameters(each), _speed(each), *cells])
    heads = ["network", "parameters", "images/s", "SGD 60 epochs, % / NLL", "decay on weights alone", "SGD 200 epochs"]
    heads += ["jump, SGD", "jump, ATMC"]
    measured = [any(line[at] != NONE for line in lines) for at in range(len(heads))]
    chosen = [[cell for cell, there in zip(line, measured, strict=True) if there] for line in [heads, *lines]]
    return markdown(chosen[0], chosen[1:])


def paired() -> str:
    """What each network has over BatchNorm on the same images under SGD, with standard errors over images."""
    rows = _rows()
    contests = [
        (60, "weights", {each: rows.get(f"sgd60w-{each}") for each in SHOWN}),
        (60, "all", {each: rows.get(f"sgd60-{each}") for each in SHOWN}),
        (200, "the better for each", {each: _better(rows, 200, each) for each in SHOWN}),
    ]
    lines = []
    for epochs, decay, found in contests:
        against = _by_image(found["bn"])
        for each, row in found.items():
            ours = _by_image(row)
            if each != "bn" and ours is not None and against is not None:
                more = [mine - his for mine, his in zip(ours, against, strict=True)]
                cells = [_with_error(values, digits) for values, digits in zip(more, (2, 3, 3), strict=True)]
                lines.append([NETWORKS[each][0], str(epochs), decay, *cells])
    heads = ["SGD against BatchNorm", "epochs", "weight decay on", "accuracy, points", "NLL", "calibrated NLL"]
    return markdown(heads, lines or [[NONE] * len(heads)])


def _by_image(row: dict[str, Any] | None) -> tuple[Any, ...] | None:
    """Percent right, NLL and calibrated NLL of every held-out image."""
    if row is None or not row.get("probabilities"):
        return None
    stored = np.load(FOLDER / row["probabilities"][0])
    probs, labels = stored["probs"].mean(0), stored["labels"]
    nll = -np.log(probs[np.arange(len(labels)), labels])
    return 100.0 * (probs.argmax(1) == labels), nll, calibrated_nll_each(probs, labels)


def _with_error(values: Any, digits: int) -> str:
    return f"{values.mean():+.{digits}f} ± {values.std(ddof=1) / len(values) ** 0.5:.{digits}f}".replace("-", "−")


def drift() -> str:
    """Filter lengths along a chain, at the first sample, the middle and the end."""
    lines = []
    small = _json("filter_lengths.json")
    chains = [("WRN-10-1, digits", SMALL, row) for row in (small["rows"] if small else [])]
    large = NETWORKS["gn-ws"][1]
    chains += [("WRN-16-4, CIFAR-10", large, row) for row in _rows().values() if row.get("lengths")]
    for name, network, row in chains:
        curve = row["lengths"]
        parts = [curve[0], curve[len(curve) // 2], curve[-1]]
        squares = " → ".join(f"{part['mean_square']:.3f}" for part in parts)
        steps = " → ".join(f"{part['step']:.2f}" for part in parts)
        epochs = " → ".join(f"{part['epoch']:.0f}" for part in parts)
        lines.append(
            [
                name,
                f"{row['temperature']:g}",
                epochs,
                squares,
                f"{_by_the_prior(network, row['temperature']):.3f}",
                steps,
            ]
        )
    lines = lines or [[NONE] * 6]
    return markdown(
        ["network, data", "T", "epochs", "mean squared length", "by the prior", "effective step, relative"], lines
    )


def _by_the_prior(network: dict[str, Any], temperature: float) -> float:
    """The mean squared length of centred filters: 2T each, less the share 1/fan-in of the mean that is taken out."""
    with torch.device("meta"):
        filters = [layer.weight for layer in build(**network).modules() if isinstance(layer, WSConv2d)]
    total = sum(w.shape[0] * 2 * temperature * (1 - 1 / w[0].numel()) for w in filters)
    return total / sum(w.shape[0] for w in filters)


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


BLOCKS = {
    "networks table": networks,
    "networks paired": paired,
    "networks drift": drift,
    "networks conversion": conversion,
}
