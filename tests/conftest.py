"""One thread for all tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Networks and chains here are too small for two threads, which take a third longer on an idle machine.

    Where another process has one of the cores, they wait for each other at every operation, ten times as long. Forked
    children must not inherit a thread pool either. What is about threads sets their number itself.
    """
    torch.set_num_threads(1)
