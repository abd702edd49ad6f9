"""Terminal output: results on stdout, progress and errors on stderr.

Texts may come from untrusted files, so control characters are escaped.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

PATIENCE = 1.5  # seconds before progress is reported
_TIE = "\N{NO-BREAK SPACE}"
_START = re.compile(r" *(?:[✓·!✗→] )?")  # indent and mark of a line
_UNIT = re.compile(r"(?<=\d) (?=%)|(?<=[=±]) (?=\d)| (?=[=±] \d)")  # "50 %", "T = 1", "1.00 ± 0.02"
_WORDS = re.compile(r"( *)([^ ]+)")


def printable(text: object) -> str:
    """`text` on one line, with control characters escaped."""
    joined = " ".join(str(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in joined)


def say(text: str = "", *whole: object, hang: int | None = None) -> None:
    """Print one line, wrapped between words where stdout is a terminal.

    Args:
        whole: parts that are not broken: commands to copy, paths.
        hang: the column in which lines after the first begin; by default where the text begins.
    """
    if sys.stdout.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns, [printable(part) for part in whole], hang)
    print(text, flush=True)


def wrapped(text: str, columns: int, whole: Sequence[str] = (), hang: int | None = None) -> str:
    """`text` in lines of at most `columns`; a longer word has a line of its own."""
    from rich.cells import cell_len

    if cell_len(text) <= columns:
        return text
    for part in whole:
        text = text.replace(part, part.replace(" ", _TIE)) if part else text
    text = _UNIT.sub(_TIE, text)
    start = _START.match(text)
    indent = start.end() if start is not None and hang is None else hang or 0
    if indent > columns // 2:
        indent = 0
    lines = [text[: len(text) - len(text.lstrip(" "))]]  # the gap before a word is kept where both stay on one line
    for gap, word in _WORDS.findall(text.lstrip(" ")):
        if lines[-1].strip() and cell_len(lines[-1] + gap + word) > columns:
            lines.append(" " * indent + word)
        else:
            lines[-1] += gap + word
    return "\n".join(lines).replace(_TIE, " ")


def complain(message: object) -> None:
    """Print an error as one line on stderr."""
    _line(f"atmc: {printable(message)}")


def remark(message: object) -> None:
    """Print progress or a note on stderr."""
    _line(printable(message))


def _line(text: str) -> None:
    """Write a line in one call: the thread of `working` may be writing another."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def emit(value: Any) -> None:
    """Print a result as JSON; numbers that are not finite become null."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not (abs(value) < float("inf")):
        return None
    return value


def command(*words: object) -> str:
    """A command line, quoted for a shell."""
    return " ".join(shlex.quote(str(word)) for word in words)


def next_step(*commands: str) -> None:
    """Print the commands to type next."""
    say()
    for i, line in enumerate(commands):
        print(f"{'Next:' if i == 0 else '     '} {printable(line)}", flush=True)  # to be copied: never wrapped


@contextmanager
def working(message: str) -> Iterator[None]:
    """Report on stderr what is being done if it takes long; on a terminal with a spinner."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(message)):
            yield
        return
    timer = threading.Timer(PATIENCE, remark, [f"{message} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def width() -> int:
    """Columns of the terminal; 200 where there is none, so that nothing is cut in a file."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else 200


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    bold: Sequence[Sequence[bool]] | None = None,
    left: Sequence[int] = (0,),
) -> None:
    """Print a table without rules. Columns in `left` hold words and may wrap; the others hold numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # for `main`: rich would exit with code 1 though nothing failed

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for i, heading in enumerate(headings):
        words = i in left
        least = min(24, max(len(row[i]) for row in rows)) if words and rows else None
        made.add_column(
            Text(heading), justify="left" if words else "right", no_wrap=not words, overflow="fold", min_width=least
        )
    for r, row in enumerate(rows):
        strong = bold[r] if bold is not None else [False] * len(row)
        made.add_row(*(Text(printable(c), style="bold" if b else "") for c, b in zip(row, strong, strict=True)))
    Plain(highlight=False, width=width()).print(made)
