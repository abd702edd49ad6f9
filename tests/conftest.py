"""One thread for all tests, and a terminal of eighty columns for those that look at one."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Networks and chains here are too small for two threads, which take a third longer on an idle machine.

    Where another process has one of the cores, they wait for each other at every operation, ten times as long. Forked
    children must not inherit a thread pool either. What is about threads sets their number itself.
    """
    torch.set_num_threads(1)


@pytest.fixture
def in_a_terminal() -> Callable[..., str]:
    """Runs a command with a pseudo-terminal of eighty columns as stdout; what it wrote, without colours and moves."""

    def shown(words: list[str], env: dict[str, str], stderr: int | None = None) -> str:
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        own: dict[str, Any] = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "CI")} | env
        both = inner if stderr is None else stderr
        process = subprocess.Popen(words, stdin=inner, stdout=inner, stderr=both, env={**own, "TERM": "xterm"})
        os.close(inner)
        said = b""
        while True:
            try:
                part = os.read(outer, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        os.close(outer)
        assert process.wait(60) == 0, said.decode()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())

    return shown
