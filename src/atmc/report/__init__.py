"""What a person sees: the page, its plots and its tables, made from run directories.

atmc.report.build(["runs/atmc", "runs/sgd"], "report.html", figures="figures")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atmc.report.report_data import ReportData


def build(
    runs: Sequence[str | Path],
    out: str | Path,
    figures: str | Path | None = None,
    *,
    strangers: Sequence[str] = (),
    command: str = "",
) -> ReportData:
    """Write the page of `runs` to `out`, and with `figures` also every plot and the table as files there.

    `strangers` name images from elsewhere to show the networks: letters, scrambled, noise, or any data set. A file at
    `out` that is not a report of ours is left alone and named. Returns the facts that were shown.
    """
    from atmc.report.collect import gather
    from atmc.report.output_files import refuse_foreign, write
    from atmc.report.page import GENERATOR, render

    refuse_foreign(Path(out), GENERATOR)
    data = gather([Path(run) for run in runs], strangers=strangers, command=command)
    write(Path(out), render(data))
    if figures is not None:
        from atmc.report.figures import save_figures

        save_figures(data, Path(figures))
    return data
