"""The HTML report, its figures and its tables, from run directories.

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
    ood: Sequence[str] = (),
    shift: bool = False,
    command: str = "",
) -> ReportData:
    """Write the report of `runs` to `out` and return its data.

    Args:
        figures: a folder for every plot (SVG, PNG) and the table (Markdown, LaTeX, JSON).
        ood: out-of-distribution images to evaluate: letters, scrambled, noise, or any data set.
        shift: whether to score corrupted test images, too.
        command: the command line that the page quotes.

    Raises:
        InputError: `out` exists and is not a report.
    """
    from atmc.report.collect import gather
    from atmc.report.output_files import refuse_foreign, write
    from atmc.report.page import GENERATOR, render

    refuse_foreign(Path(out), GENERATOR)
    data = gather([Path(run) for run in runs], ood=ood, shift=shift, command=command)
    write(Path(out), render(data))
    if figures is not None:
        from atmc.report.figures import save_figures

        save_figures(data, Path(figures))
    return data
