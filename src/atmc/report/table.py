"""The table of scores: for every run a row for one sample and one for the predictive; also as Markdown, LaTeX, JSON."""

import json
import math
from dataclasses import asdict, dataclass

from atmc.common.text import duration
from atmc.posterior.metric_entries import columns
from atmc.recipe.settings import temperature_said
from atmc.report.report_data import RunFacts, Scores


@dataclass(frozen=True)
class Row:
    """One line of the table; the names follow `results/<experiment>/table.json`."""

    run: str
    row: str
    temperature: float | None
    temperature_before: float | None  # at the beginning of a cycle, if different
    augment: str
    scores: Scores
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
    setting = (run.temperature, run.temperature_before, run.augment)
    chains = 1 if samples == 1 else run.chains
    return Row(run.name, label, *setting, scores, samples, chains, run.epochs, run.seconds, run.seed)


def setups(table: list[Row]) -> list[str]:
    """The setup of each row, with the run's name where two runs have the same setup."""
    owners: dict[str, set[str]] = {}
    for row in table:
        owners.setdefault(row.row, set()).add(row.run)
    return [f"{row.run}: {row.row}" if len(owners[row.row]) > 1 else row.row for row in table]


def best(table: list[Row]) -> list[str | None]:
    """The best of each column of scores over the table, as printed."""
    return [metric.best([row.scores.get(metric.name) for row in table]) for metric in columns()]


def winners(row: Row, bests: list[str | None]) -> set[int]:
    """Which cells of a row are the best of their column."""
    return {at for at, text in enumerate(bests, start=BEFORE) if cells(row)[at] == text}


def temperature_shown(of: Row | RunFacts) -> str:
    return "–" if of.temperature is None else temperature_said(of.temperature, of.temperature_before)


def epochs_said(epochs: float, chains: int) -> str:
    """Chains × epochs of each: 4 × 250."""
    return f"{epochs:g}" if chains == 1 else f"{chains} × {epochs:g}"


BEFORE = 3  # columns before the scores


def headings() -> list[str]:
    return ["Setup", "T", "Augmentation", *(metric.heading for metric in columns()), "Samples", "Epochs", "Time"]


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.row,
        temperature_shown(row),
        row.augment,
        *(metric.shown(row.scores.get(metric.name)) for metric in columns()),
        str(row.samples),
        epochs_said(row.epochs, row.chains),
        duration(row.seconds),
    )


def markdown(table: list[Row]) -> str:
    """A Markdown table, best values in bold."""
    bests = best(table)
    heads = headings()
    lines = ["| run | " + " | ".join(heads) + " |", "|" + " --- |" * (len(heads) + 1)]
    for row in table:
        texts = [_markdown_escape(c) for c in cells(row)]
        for at in winners(row, bests):
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
    """A booktabs table, best values in bold."""
    bests = best(table)
    heads = [_latex_escape(heading) for heading in headings()]
    spec = "l" * BEFORE + "r" * (len(heads) - BEFORE)
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"  \toprule", "  " + " & ".join(heads) + r" \\", r"  \midrule"]
    for row, setup in zip(table, setups(table), strict=True):
        texts = [_latex_escape(c) for c in (setup, *cells(row)[1:])]
        for at in winners(row, bests):
            texts[at] = rf"\textbf{{{texts[at]}}}"
        lines.append("  " + " & ".join(texts) + r" \\")
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}"]) + "\n"


def as_json(table: list[Row]) -> str:
    """JSON in full precision; a score that is not finite becomes null."""
    plain = []
    for row in table:
        values = asdict(row)
        values |= values.pop("scores")
        plain.append({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()})
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"
