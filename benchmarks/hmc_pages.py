"""Table and figure of docs/hmc.md, from results/hmc.

    python benchmarks/hmc_pages.py    # draw the figure and fill the page

Rows of several seeds are averaged. The figure has NLL and ambiguity against gradients, with HMC as a line.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from typing import Any

from pages import ROOT, fill_pages, friction, markdown

FOLDER = ROOT / "results" / "hmc"
FIGURE = FOLDER / "curves.svg"
MARKED = {"SGHMC, cyclic": (0.3,), "PX-SGHMC, cyclic": (0.02,)}  # published rows of 500,000 gradients in the figure
BESIDE = ("full-0.002", "mini-0.002", "mini-0.002-noise16", "mini-0.0007", "mini-0.0007-noise16")
BESIDE += ("batch64-0.002", "batch64-0.001")
BESIDE_CYCLES = ("full-0.007", "full-0.002", "mini-0.0007-noise16", "mini-0.0014-kronecker16-importance")
SMALL = ("training_loss", "nll_alone", "nll", "ambiguity", "noise_temperature")
# What the parts of a row's name mean.
PARTS = {
    "atmc": "ATMC",
    "sghmc": "SGHMC as published",
    "sgnht": "SGNHT as published",
    "sgld": "SGLD as published",
    "02": "prior 0.02",
    "05": "prior 0.05",
    "constant": "steps of one size",
    "small": "h = 0.0002",
    "corrected": "noise corrected",
    "uncorrected": "the same steps without",
    "half": "h = 0.0002",
    "double": "h = 0.0008",
    "chains4": "four chains",
    "rank": "without friction within tensors",
    "uniform": "drawn uniformly",
    "examples": "friction along each example",
    "cool": "h = 0.0001, D = 45",
    "follow": "friction follows the step",
    "geometric": "steps fall geometrically",
    "geometric10": "steps fall geometrically, D = 10",
    "noise32": "friction along noise, rank 32",
    "importance": "drawn by importance",
    "mass": "masses from the gradient",
    "T0": "T = 0",
    "warm": "from SGD's solution",
}
ALL = "kronecker16-importance"  # the same corrections, in names of older rows
NOTHING = "No row of ours has been measured yet."


def rows(folder: Any = FOLDER) -> dict[str, list[dict[str, Any]]]:
    """What was measured, by name and length; the seeds of one row together."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("*-[0-9].json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        found[f"{row['row']} {row['wanted_steps']}"].append(row)
    return dict(found)


def published() -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = json.loads((FOLDER / "published.json").read_text(encoding="utf-8"))["rows"]
    return known


def reference() -> str:
    """The published rows."""
    cells = [
        [row["row"], f"{row['prior_variance'] or '–'}", str(row["samples"]), *_three(row), row.get("settings", "–")]
        for row in published()
    ]
    return markdown(["published row", "prior variance", "samples", "error", "NLL", "ambiguity", "setting"], cells)


def measured(long: bool = True) -> str:
    """Our rows on validation images by NLL: those of half the length and more, or the shorter ones."""
    own = [seeds for seeds in rows().values() if (seeds[0]["gradients"] > 250_000) == long]
    if not own:
        return NOTHING
    head = ["our row", "prior variance", "gradients", "error", "NLL", "ECE", "ambiguity", "lag-1 correlation"]
    return markdown(head, [_cells(seeds) for seeds in sorted(own, key=lambda seeds: _score(seeds, "nll"))])


def temperatures() -> str:
    """What the thermometers say: all parameters, and along the gradient noise, by how far a cycle has come."""
    keys = ("kinetic_temperature", "noise_temperature", "noise_temperature_start", "noise_temperature_end")
    table = []
    for seeds in rows().values():
        first = seeds[0]
        if "kinetic_temperature" not in first:
            continue
        values = [f"{first[key]:.3g}" if key in first else "–" for key in keys]
        name = f"{first['row']}, {first['gradients']:,} gradients"
        table.append([name, f"{first['training_loss']:.3f}", *values, f"{first['ms_per_step']:.2f}"])
    if not table:
        return NOTHING
    return markdown(
        ["our row", "training loss", "kinetic T", "noise T", "at the start", "at the end", "ms a step"], table
    )


Seeds = list[dict[str, Any]]


def _small() -> dict[str, Seeds]:
    """The chains of `hmc_small.py` by name, the seeds of one together."""
    path, rows = FOLDER / "small.json", defaultdict(list)
    for row in json.loads(path.read_text(encoding="utf-8")) if path.exists() else []:
        rows[row["row"]].append(row)
    return dict(rows)


def _scores(seeds: Seeds) -> tuple[str, list[str], str]:
    """Training loss with its error, the scores of predictions, and T along the noise, as they are said."""
    mean = {key: statistics.mean(each[key] for each in seeds) for key in SMALL if key in seeds[0]}
    losses = [each["training_loss"] for each in seeds]
    error = statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else seeds[0]["training_loss_error"]
    loss = f"{mean['training_loss']:.3f} ± {error:.3f}" + (f" ({len(seeds)} seeds)" if len(seeds) > 1 else "")
    hot = f"{mean['noise_temperature']:.1f}" if "noise_temperature" in mean else "–"
    return loss, [f"{mean[key]:.3f}" for key in ("nll_alone", "nll", "ambiguity")], hot


def _batches(row: dict[str, Any]) -> str:
    data = "all data" if row["batch"] >= 800 else f"batches of {row['batch']}"
    return data + (" in epochs" if row.get("in_epochs") else " by importance" if row.get("importance") else "")


def small(corrected: bool = False) -> str:
    """Constant steps on the small posterior; `corrected`: how far corrections of mini-batch noise come, row by row."""
    table = []
    for name, seeds in _small().items():
        row = seeds[0]
        new = any(row.get(key) for key in ("noise_kronecker", "importance", "noise_examples"))
        if row.get("cycle") or (new != corrected and not (corrected and name in BESIDE)):
            continue
        loss, numbers, hot = _scores(seeds)
        curvature = f"{statistics.mean(each['curvature'] for each in seeds):,.0f}"
        table.append([f"{_batches(row)}, h = {row['step_size']:g}", friction(row), loss, *numbers, curvature, hot])
    head = ["T = 1", "friction along noise", "training loss", "NLL of a sample", "NLL of the average", "ambiguity"]
    return markdown([*head, "largest λ", "T along noise"], table) if table else NOTHING


def batches_of_64() -> str:
    """Training losses on the small posterior with each kind of friction, for two step sizes."""
    found = _small()
    kinds = {
        "thermostats alone": "batch64-{}",
        "rank 16, Kronecker; by importance": "batch64-{}-kronecker16-importance",
        "each example": "batch64-{}-examples",
        "each example; by importance": "batch64-{}-examples-importance",
        "all data in every step": "full-{}",
    }
    table = []
    for name, pattern in kinds.items():
        seeds = [found.get(pattern.format(h)) for h in ("0.002", "0.001")]
        if any(seeds):
            table.append([name, *(_scores(each)[0] if each else "–" for each in seeds)])
    return markdown(["friction along noise", "h = 0.002", "h = 0.001"], table) if table else NOTHING


def cycles() -> str:
    """Cycles on the small posterior, beside constant steps and the answer."""
    table = []
    for name, seeds in _small().items():
        row = seeds[0]
        if not row.get("cycle") and name not in BESIDE_CYCLES:
            continue
        loss, numbers, hot = _scores(seeds)
        steps = "cosine from" if row.get("cycle") else "constant"
        steps += f" h = {row['step_size']:g}" + (", friction follows" if row.get("follow") else "")
        each = f"{round((row.get('cycle') or 1.0) / row['step_size']):,}"
        table.append([f"{_batches(row)}, {steps}", friction(row), each, loss, *numbers, hot])
    head = ["T = 1", "friction along noise", "steps a sample", "training loss", "NLL of a sample", "NLL of the average"]
    return markdown([*head, "ambiguity", "T along noise"], table) if table else NOTHING


def figure_line() -> str:
    words = "NLL and ambiguity of the growing average against gradients, HMC as a line"
    return f"![{words}](../results/hmc/{FIGURE.name})" if FIGURE.exists() else NOTHING


def _cells(seeds: list[dict[str, Any]]) -> list[str]:
    first = seeds[0]
    several = f", {len(seeds)} seeds" if len(seeds) > 1 else ""
    words = ", ".join(PARTS.get(part, part) for part in first["row"].replace(ALL, "corrected").split("-"))
    lag = [row["autocorrelation"]["1"] for row in seeds if "1" in row["autocorrelation"]]
    scores = [f"{_score(seeds, key):.3f}{_spread(seeds, key)}" for key in ("error", "nll", "ece", "ambiguity")]
    return [
        f"{words}: `{first['row']}`",
        f"{first['prior_variance']:g}",
        f"{first['gradients']:,}{several}",
        *scores,
        f"{statistics.mean(lag):.2f}".replace("-", "−") if lag else "–",
    ]


def _score(seeds: list[dict[str, Any]], key: str) -> float:
    return statistics.mean(row["validation"]["average"][key] for row in seeds)


def _spread(seeds: list[dict[str, Any]], key: str) -> str:
    if len(seeds) < 2:
        return ""
    return f" ± {statistics.stdev(row['validation']['average'][key] for row in seeds):.3f}"


def _three(row: dict[str, Any]) -> list[str]:
    return [f"{row[key]:.3f}" for key in ("error", "nll", "ambiguity")]


def draw(groups: dict[str, list[dict[str, Any]]], most: int = 6) -> str:
    """The figure: the best rows of each length, their first seeds."""
    from matplotlib.ticker import FuncFormatter

    from atmc.report.plot_style import WIDE, Ink, sheet, svg

    ink = Ink.paper()
    best = sorted(groups.values(), key=lambda seeds: _score(seeds, "nll"))[:most]
    with sheet(ink, (2 * WIDE[0], WIDE[1]), "Gradients of batch 256", "NLL on validation images, nats") as (page, left):
        grid = page.add_gridspec(1, 2)
        left.set_subplotspec(grid[0])
        right = page.add_subplot(grid[1])
        right.set_title("Ambiguity", loc="left", fontsize=9.5, color=ink.ink, pad=8)
        right.set_xlabel("Gradients of batch 256")
        for axes, key in ((left, "nll"), (right, "ambiguity")):
            for number, seeds in enumerate(best):
                row = seeds[0]
                values = row["validation"]["curve"][key]
                at = [row["gradients"] * (k + 1) / len(values) for k in range(len(values))]
                axes.plot(at, values, color=ink.series(number), label=row["row"].replace(ALL, "corrected"))
            for row, side in zip(
                published()[:2], ("top", "bottom") if key == "nll" else ("bottom", "top"), strict=True
            ):
                axes.axhline(row[key], color=ink.muted, linestyle="--", linewidth=1.0)
                axes.annotate(row["row"], (0, row[key]), fontsize=7, color=ink.muted, va=side)
            for row in published():
                if row["row"] in MARKED and row["prior_variance"] in MARKED[row["row"]]:
                    axes.plot([500_000], row[key], marker="x", color=ink.muted)
                    name = row["row"].removesuffix(", cyclic") + ", published"
                    side = "top" if name.startswith("PX") else "bottom"
                    axes.annotate(name, (490_000, row[key]), fontsize=7, color=ink.muted, ha="right", va=side)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: f"{steps / 1000:g}k"))
        left.set_ylim(0.25, 0.8)
        left.legend(loc="upper right")
        return svg(page)


BLOCKS = {
    "hmc published": reference,
    "hmc measured": measured,
    "hmc shorter": lambda: measured(long=False),
    "hmc temperatures": temperatures,
    "hmc figure": figure_line,
    "hmc small": small,
    "hmc cycles": cycles,
    "minibatches examples": batches_of_64,
    "minibatches small": lambda: small(corrected=True),
}


def main() -> None:
    if groups := rows():
        FIGURE.write_text(draw(groups), encoding="utf-8")
    fill_pages(
        {name: make() for name, make in BLOCKS.items()}, [ROOT / "docs" / "hmc.md", ROOT / "docs" / "minibatches.md"]
    )


if __name__ == "__main__":
    main()
