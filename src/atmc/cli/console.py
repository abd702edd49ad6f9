"""What every verb says and how: results on stdout, progress and errors on stderr, and always the next command.

Texts come from file names and run directories that may be anybody's, so control characters are shown and never obeyed.
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

PATIENCE = 1.5  # seconds before a word about what takes so long
_TIE = "\N{NO-BREAK SPACE}"
_START = re.compile(r" *(?:[✓·!✗→] )?")  # indent and mark of a line
_UNIT = re.compile(r"(?<=\d) (?=%)|(?<=[=±]) (?=\d)| (?=[=±] \d)")  # "50 %", "T = 1", "1.00 ± 0.02"
_WORDS = re.compile(r"( *)([^ ]+)")


def printable(text: object) -> str:
    """`text` on one line, with control characters (also a terminal's escape codes) spelled out."""
    joined = " ".join(str(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in joined)


def say(text: str = "", *whole: object, hang: int | None = None) -> None:
    """One line of a result; where stdout is a terminal, as many as its width asks for, broken between words.

    `whole` are parts of the text that stay in one piece even so: commands to copy, paths. `hang` is the column in which
    lines after the first begin, if not that of the text behind its indent and its mark.
    """
    if sys.stdout.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns, [printable(part) for part in whole], hang)
    print(text, flush=True)


def wrapped(text: str, columns: int, whole: Sequence[str] = (), hang: int | None = None) -> str:
    """`text` in lines of at most `columns`, but for a word that is longer: that has a line of its own, and is whole."""
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
    """The one clear line about what went wrong."""
    _line(f"atmc: {printable(message)}")


def remark(message: object) -> None:
    """A line beside the result: progress, or a note."""
    _line(printable(message))


def _line(text: str) -> None:
    """A line on stderr in one piece: a thread may be writing another (`working`), and Ctrl-C ends either."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def emit(value: Any) -> None:
    """A result for machines. A number that is not finite is null, as JSON has no other word for it."""
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
    """A command line that can be pasted into a shell."""
    return " ".join(shlex.quote(str(word)) for word in words)


def next_step(*commands: str) -> None:
    """What to type next."""
    say()
    for i, line in enumerate(commands):
        print(f"{'Next:' if i == 0 else '     '} {printable(line)}", flush=True)  # to be copied: never wrapped


@contextmanager
def working(message: str) -> Iterator[None]:
    """Say on stderr what is being done, if it takes more than a moment; a spinner where there is a terminal."""
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
    """Columns that may be filled; plenty where the output is no terminal, so that nothing is cut in a file."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else 200


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    bold: Sequence[Sequence[bool]] | None = None,
    left: Sequence[int] = (0,),
) -> None:
    """A table without rules. Columns named in `left` hold words and may wrap; the others hold numbers and may not."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # for `main`: rich would leave with exit code 1, and nothing has failed

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
