"""Render report data as one self-contained HTML file without scripts; its policy forbids network access.

Names and texts come from untrusted run directories, so the template escapes everything except the plots' SVG (text
escaped by matplotlib) and the style sheet.
"""

import base64
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from atmc.common.text import duration, percent
from atmc.diagnose.suggested_commands import split_command
from atmc.posterior.class_scores import ClassScore, Share, class_scores, confusions
from atmc.posterior.metric_entries import columns
from atmc.report import table
from atmc.report.answers import answers
from atmc.report.glossary import Term, terms
from atmc.report.plot_style import DARK, LIGHT, SERIES, Ink, page_svg
from atmc.report.plots import plots
from atmc.report.report_data import ReportData, RunFacts
from atmc.report.verdict import best_run

CLASSES = 20  # shown one by one; of more, those that are found least often
MATRIX = 20  # classes up to which the confusion matrix is shown
GENERATOR = '<meta name="generator" content="atmc report">'


def render(data: ReportData) -> str:
    """The whole page as text."""
    ink = Ink.page()
    drawn = {plot.name: Markup(page_svg(plot.draw(ink), plot.name, plot.label)) for plot in plots(data)}
    rows = table.rows(data.runs)
    views = [_view(data, i, drawn) for i in range(len(data.runs))]
    main = best_run(data.runs)
    context: dict[str, Any] = {
        "data": data,
        "answers": answers(data),
        "headings": [{"text": text, "key": key} for text, key in _headings()],
        "rows": [_shown(row, strong) for row, strong in zip(rows, table.winners(rows), strict=True)],
        "constant": [_constant(label, spreads) for label, spreads in table.constant_rows(data.runs)],
        "wrong": _wrong(main),
        "plots": drawn,
        "views": views,
        "pictured": _pictured(views, main),
        "ood": _ood(data),
        "any_sampled": any(run.samples_weights for run in data.runs),
        "mixed": len({run.likelihood for run in data.runs}) > 1,
        "area": "{:.2g}".format,
    }
    about = {"made_on": data.made_on, "version": data.version, "command": data.command}
    return filled("page.html", data.runs, terms(), {**context, **about})


def filled(template: str, runs: Sequence[Any], words: Sequence[Term], context: dict[str, Any]) -> str:
    """A page from its template, with what all pages have: head, style, and the words of the glossary."""
    glossary = {term.key: term for term in words}
    shared = {
        "runs": runs,
        "generator": Markup(GENERATOR),
        "style": Markup(palette() + template_text("page.css")),
        "glossary": glossary.values(),
        "term": lambda key, said="": _term(glossary, key, said),
    }
    return environment().get_template(template).render({**shared, **context})


def environment() -> jinja2.Environment:
    """What renders a page: everything is escaped, and a name that is missing is an error."""
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": percent, "duration": duration, "datauri": _data_uri, "prescription": _prescription}
    made.filters |= {"ends": _ends, "signed": lambda value: f"{value:+.2g}".replace("-", "−")}
    return made


def _view(data: ReportData, i: int, drawn: dict[str, Markup]) -> dict[str, Any]:
    """One run with its colour and its OOD plot."""
    ood = drawn.get("ood" if len(data.runs) == 1 else f"ood-{i + 1}")
    run = data.runs[i]
    method = run.method + ("" if run.temperature is None else f", T = {table.temperature_shown(run)}")
    augmented = "not augmented" if run.augment == "none" else f"augmented: {run.augment}"
    length = f"{table.epochs_said(run.epochs, run.chains)} epochs, {duration(run.seconds)} on {run.device}"
    details = {"Method": method, "Network": run.network, "Data": f"{run.data_said}, {augmented}"}
    details |= {"Samples": run.samples_said, "Length": length, **run.facts}
    return {"run": run, "colour": i % SERIES + 1, "ood": ood, "details": details}


def _pictured(views: list[dict[str, Any]], main: RunFacts) -> list[dict[str, Any]]:
    """The one run whose images are shown: the one that the page speaks of, or else the first that has any."""
    able = [view for view in views if view["run"].least_sure or view["run"].surest]
    return ([view for view in able if view["run"] is main] or able)[:1]


def _term(glossary: dict[str, Any], key: str, said: str = "") -> Markup:
    """A word that explains itself under the pointer and leads to the glossary."""
    if key not in glossary:
        return Markup.escape(said or key)
    about = glossary[key].about
    return Markup('<a class="term" href="#word-{}" title="{}">{}</a>').format(key, about, said or glossary[key].name)


def _wrong(run: RunFacts) -> dict[str, Any] | None:
    """The classes of a run, its confusion matrix where that fits, and its most frequent mistakes."""
    if not run.confusion.size:
        return None
    every = class_scores(run.confusion, run.classes)
    shown = list(every)
    if len(every) > CLASSES:
        shown = sorted(every, key=_recall)[:CLASSES]
    return {
        "run": run,
        "classes": shown,
        "left": len(every) - len(shown),
        "matrix": _matrix(run) if len(every) <= MATRIX else None,
        "pairs": confusions(run.confusion, run.classes, 10),
    }


def _ends(share: Share) -> str:
    """The ends of an interval in percent."""
    return f"{100 * share.low:.1f}–{100 * share.high:.1f}"


def _recall(score: ClassScore) -> float:
    return score.found.value if score.found is not None else 2.0


def _matrix(run: RunFacts) -> list[dict[str, Any]]:
    """The rows of the confusion matrix: the class, and of each answer the count and its share of the row."""
    rows = []
    for i, name in enumerate(run.classes):
        total = max(int(run.confusion[i].sum()), 1)
        cells = [{"count": int(n), "share": int(n) / total, "right": i == j} for j, n in enumerate(run.confusion[i])]
        rows.append({"name": name, "cells": cells})
    return rows


def _ood(data: ReportData) -> list[dict[str, Any]]:
    """One entry for each kind of OOD images, with a row for each run."""
    kinds: dict[str, dict[str, Any]] = {}
    for run in data.runs:
        for seen in run.ood:
            kind = kinds.setdefault(
                seen.name, {"name": seen.name, "about": seen.about, "strip": seen.strip, "rows": []}
            )
            row = {key: getattr(seen, key) for key in ("auroc", "single_auroc", "aupr", "fpr95")}
            kind["rows"].append({"run": run.name, **row})
    return list(kinds.values())


def _headings() -> list[tuple[str, str]]:
    """The headings of the table of scores, each with its word of the glossary."""
    keys = {metric.heading: metric.name for metric in columns()} | {"T": "temperature", "Samples": "sample"}
    return [(text, keys.get(text, "")) for text in table.headings()]


def _shown(row: table.Row, strong: set[int]) -> dict[str, Any]:
    """A row of the table as cells: heading, text, interval, and whether it is clearly the best of its column."""
    pairs = zip(table.headings(), table.cells(row), strict=True)
    cells: list[dict[str, Any]] = [
        {"heading": h, "text": t, "best": i in strong, "interval": ""} for i, (h, t) in enumerate(pairs)
    ]
    for at, metric in enumerate(columns(), start=table.BEFORE):
        cells[at]["interval"] = table.interval(metric, row.spreads)
    return {"run": row.run, "setup": cells[0]["text"], "cells": cells[1:]}


def _constant(label: str, spreads: Any) -> dict[str, Any]:
    """A row for answers that look at no example."""
    name, _, about = label.partition(": ")
    values = [metric.shown(spreads[metric.name].value) if metric.name in spreads else "–" for metric in columns()]
    return {"name": name, "about": about, "values": zip([m.heading for m in columns()], values, strict=True)}


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _prescription(action: str) -> tuple[str, list[str]]:
    """A finding's action as a sentence and its command, in parts that do not break across lines."""
    sentence, command = split_command(action)
    if not command:
        return action, []
    return f"{sentence}:", re.split(r" (?=--)" if command.startswith("atmc ") else " ", command)


def template_text(name: str) -> str:
    return (resources.files("atmc.report") / name).read_text(encoding="utf-8")


def palette() -> str:
    """The runs' colours, for light and for dark."""

    def block(colours: tuple[str, ...]) -> str:
        return ":root{" + "".join(f"--series-{i}:{c};" for i, c in enumerate(colours, start=1)) + "}"

    return f"{block(LIGHT)}@media (prefers-color-scheme:dark){{@media screen{{{block(DARK)}}}}}\n"
