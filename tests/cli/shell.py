"""Runs a command line in this process, as a shell would, and looks at what every command must keep to."""

import contextlib
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

from atmc.cli.main import run

CODES = {0, 1, 2, 3, 130}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def atmc(*arguments):
    """Exit code, stdout and stderr; a traceback or an exception is a failure of the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    result = Result(int(code), out.getvalue(), err.getvalue())
    assert result.code in CODES, result
    assert "Traceback" not in result.out + result.err, result
    if result.code == 2:
        assert result.err.strip(), "bad input must be explained"
    return result


def fails(*arguments, code=2, match=""):
    """The one line that a mistake is answered with."""
    result = atmc(*arguments)
    lines = [line for line in result.err.splitlines() if line.startswith("atmc: ")]
    assert result.code == code, result
    assert len(lines) == 1, result
    assert match in lines[0], lines
    assert "ATMC_DEBUG" not in lines[0], lines
    return lines[0]


def fingerprint(folder: Path):
    """Every file and folder with its content: equal before and after means nothing was touched."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found[str(path.relative_to(folder))] = content
    return found
