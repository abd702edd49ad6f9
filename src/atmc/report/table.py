"""The table of scores: for every run a row for one sample and one for the predictive; also as Markdown, LaTeX, JSON."""

import json
import math
from dataclasses import dataclass, field, fields

from atmc.common.text import duration
from atmc.posterior.intervals import clearly_best
from atmc.posterior.metric_entries import Metric, columns
from atmc.recipe.settings import temperature_said
from atmc.report.report_data import RunFacts, Scores, Spreads


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
    spreads: Spreads = field(default_factory=dict)  # of the scores
    scored_on: tuple[str, str, str, int] = ("", "", "", 0)  # rows are compared on the same examples only


CONSTANT = {
    "guessing": "Guessing: all classes equally likely",
    "frequencies": "Class frequencies: one answer for every example",
}


def rows(runs: tuple[RunFacts, ...]) -> list[Row]:
    """The lines of the table, run by run."""
    table: list[Row] = []
    for run in runs:
        if run.samples_weights:
            one, all_ = ("single sample", "posterior predictive") if run.is_posterior else ("one network", "ensemble")
            table.append(_row(run, f"{run.method} ({one})", run.single, 1, run.single_spreads))
            table.append(_row(run, f"{run.method} ({all_})", run.predictive, run.samples, run.spreads))
        else:
            table.append(_row(run, run.method, run.single, 1, run.single_spreads))
        if run.scaled is not None and run.scaled_by is not None:
            label = f"{run.method} (temperature-scaled by {run.scaled_by:.2f} on validation)"
            table.append(_row(run, label, run.scaled, run.samples, run.scaled_spreads))
    return table


def _row(run: RunFacts, label: str, scores: Scores, samples: int, spreads: Spreads) -> Row:
    setting = (run.temperature, run.temperature_before, run.augment)
    chains = 1 if samples == 1 else run.chains
    cost = (run.epochs, run.seconds, run.seed)
    return Row(run.name, label, *setting, scores, samples, chains, *cost, spreads, _examples(run))


def _examples(run: RunFacts) -> tuple[str, str, str, int]:
    return run.data, run.split, run.data_digest, run.examples


def constant_rows(runs: tuple[RunFacts, ...]) -> list[tuple[str, Spreads]]:
    """The scores of answers that look at no example, once for each test set."""
    found: dict[tuple[str, str, str, int], list[tuple[str, Spreads]]] = {}
    for run in runs:
        named = [(CONSTANT[name], spreads) for name, spreads in run.constant.items()]
        found.setdefault(_examples(run), named)
    return [row for named in found.values() for row in named]


def setups(table: list[Row]) -> list[str]:
    """The setup of each row, with the run's name where two runs have the same setup."""
    owners: dict[str, set[str]] = {}
    for row in table:
        owners.setdefault(row.row, set()).add(row.run)
    return [f"{row.run}: {row.row}" if len(owners[row.row]) > 1 else row.row for row in table]


def winners(table: list[Row]) -> list[set[int]]:
    """Of each row the cells to print in bold: better than every other row by more than the error of the difference."""
    strong: list[set[int]] = [set() for _ in table]
    if len({row.scored_on for row in table}) == 1:
        for at, metric in enumerate(columns(), start=BEFORE):
            first = clearly_best(metric, [row.spreads.get(metric.name) for row in table])
            if first is not None:
                strong[first].add(at)
    return strong


def interval(metric: Metric, spreads: Spreads) -> str:
    """The 95 % interval of a score as people read it."""
    spread = spreads.get(metric.name)
    if spread is None or not (math.isfinite(spread.low) and math.isfinite(spread.high)):
        return ""
    return f"{metric.shown(spread.low)}–{metric.shown(spread.high)}"


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
    """A Markdown table, what is clearly best in bold."""
    heads = headings()
    lines = ["| run | " + " | ".join(heads) + " |", "|" + " --- |" * (len(heads) + 1)]
    for row, strong in zip(table, winners(table), strict=True):
        texts = [_markdown_escape(c) for c in cells(row)]
        for at in strong:
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
    """A booktabs table, what is clearly best in bold."""
    heads = [_latex_escape(heading) for heading in headings()]
    spec = "l" * BEFORE + "r" * (len(heads) - BEFORE)
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"  \toprule", "  " + " & ".join(heads) + r" \\", r"  \midrule"]
    for row, setup, strong in zip(table, setups(table), winners(table), strict=True):
        texts = [_latex_escape(c) for c in (setup, *cells(row)[1:])]
        for at in strong:
            texts[at] = rf"\textbf{{{texts[at]}}}"
        lines.append("  " + " & ".join(texts) + r" \\")
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}"]) + "\n"


def as_json(table: list[Row]) -> str:
    """JSON in full precision, with the 95 % interval of each score; what is not finite becomes null."""
    plain = []
    for row in table:
        values = {f.name: getattr(row, f.name) for f in fields(row) if f.name not in ("scores", "spreads", "scored_on")}
        values |= dict(row.scores)
        entry: dict[str, object] = {k: _finite(v) for k, v in values.items()}
        entry["intervals"] = {name: [_finite(s.low), _finite(s.high)] for name, s in row.spreads.items()}
        plain.append(entry)
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
