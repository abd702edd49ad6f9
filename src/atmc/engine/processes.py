"""The processes of a run: one, or those that torchrun started.

Several processes either share one chain (each has its part of every batch; gradients are averaged, and the sampler's
noise is the same everywhere, so all hold the same weights) or share out the chains (chain i runs in process i mod n).
"""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch

from atmc.common.errors import InputError, RunError
from atmc.recipe.settings import Recipe

T = TypeVar("T")
# Processes that share out chains meet again only at the end, and one may have many more steps to make than another.
_PATIENCE = timedelta(days=365)
_MEETING = timedelta(minutes=5)  # for all processes to be there
_JOINED = itertools.count()  # runs of this process, which all others have, too


@dataclass(frozen=True)
class World:
    """This process among `size`; `share` is what they share: "data", "chains", or "nothing" where there is one."""

    rank: int = 0
    size: int = 1
    share: str = "nothing"
    control: Any = None  # a process group on the CPU for decisions, so that they never wait for a device
    started: bool = False  # whether the process group is this run's own

    @property
    def data_rank(self) -> int:
        return self.rank if self.share == "data" else 0

    @property
    def data_size(self) -> int:
        return self.size if self.share == "data" else 1

    @property
    def writes(self) -> bool:
        """Whether this process writes its chains' files."""
        return self.data_rank == 0

    def chains(self, recipe: Recipe) -> list[int]:
        """The numbers of the chains that this process runs."""
        mine = range(self.rank, recipe.chains, self.size) if self.share == "chains" else range(recipe.chains)
        return list(mine)

    def agree(self, wishes: Sequence[bool]) -> list[bool]:
        """For each wish whether any process of the chain has it: decisions that depend on clocks or signals."""
        if self.data_size == 1:
            return list(wishes)
        flags = torch.tensor([int(w) for w in wishes])
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX, group=self.control)
        return [bool(f) for f in flags]

    def wait(self) -> None:
        """Wait for the other processes of a data-parallel chain (after the one that writes has written)."""
        if self.data_size > 1:
            torch.distributed.barrier(group=self.control)

    def leave(self) -> None:
        """End the process group, where this run began it."""
        if self.started:
            torch.distributed.destroy_process_group()

    def tell(self, value: T) -> list[T]:
        """What every process of the run has to say, in their order; waits for all of them, and Ctrl-C ends the wait."""
        if self.size == 1:
            return [value]
        waiting = torch.distributed.barrier(group=self.control, async_op=True)
        while waiting is not None and not waiting.is_completed():
            time.sleep(0.01)
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value, group=self.control)
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """All processes do this or none: what goes wrong in one is raised in all, and nobody waits for one that left.

        Not around anything in which the processes themselves talk to each other.
        """
        problem: InputError | RunError | None = None
        try:
            yield
        except (InputError, RunError) as error:
            problem = error
        said = self.tell(None if problem is None else (isinstance(problem, InputError), str(problem)))
        if problem is not None:
            raise problem
        for found in said:
            if found is not None:
                raise InputError(found[1]) if found[0] else RunError(found[1])


def join(recipe: Recipe, device: torch.device) -> World:
    """This process's place, from torchrun's environment or from a process group that is already there."""
    import torch.distributed as dist

    if not dist.is_available():
        return World()
    started = not dist.is_initialized()
    if started:
        if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
            return World()
        # The store outlives a restart by torchrun, and with it the addresses of processes that are no more.
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        store, own, count = next(rendezvous("env://", timeout=_MEETING))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"atmc/{attempt}/{next(_JOINED)}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=own, world_size=count)
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return World()
    share = recipe.run.parallel if recipe.run.parallel != "auto" else ("chains" if recipe.chains > 1 else "data")
    check_sharing(recipe, share, size)
    control = dist.new_group(backend="gloo", timeout=_PATIENCE if share == "chains" else None)
    return World(rank, size, share, control, started)


def check_sharing(recipe: Recipe, share: str, size: int) -> None:
    """One clear line where so many processes have nothing to share."""
    if share == "chains" and recipe.chains < size:
        raise InputError(f"chains = {recipe.chains} is fewer than the {size} processes: start {recipe.chains} or fewer")
    if share == "data" and recipe.data.batch_size % size:
        raise InputError(f"data.batch_size = {recipe.data.batch_size} is no multiple of the {size} processes")


def pick_device(name: str) -> torch.device:
    """The device a recipe names; `auto` is this process's GPU where there is one."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        if not torch.cuda.is_available():
            raise InputError(f'run.device = "{name}", and PyTorch finds no CUDA device here: use "cpu" or "auto"')
        index = int(name.partition(":")[2]) if ":" in name else local % torch.cuda.device_count()
        if index >= torch.cuda.device_count():
            raise InputError(f'run.device = "{name}", and there are {torch.cuda.device_count()} CUDA devices')
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return torch.device("cpu")
