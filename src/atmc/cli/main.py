"""The `atmc` command: exit code 0 done, 1 failed, 2 bad input, 3 stopped on time budget, 130 stopped by Ctrl-C.

Errors are one line; `ATMC_DEBUG=1` shows the traceback. Nothing here imports torch, so that `atmc --help` is fast.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from atmc.cli.console import complain
from atmc.common.errors import InputError, RunError

_NO_ROOM = "out of memory; close other programs, or use a smaller batch or network"
DONE, FAILED, BAD_INPUT, OUT_OF_TIME, INTERRUPTED = 0, 1, 2, 3, 130
_show_as_python = warnings.showwarning
_pressed = False  # whether Ctrl-C was, also where an import has swallowed its exception


class Told(int):
    """An exit code whose reason the command has already printed."""


class Stopped(Exception):
    """Ctrl-C, with a line that says how to resume."""


def main() -> None:
    """The entry point of the installed command."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show must not end the program.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _press)
    warnings.showwarning = _one_line
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises, except in debugging."""
    try:
        for word in arguments:
            if "\0" in word:  # no shell passes one, but a caller of this function can; no file's name has one
                raise InputError(f"{word!r} has a null byte, which no name or value may have")
        return _dispatch(list(arguments))
    except InputError as error:
        return _ends(error, BAD_INPUT)
    except RunError as error:
        return _ends(error, FAILED)
    except Stopped as error:
        return _ends(error, INTERRUPTED)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # The reader (`head`, a pager) has exited: no error, but nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except MemoryError as error:
        return _ends(error, FAILED, _NO_ROOM)
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        return _ends(error, FAILED, f"{path}{error.strerror or error}")
    except Exception as error:
        if _pressed:  # in the midst of `import torch`, say, which then fails with anything
            return _interrupted()
        if isinstance(error, ModuleNotFoundError):
            return _ends(error, FAILED, f"needs the Python package {error.name}: pip install 'atmc[cli]'")
        if callable(getattr(error, "format_message", None)):  # a usage error, in whichever click typer brings
            return _ends(error, BAD_INPUT, _usage(error))
        if type(error).__name__ == "Abort":
            return _interrupted()
        if isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "out of memory" in str(error)):
            return _ends(error, FAILED, _NO_ROOM)
        said = f"{type(error).__name__}: {error}"
        return _ends(error, FAILED, f"unexpected {said[:300]} (ATMC_DEBUG=1 shows where; please report it)")


def _one_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A warning for the user as one line, without the place in our code that gave it; others as Python has them."""
    if category is UserWarning:
        complain(str(message))
    else:
        _show_as_python(message, category, *where, **more)


def _press(*_: object) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt


def _dispatch(arguments: list[str]) -> int:
    code = _command().main(args=arguments, prog_name="atmc", standalone_mode=False)
    if code == INTERRUPTED and not isinstance(code, Told):
        return _interrupted()
    return code if isinstance(code, int) else DONE


@cache
def _command() -> Any:
    from typer.main import get_command

    from atmc.cli.app import app

    return get_command(app)


def _usage(error: Any) -> str:
    message = str(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "atmc"
    return f"{message}; see {where} --help"


def _ends(error: BaseException, code: int, message: str | None = None) -> int:
    if os.environ.get("ATMC_DEBUG"):
        raise error
    complain(str(error) if message is None else message)
    return code


def _interrupted() -> int:
    complain("stopped by Ctrl-C")
    return INTERRUPTED
