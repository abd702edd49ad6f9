"""The errors a person meets: something asked for wrongly, and something that went wrong while running.

The command line turns `InputError` into one line on stderr and exit code 2, and `RunError` into one line and exit
code 1. Both derive from the built-in errors, so that library users can catch those. And where a warning is to point.
"""

import sys


class InputError(ValueError):
    """What was asked for cannot be done as asked; the message says what to change."""


class OtherRunError(InputError):
    """What is in the folder is a run with other settings."""


class RunError(RuntimeError):
    """A run could not go on; the message says what happened and what is safe."""


class DivergedError(RunError):
    """Chains have diverged as often as they may. To call again with the same settings makes no difference."""


def outside(*others: str) -> int:
    """The stacklevel that makes a warning of the caller's point to the first line that is not atmc's, nor `others`'."""
    level, frame, inside = 1, sys._getframe(1), {"atmc", *others}
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    return level
