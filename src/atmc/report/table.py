"""The paper's table: a row for one sample and one for the predictive of every run, temperature and augmentation beside.

The same rows as Markdown, LaTeX and JSON, so that a number never has to be typed again.
"""

import json
import math
from dataclasses import asdict, dataclass

from atmc.common.text import duration
from atmc.recipe.settings import temperature_said
from atmc.report.report_data import RunFacts, Scores


@dataclass(frozen=True)
class Row:
    """One line of the table; the names follow `results/<experiment>/table.json`."""

    run: str
    row: str
    temperature: float | None
    temperature_before: float | None  # at which cycles begin, where that is another
    augment: str
    accuracy: float
    nll: float
    brier: float
    ece: float
    samples: int
    chains: int  # that they come from
    epochs: float  # of each chain
    seconds: float | None
    seed: int


def rows(runs: tuple[RunFacts, ...]) -> list[Row]:
    """The lines of the table, run by run."""
    table: list[Row] = []
    for run in runs:
        if run.samples_weights:
            one, all_ = ("single sample", "posterior predictive") if run.is_posterior else ("one network", "ensemble")
            table.append(_row(run, f"{run.method} ({one})", run.single, 1))
            table.append(_row(run, f"{run.method} ({all_})", run.predictive, run.samples))
        else:
            table.append(_row(run, run.method, run.single, 1))
        if run.scaled is not None and run.scaled_by is not None:
            label = f"{run.method} (temperature-scaled by {run.scaled_by:.2f} on validation)"
            table.append(_row(run, label, run.scaled, run.samples))
    return table


def _row(run: RunFacts, label: str, scores: Scores, samples: int) -> Row:
    return Row(
        run=run.name,
        row=label,
        temperature=run.temperature,
        temperature_before=run.temperature_before,
        augment=run.augment,
        samples=samples,
        chains=1 if samples == 1 else run.chains,
        epochs=run.epochs,
        seconds=run.seconds,
        seed=run.seed,
        **scores.as_dict(),
    )


def setups(table: list[Row]) -> list[str]:
    """The first column where there is none for the run: its name is added where two runs have the same setup."""
    owners: dict[str, set[str]] = {}
    for row in table:
        owners.setdefault(row.row, set()).add(row.run)
    return [f"{row.run}: {row.row}" if len(owners[row.row]) > 1 else row.row for row in table]


def best(table: list[Row]) -> dict[str, float]:
    """The best value of each score over the table, as printed: ties after rounding are ties."""
    if not table:
        return {}
    return {
        "accuracy": max(round(r.accuracy, 3) for r in table),
        "nll": min(round(r.nll, 3) for r in table),
        "brier": min(round(r.brier, 3) for r in table),
        "ece": min(round(r.ece, 3) for r in table),
    }


SCORES = ("accuracy", "nll", "brier", "ece")


def is_best(row: Row, score: str, bests: dict[str, float]) -> bool:
    value = getattr(row, score)
    return math.isfinite(value) and round(value, 3) == bests[score]


def shown(row: Row, score: str) -> str:
    """A score as people read it: accuracy in percent, the rest with three digits."""
    value = float(getattr(row, score))
    if not math.isfinite(value):
        return "–"
    return f"{100 * value:.1f}" if score == "accuracy" else f"{value:.3f}"


def temperature_shown(of: Row | RunFacts) -> str:
    return "–" if of.temperature is None else temperature_said(of.temperature, of.temperature_before)


def epochs_said(epochs: float, chains: int) -> str:
    """Epochs of a chain, and how many chains there were of them: 4 × 250."""
    return f"{epochs:g}" if chains == 1 else f"{chains} × {epochs:g}"


HEADINGS = ("Setup", "T", "Augmentation", "Accuracy [%]", "NLL [nats]", "Brier", "ECE", "Samples", "Epochs", "Time")


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.row,
        temperature_shown(row),
        row.augment,
        *(shown(row, score) for score in SCORES),
        str(row.samples),
        epochs_said(row.epochs, row.chains),
        duration(row.seconds),
    )


def markdown(table: list[Row]) -> str:
    """A Markdown table, best values in bold."""
    bests = best(table)
    lines = ["| run | " + " | ".join(HEADINGS) + " |", "|" + " --- |" * (len(HEADINGS) + 1)]
    for row in table:
        texts = [_markdown_escape(c) for c in cells(row)]
        for at, score in enumerate(SCORES, start=3):
            if is_best(row, score, bests):
                texts[at] = f"**{texts[at]}**"
        lines.append("| " + " | ".join([_markdown_escape(row.run), *texts]) + " |")
    return "\n".join(lines) + "\n"


def _markdown_escape(text: str) -> str:
    for character in "\\|*_`<>[]":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "×": r"$\times$"}
_LATEX |= {character: "\\" + character for character in "&%$#_{}"}


def _latex_escape(text: str) -> str:
    return " ".join("".join(_LATEX.get(character, character) for character in text).split())


def latex(table: list[Row]) -> str:
    """A booktabs table, best values in bold, in the shape of the paper's."""
    bests = best(table)
    heads = [h.replace("%", r"\%") for h in HEADINGS]
    lines = [r"\begin{tabular}{lllrrrrrrr}", r"  \toprule", "  " + " & ".join(heads) + r" \\", r"  \midrule"]
    for row, setup in zip(table, setups(table), strict=True):
        texts = [_latex_escape(c) for c in (setup, *cells(row)[1:])]
        for at, score in enumerate(SCORES, start=3):
            if is_best(row, score, bests):
                texts[at] = rf"\textbf{{{texts[at]}}}"
        lines.append("  " + " & ".join(texts) + r" \\")
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}"]) + "\n"


def as_json(table: list[Row]) -> str:
    """Full precision, for machines; a score that is not a number becomes null."""
    plain = [
        {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(row).items()}
        for row in table
    ]
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"
