"""Render report data as one self-contained HTML file without scripts; its policy forbids network access.

Names and texts come from untrusted run directories, so the template escapes everything except the plots' SVG (text
escaped by matplotlib) and the style sheet.
"""

import base64
import re
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from atmc.common.text import duration, percent
from atmc.diagnose.suggested_commands import split_command
from atmc.report import table
from atmc.report.plot_style import DARK, LIGHT, SERIES, Ink, page_svg
from atmc.report.plots import plots
from atmc.report.report_data import ReportData
from atmc.report.verdict import verdict

GENERATOR = '<meta name="generator" content="atmc report">'


def render(data: ReportData) -> str:
    """The whole page as text."""
    ink = Ink.page()
    drawn = {plot.name: Markup(page_svg(plot.draw(ink), plot.name, plot.label)) for plot in plots(data)}
    rows = table.rows(data.runs)
    views = [_view(data, i, drawn) for i in range(len(data.runs))]
    context: dict[str, Any] = {
        "data": data,
        "generator": Markup(GENERATOR),
        "style": Markup(palette() + template_text("page.css")),
        "verdict": verdict(data),
        "headings": table.headings(),
        "rows": [_shown(row, table.best(rows)) for row in rows],
        "plots": drawn,
        "views": views,
        "pictured": _pictured(views),
        "ood": _ood(data),
        "any_sampled": any(run.samples_weights for run in data.runs),
        "mixed": len({run.likelihood for run in data.runs}) > 1,
        "temperature": table.temperature_shown,
        "epochs": table.epochs_said,
        "area": "{:.2g}".format,
    }
    return environment().from_string(template_text("page.html")).render(context)


def environment() -> jinja2.Environment:
    """What renders a page: everything is escaped, and a name that is missing is an error."""
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"percent": percent, "duration": duration, "datauri": _data_uri, "prescription": _prescription}
    return made


def _view(data: ReportData, i: int, drawn: dict[str, Markup]) -> dict[str, Any]:
    """One run with its colour and its OOD plot."""
    ood = drawn.get("ood" if len(data.runs) == 1 else f"ood-{i + 1}")
    return {"run": data.runs[i], "colour": i % SERIES + 1, "ood": ood}


def _pictured(views: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The one run whose images are shown: the first that averages samples, or else the first."""
    able = [view for view in views if view["run"].least_sure or view["run"].surest]
    return ([view for view in able if view["run"].samples_weights] or able)[:1]


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


def _shown(row: table.Row, bests: list[str | None]) -> dict[str, Any]:
    """A row of the table as cells: heading, text, and whether it is the best of its column."""
    winners = table.winners(row, bests)
    pairs = zip(table.headings(), table.cells(row), strict=True)
    cells = [{"heading": h, "text": t, "best": i in winners} for i, (h, t) in enumerate(pairs)]
    return {"run": row.run, "setup": cells[0]["text"], "cells": cells[1:]}


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
