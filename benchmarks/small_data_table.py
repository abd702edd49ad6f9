"""The table of `small_data.py`, from the fits that are there.

Published numbers, test log-likelihood on the same splits, mean and standard error: MC dropout from the readme of
github.com/yaringal/DropoutUncertaintyExps (grid search, "new"), deep ensembles from Lakshminarayanan et al. 2017,
Table 1.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from small_data_sets import CLASS_SPLITS, CLASSES, FOLDERS, SPLITS

PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "MC dropout": {
        "boston": (-2.40, 0.04),
        "concrete": (-2.93, 0.02),
        "energy": (-1.21, 0.01),
        "kin8nm": (1.14, 0.01),
        "naval": (4.45, 0.00),
        "power": (-2.80, 0.01),
        "protein": (-2.87, 0.00),
        "wine": (-0.93, 0.01),
        "yacht": (-1.25, 0.01),
    },
    "deep ensembles": {
        "boston": (-2.41, 0.25),
        "concrete": (-3.06, 0.18),
        "energy": (-1.38, 0.22),
        "kin8nm": (1.20, 0.02),
        "naval": (5.63, 0.05),
        "power": (-2.79, 0.04),
        "protein": (-2.83, 0.02),
        "wine": (-0.94, 0.12),
        "yacht": (-1.18, 0.21),
    },
}
SCORES = ("rmse", "accuracy", "nll", "ece", "coverage90", "seconds", "cpu_seconds")


def write(out: Path) -> None:
    """`table.json`, every score of every split, and `table.md` for people. Rows without a fit here stay as they are."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in sorted(out.glob("fits/*/*.json")):
        one = json.loads(file.read_text())
        if not one["validation"] or out.name != "small_data":  # results/ holds test parts only
            found.setdefault((one["set"], one["row"]), []).append(one)
    if not found:
        print(f"no fits in {out / 'fits'}")
        return
    rows = [_row(name, row, sorted(fits, key=lambda f: f["split"])) for (name, row), fits in found.items()]
    if (out / "table.json").exists():  # fits are not in the repository, and were made on several machines
        before = json.loads((out / "table.json").read_text())
        rows += [row for row in before if (row["set"], row["row"]) not in found]
    known = [*FOLDERS, *CLASS_SPLITS]
    rows.sort(key=lambda row: (known.index(row["set"]) if row["set"] in known else 99, row["row"]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    text = "\n".join([*_regression(rows), "", *_paired(rows), "", *_classes(rows)]).strip() + "\n"
    (out / "table.md").write_text(text)
    print(text)


def refresh(page: Path, rows: list[dict[str, Any]]) -> None:
    """Put the tables of the rows into a page of the documentation, between their marks."""
    text = page.read_text()
    for mark, made in (("uci", uci_page(rows)), ("classes", class_page(rows))):
        before, rest = text.split(f"<!-- {mark} -->\n")
        text = f"{before}<!-- {mark} -->\n{made}<!-- /{mark} -->" + rest.split(f"<!-- /{mark} -->")[1]
    page.write_text(text)


def _row(name: str, row: str, fits: list[dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {"set": name, "row": row, "splits": [fit["split"] for fit in fits]}
    for key in ("epochs", "batch", "samples", "settings"):
        if fits[0].get(key):
            made[key] = fits[0][key]
    made["devices"] = [fit.get("device", "cpu") for fit in fits]
    for score in SCORES:
        if all(score in fit for fit in fits):
            made[score] = [round(fit[score], 4) for fit in fits]
    if "guess" in fits[0]:
        made["guess"] = [round(fit["guess"], 4) for fit in fits]
    if "pilots" in fits[0]:
        chosen = [fit["pilots"][0] for fit in fits]
        made["chosen"] = [[pilot["likelihood"], pilot["temperature"]] for pilot in chosen]
        made["pilot_seconds"] = [round(sum(p["seconds"] for p in fit["pilots"]), 1) for fit in fits]
    said = sorted({line for fit in fits for line in fit["warnings"]})
    return made | ({"warnings": said} if said else {})


def _mean(values: list[float], digits: int = 3) -> str:
    mean = sum(values) / len(values)
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) / len(values))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def _regression(rows: list[dict[str, Any]]) -> list[str]:
    """Mean test log-likelihood by set and row, with RMSE, coverage and seconds of the first row."""
    names = [name for name in FOLDERS if any(row["set"] == name for row in rows)]
    if not names:
        return []
    kinds = list(dict.fromkeys(row["row"] for row in rows if row["set"] in FOLDERS))
    cells = {(row["set"], row["row"]): row for row in rows}
    lines = ["Mean test log-likelihood (higher is better), ± its standard error over splits.", ""]
    lines.append("| set | splits | " + " | ".join([*kinds, *PUBLISHED]) + " |")
    lines.append("| --- | --- |" + " --- |" * (len(kinds) + len(PUBLISHED)))
    for name in names:
        done = max(len(cells[name, kind]["splits"]) for kind in kinds if (name, kind) in cells)
        line = [name, f"{done} of {SPLITS[name]}"]
        for kind in kinds:
            cell = cells.get((name, kind))
            line.append("–" if cell is None else _mean([-nll for nll in cell["nll"]]))
        line += [f"{mean:.2f} ± {error:.2f}" for mean, error in (table[name] for table in PUBLISHED.values())]
        lines.append("| " + " | ".join(line) + " |")
    lines += ["", "RMSE, share of targets in the 90 % interval, and seconds of one fit on one core:", ""]
    lines += ["| set | row | RMSE | coverage [%] | seconds |", "| --- | --- | --- | --- | --- |"]
    for name in names:
        for kind in kinds:
            if (cell := cells.get((name, kind))) is not None:
                inside = 100 * sum(cell["coverage90"]) / len(cell["coverage90"])
                spent = sum(cell["seconds"]) / len(cell["seconds"])
                rmse = _mean(cell["rmse"], 4 if name == "naval" else 3)
                lines.append(f"| {name} | {kind} | {rmse} | {inside:.1f} | {spent:.0f} |")
    return lines


def _paired(rows: list[dict[str, Any]]) -> list[str]:
    """By how much `atmc` is ahead of the other rows, on the splits that both have."""
    cells = {(row["set"], row["row"]): dict(zip(row["splits"], row["nll"], strict=True)) for row in rows}
    others = list(dict.fromkeys(row["row"] for row in rows if row["set"] in FOLDERS and row["row"] != "atmc"))
    names = [name for name in FOLDERS if (name, "atmc") in cells]
    if not names or not others:
        return []
    lines = ["Log-likelihood of atmc less that of another row on the same splits, ± its standard error (splits):", ""]
    lines += ["| set | " + " | ".join(others) + " |", "| --- |" + " --- |" * len(others)]
    for name in names:
        line = [name]
        for other in others:
            mine, theirs = cells[name, "atmc"], cells.get((name, other), {})
            both = [theirs[split] - mine[split] for split in mine if split in theirs]
            line.append(f"{_mean(both)} ({len(both)})" if both else "–")
        lines.append("| " + " | ".join(line) + " |")
    return lines


SHOWN = {"atmc": "`atmc.sample`", "ensemble": "5 networks", "ensemble-heteroscedastic": "5 networks, σ(x)"}
SHOWN |= {"laplace": "laplace-torch"}


def uci_page(rows: list[dict[str, Any]]) -> str:
    """The table of the documentation: mean test log-likelihood, the best of a set in bold."""
    columns = [*SHOWN.values(), *PUBLISHED]
    lines = ["| set (splits) | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name in FOLDERS:
        known = {SHOWN[row["row"]]: row["nll"] for row in rows if row["set"] == name and row["row"] in SHOWN}
        if not known:
            continue
        most = max(map(len, known.values()))
        found = {kind: (-sum(nll) / len(nll), _cell(nll, most)) for kind, nll in known.items()}
        for kind, table in PUBLISHED.items():
            found[kind] = table[name][0], f"{table[name][0]:.2f} ± {table[name][1]:.2f}"
        lines.append(f"| {name} ({most}) | " + _bold([found.get(column) for column in columns], 1) + " |")
    return "\n".join(lines) + "\n"


def _cell(nll: list[float], most: int) -> str:
    """Mean log-likelihood and its error; with the number of splits where other rows have more."""
    return _mean([-value for value in nll], 2) + ("" if len(nll) == most else f" ({len(nll)})")


def _bold(cells: list[tuple[float, str] | None], sign: int) -> str:
    """A line of cells, the largest (or, with sign −1, the least) in bold as far as two digits tell."""
    best = max(round(sign * cell[0], 2) for cell in cells if cell is not None)
    shown = ["–" if c is None else f"**{c[1]}**" if round(sign * c[0], 2) == best else c[1] for c in cells]
    return " | ".join(shown)


def class_page(rows: list[dict[str, Any]]) -> str:
    """NLL of `temperature="auto"` and of five networks, the better in bold, with what guessing has."""
    lines = ['| set (splits) | `temperature="auto"` | 5 networks | difference | guessing | T chosen | seconds |']
    lines.append("| --- |" + " --- |" * 6)
    for name in CLASSES:
        known = {row["row"]: row for row in rows if row["set"] == name}
        if "atmc-auto" not in known:
            continue
        own, other = known["atmc-auto"], known.get("ensemble")
        cells = [
            (sum(row["nll"]) / len(row["nll"]), _mean(row["nll"]) + f" ({len(row['nll'])})") if row else None
            for row in (own, other)
        ]
        chosen = sorted({t for _, t in own["chosen"]})
        span = f"{chosen[0]:g}" if len(chosen) == 1 else f"{chosen[0]:g} to {chosen[-1]:g}"
        spent = sum(own["seconds"]) / len(own["seconds"])
        more = [_difference(own, other), f"{own['guess'][0]:.3f}", span, f"{spent:.0f}"]
        lines.append(f"| {name} | {_bold(cells, -1)} | {' | '.join(more)} |")
    return "\n".join(lines) + "\n"


def _difference(own: dict[str, Any], other: dict[str, Any] | None) -> str:
    """NLL less that of the other row on the splits that both have: below 0 where it is ahead."""
    theirs = dict(zip(other["splits"], other["nll"], strict=True)) if other else {}
    both = [nll - theirs[k] for k, nll in zip(own["splits"], own["nll"], strict=True) if k in theirs]
    return _mean(both) if both else "–"


def _classes(rows: list[dict[str, Any]]) -> list[str]:
    chosen = [row for row in rows if row["set"] not in FOLDERS]
    if not chosen:
        return []
    lines = ["Classes: mean over splits ± its standard error, on the test part.", ""]
    lines += ["| set | row | NLL | accuracy [%] | ECE | seconds | T chosen |", "| --- |" + " --- |" * 6]
    for row in chosen:
        spent = sum(row["seconds"]) / len(row["seconds"])
        picked = ", ".join(f"{likelihood} {t:g}" for likelihood, t in row.get("chosen", [])) or "–"
        accuracy = _mean([100 * a for a in row["accuracy"]], 1)
        lines.append(
            f"| {row['set']} | {row['row']} | {_mean(row['nll'])} | {accuracy} | {_mean(row['ece'])} | {spent:.0f} | "
            f"{picked} |"
        )
    for row in chosen:
        worst = max(nll / guess for nll, guess in zip(row["nll"], row["guess"], strict=True))
        lines.append(f"\n{row['set']}, {row['row']}: the worst NLL of a fit is {worst:.2f} times that of guessing.")
    return lines
