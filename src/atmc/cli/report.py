"""`atmc report RUN...`: one self-contained page, and with `--figures` the same for papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atmc.cli.console import command, emit, next_step, printable, say, working
from atmc.common.errors import InputError
from atmc.common.text import plural


def report(
    runs: Sequence[Path],
    *,
    out: Path | None,
    figures: Path | None,
    ood: Sequence[str],
    shift: str | None = None,
    as_json: bool,
) -> int:
    """The command; returns the exit code."""
    from atmc.cli.open_runs import is_regression, tell_damage
    from atmc.report import build
    from atmc.report.shift import check_kind
    from atmc.report.table import as_json as table_json
    from atmc.report.table import rows
    from atmc.storage.manifest import Manifest
    from atmc.storage.run_directory import RunDir

    page = out if out is not None else runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    if not page.parent.is_dir():
        raise InputError(
            f"the folder {page.parent} does not exist"
            if out is not None
            else f"there is no run {page.parent}; make one with atmc sample RECIPE --out {page.parent}"
        )
    if figures is not None and figures.exists() and not figures.is_dir():
        raise InputError(f"--figures {figures} is a file: name a folder")
    check_kind(shift)
    more = [*(word for kind in ood for word in ("--ood", kind)), *(["--shift", shift] if shift else [])]
    typed = command("atmc", "report", *runs, *more)
    with working(f"reading {plural(len(runs), 'run')} and drawing"):
        numbers = [run for run in runs if Manifest.exists(run) and is_regression(RunDir.open(run))]
        if numbers and len(numbers) < len(runs):
            raise InputError(f"{numbers[0]} is a regression, and others are not: report them one by one")
        if numbers and ood:
            raise InputError(f"--ood is for images with classes, and {numbers[0]} is a regression: leave it out")
        if numbers and shift:
            raise InputError(f"--shift is for images with classes, and {numbers[0]} is a regression: leave it out")
        if numbers:
            return _numbers(runs, page, figures, typed, as_json)
        data = build(runs, page, figures, ood=ood, shift=shift is not None, command=typed)
    for run, facts in zip(runs, data.runs, strict=True):
        tell_damage(run, facts.damage)
    damaged = [line for facts in data.runs for line in facts.damage]
    if as_json:
        import json

        emit(
            {
                "report": str(page),
                "figures": str(figures) if figures else None,
                "rows": json.loads(table_json(rows(data.runs))),
                **({"damaged": damaged} if damaged else {}),
            }
        )
        return 0
    from atmc.cli.score_tables import print_table
    from atmc.report.verdict import verdict

    for sentence in verdict(data):
        say(printable(sentence))
    say()
    print_table(data)
    say()
    say(f"The report: {printable(page.resolve())}", page.resolve())
    if figures is not None:
        say(f"The figures: {printable(figures.resolve())}", figures.resolve())
    examine = command("atmc", "doctor", runs[0])
    if data.runs[0].takes_images:
        next_step(command("atmc", "predict", runs[0], "IMAGE.png"), examine)
    else:
        next_step(examine)
    return 0


def _numbers(runs: Sequence[Path], page: Path, figures: Path | None, typed: str, as_json: bool) -> int:
    """The report of regressions; returns the exit code."""
    from atmc.cli.open_runs import in_python, tell_damage
    from atmc.report.regression_page import build_regression, regression_verdict

    found = build_regression(runs, page, figures, command=typed)
    for run, facts in zip(runs, found, strict=True):
        tell_damage(run, facts.damage)
    if as_json:
        rows = [
            {
                "run": one.name,
                "single": {name: spread.value for name, spread in one.single.items()},
                "predictive": {name: spread.value for name, spread in one.predictive.items()},
                "intervals": {name: [spread.low, spread.high] for name, spread in one.predictive.items()},
            }
            for one in found
        ]
        damaged = [line for one in found for line in one.damage]
        told = {"report": str(page), "figures": str(figures) if figures else None, "rows": rows}
        emit(told | ({"damaged": damaged} if damaged else {}))
        return 0
    for sentence in regression_verdict(found):
        say(printable(sentence))
    say()
    say(f"The report: {printable(page.resolve())}", page.resolve())
    if figures is not None:
        say(f"The figures: {printable(figures.resolve())}", figures.resolve())
    next_step(f"in Python, {in_python(runs[0], 'regress(x)')}")
    return 0
