"""How a run ends when several chains, and perhaps several processes, have each had an ending of their own.

A chain that diverges for good does not stop the others: they finish, and then the run ends with one line that names it.
Processes that share out the chains come to one ending: the same status, the same samples, the same line.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atmc.common.errors import DivergedError, RunError
from atmc.engine.processes import World
from atmc.recipe.settings import Recipe

if TYPE_CHECKING:
    from atmc.engine.runner import Runner


@dataclass(frozen=True)
class _Ending:
    """How it went in one process."""

    status: str
    samples: int
    steps: int
    diverged: list[str]  # a line for each chain that gave up
    problem: str | None = None  # what ended the process itself


def end_together(world: World, runner: "Runner", deadline: float | None) -> tuple[str, int, int]:
    """Run, and come to one ending with the other processes: status, samples and steps, or one `RunError` for all.

    The first process keeps the lock until the last is done: their chains lie in the same folder.
    """
    failed: RunError | None = None
    try:
        runner.begin()
        mine = _Ending(runner.run(deadline), *runner.totals(), list(runner.given_up.values()))
    except RunError as error:
        if world.share != "chains":
            raise
        failed = error  # the others' chains are none of its business: it waits for them
        mine = _Ending("done", 0, 0, [], str(error))
    endings = world.tell(mine)
    if failed is not None:
        raise failed
    if world.share == "data":
        endings = endings[:1]  # all have made the same steps, and the first has the files
    if problems := [ending.problem for ending in endings if ending.problem is not None]:
        raise RunError("; ".join(problems))
    statuses = {ending.status for ending in endings}
    status = next(s for s in ("interrupted", "budget", "done") if s in statuses)
    samples, steps = sum(ending.samples for ending in endings), sum(ending.steps for ending in endings)
    diverged = [line for ending in endings for line in ending.diverged]
    if diverged and status == "done":  # before that there is more to do: the next call will say it
        raise DivergedError(_all_over(diverged, runner.recipe, samples))
    return status, samples, steps


def _all_over(diverged: list[str], recipe: Recipe, samples: int) -> str:
    """The one line for a run that ended without some of its chains."""
    said = "; ".join(diverged)
    if others := recipe.chains - len(diverged):
        said += f"; {others} of {recipe.chains} chains are done, and the run has {samples} samples"
    return f"{said}; to try on, call again with a larger run.max_rollbacks ({recipe.run.max_rollbacks} now)"
