"""One style for every plot, drawn with matplotlib.

On the page a plot is inline SVG with the page's CSS colours and font, so that it follows light, dark and print. As a
file it has the light palette.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

SERIES = 6
# Placeholders for the page's CSS variables; no palette below uses them.
_PAGE_INK, _PAGE_MUTED, _PAGE_RULE = "#010101", "#010102", "#010103"
_PAGE_SERIES = tuple(f"#0201{i:02x}" for i in range(1, SERIES + 1))
_VARIABLES = {_PAGE_INK: "var(--ink)", _PAGE_MUTED: "var(--muted)", _PAGE_RULE: "var(--rule)"}
_VARIABLES |= {colour: f"var(--series-{i})" for i, colour in enumerate(_PAGE_SERIES, start=1)}

LIGHT = ("#2f62a8", "#c8641b", "#2f8f6b", "#9a4f96", "#a08a14", "#5f6f7a")
DARK = ("#8ab4f0", "#f0a265", "#74cfa9", "#d79ad4", "#d9c55a", "#a9b7c0")

WIDE, NARROW = (4.5, 3.1), (3.5, 2.5)


class Ink:
    """The colours to draw with: `Ink.page()` for the page, `Ink.paper()` for a file."""

    def __init__(self, ink: str, muted: str, rule: str, series: tuple[str, ...], *, legend: bool) -> None:
        self.ink, self.muted, self.rule, self._series, self.legend = ink, muted, rule, series, legend

    def series(self, index: int) -> str:
        return self._series[index % SERIES]

    @classmethod
    def page(cls) -> "Ink":
        return cls(_PAGE_INK, _PAGE_MUTED, _PAGE_RULE, _PAGE_SERIES, legend=False)

    @classmethod
    def paper(cls) -> "Ink":
        return cls("#1d1d1b", "#6b6b66", "#dcdad2", LIGHT, legend=True)


@contextmanager
def sheet(ink: Ink, size: tuple[float, float], xlabel: str, title: str) -> Iterator[tuple[Figure, Any]]:
    """Empty axes in this style, with the y label as a title above them."""
    style: dict[str, Any] = {
        "font.size": 9.5,
        "figure.facecolor": "none" if not ink.legend else "white",
        "axes.facecolor": "none",
        "font.family": "sans-serif",
        "text.color": ink.ink,
        "axes.edgecolor": ink.muted,
        "axes.labelcolor": ink.muted,
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": ink.rule,
        "grid.linewidth": 0.6,
        "xtick.color": ink.muted,
        "ytick.color": ink.muted,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.fonttype": "none",
        "svg.hashsalt": "atmc",
        "path.simplify_threshold": 0.3,
        "text.usetex": False,
        "text.parse_math": False,
    }
    context: Any = mpl.rc_context
    with context(style):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontsize=9.5, color=ink.ink, pad=8)
        axes.set_xlabel(xlabel)
        yield figure, axes


def page_svg(figure: Figure, name: str, label: str) -> str:
    """Inline SVG for the page: themable, with unique ids and a description for screen readers."""
    text = svg(figure)
    text = text[text.index("<svg") :]
    # matplotlib's style rule is for "*" and would reach the whole page; page.css has it for plots only.
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    text = re.sub(r"(\bid=\"|href=\"#|url\(#)", rf"\g<1>{name}-", text)
    text = re.sub(
        r"<svg [^>]*viewBox=\"([^\"]+)\"[^>]*>", lambda box: _opening(label, box[1]), text, count=1, flags=re.S
    )
    return re.sub(r"\n\s*", "\n", text)


def _opening(label: str, box: str) -> str:
    from html import escape

    tag = f'<svg viewBox="{box}" role="img" aria-label="{escape(label, quote=True)}" xmlns="http://www.w3.org/2000/svg"'
    return tag + ' xmlns:xlink="http://www.w3.org/1999/xlink">'


def svg(figure: Figure) -> str:
    """A standalone SVG file. No date inside: the same numbers give the same file."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "atmc"}):
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def png(figure: Figure, dpi: int = 200) -> bytes:
    buffer = io.BytesIO()
    figure.set_dpi(dpi)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()
