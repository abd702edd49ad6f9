"""The two errors a person meets: something asked for wrongly, and something that went wrong while running.

The command line turns `InputError` into one line on stderr and exit code 2, and `RunError` into one line and exit
code 1. Both derive from the built-in errors, so that library users can catch those.
"""


class InputError(ValueError):
    """What was asked for cannot be done as asked; the message says what to change."""


class RunError(RuntimeError):
    """A run could not go on; the message says what happened and what is safe."""
