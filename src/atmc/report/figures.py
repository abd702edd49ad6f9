"""Save every plot as SVG and PNG, and the table as Markdown, LaTeX and JSON."""

from pathlib import Path

from atmc.report import table
from atmc.report.output_files import write
from atmc.report.plot_style import Ink, png, svg
from atmc.report.plots import plots
from atmc.report.report_data import ReportData


def save_figures(data: ReportData, folder: Path) -> list[Path]:
    """Write everything into `folder` and return the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = table.rows(data.runs)
    written = [
        write(folder / "table.md", table.markdown(rows)),
        write(folder / "table.tex", table.latex(rows)),
        write(folder / "table.json", table.as_json(rows)),
    ]
    for plot in plots(data):
        figure = plot.draw(Ink.paper())
        written.append(write(folder / f"{plot.name}.svg", svg(figure)))
        written.append(write(folder / f"{plot.name}.png", png(figure)))
    return written
