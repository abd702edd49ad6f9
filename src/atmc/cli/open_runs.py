"""Open what the command line names: runs, saved posteriors, devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atmc.cli.console import command, remark, working
from atmc.cli.main import Stopped
from atmc.common.errors import InputError

if TYPE_CHECKING:
    from atmc.data.image_decoding import View
    from atmc.engine.runner import RunResult
    from atmc.posterior import Posterior
    from atmc.recipe.settings import Recipe
    from atmc.storage.run_directory import RunDir


def check_run(path: Path) -> None:
    """Refuse a missing folder, before anything slow is imported."""
    if not path.is_dir():
        raise InputError(f"there is no run directory {path}; make one with atmc sample RECIPE --out {path}")


def is_regression(run: RunDir) -> bool:
    """Whether the run's likelihood is a regression's."""
    return bool(run.likelihood().task != "classification")


def in_python(path: Path, call: str) -> str:
    """The Python for a run with a custom network or with data given as tensors."""
    return f"atmc.Posterior.from_run({str(path)!r}, model).{call}"


def saved_in_python(path: Path, call: str) -> str:
    """The Python for a saved posterior."""
    return f"atmc.Posterior.load({str(path)!r}).{call}"


def is_saved(path: Path) -> bool:
    """Whether a folder holds a saved posterior rather than a run."""
    return (path / "posterior.json").is_file()


def scores_next(path: Path, run: RunDir) -> str:
    """The command or the Python that scores a run."""
    if not len(run.bank):
        return command("atmc", "sample", path)
    from atmc.report.report_data import OWN

    if run.recipe.data.name == OWN and "test" not in run.splits:
        return f"in Python, {in_python(path, 'evaluate(x, y)')}"
    return command("atmc", "report", path)


def open_posterior(path: Path, size: str | None = None) -> tuple[Posterior, View]:
    """The posterior of a run directory, or a saved one, and how its image files are decoded; refuses a regression."""
    check_run(path)
    from atmc.data.image_decoding import View
    from atmc.posterior import Posterior

    if is_saved(path):
        posterior = Posterior.load(path)
        if posterior.is_regression:
            raise InputError(f"{path} is of a regression: in Python, use {saved_in_python(path, 'regress(x)')}")
        return posterior, View.of(_saved_shape(path, posterior, size), posterior.crop)
    from atmc.report.read_run import Reading

    reading = Reading(path)
    shape = tuple(int(n) for n in reading.run.manifest["data"]["shape"])
    if is_regression(reading.run):
        raise InputError(f"{path} is a regression: in Python, use {in_python(path, 'regress(x)')}")
    if len(shape) != 3:
        raise InputError(
            f"{path} was made for examples of shape {list(shape)}, which are not images: in Python, use "
            f"{in_python(path, 'predict(x)')}"
        )
    if size is not None and _sides(size) != (shape[2], shape[1]):
        raise InputError(f"--size {size}: {path} takes images of {shape[2]}x{shape[1]} alone: leave --size out")
    return reading.posterior, View.of(shape, reading.posterior.crop)


@contextmanager
def threads_of(path: Path) -> Iterator[None]:
    """Use as many threads as the run was sampled with: on a busy machine small networks crawl with torch's default."""
    from atmc.storage.manifest import Manifest

    if not Manifest.exists(path):
        yield
        return
    import torch

    from atmc.engine.torch_settings import numerics
    from atmc.storage.run_directory import RunDir

    with numerics(RunDir.open(path).recipe, torch.device("cpu")):
        yield


def _saved_shape(path: Path, posterior: Posterior, size: str | None) -> tuple[int, int, int]:
    known = posterior.shape
    if known is not None and len(known) != 3:
        raise InputError(
            f"{path} was made for examples of shape {list(known)}, which are not images: in Python, use "
            f"{saved_in_python(path, 'predict(x)')}"
        )
    if size is None:
        if known is None:
            raise InputError(f"{path} does not say how large its images are: add --size WIDTHxHEIGHT")
        channels, rows, columns = known
        return channels, rows, columns
    width, height = _sides(size)
    if posterior.mean and known is not None and known[1:] != (height, width):
        raise InputError(f"--size {size}: {path} takes images of {known[2]}x{known[1]} alone: leave --size out")
    return len(posterior.mean) or 3, height, width


def _sides(size: str) -> tuple[int, int]:
    width, _, height = size.partition("x")
    if not (width.isdecimal() and height.isdecimal() and 0 < int(width) < 10_000 and 0 < int(height) < 10_000):
        raise InputError(f"--size {size}: write it as WIDTHxHEIGHT, for example 32x32")
    return int(width), int(height)


def tell_damage(path: Path, found: Sequence[str]) -> None:
    """Print on stderr which files of a run are damaged and what to do."""
    from atmc.storage.run_directory import STUCK

    for line in found:
        remark(f"damaged: {line}")
    if found and any(STUCK in line for line in found):
        remark("The other files were used. To sample more, begin a new run in another folder.")
    elif found:
        remark(f"The other files were used. {command('atmc', 'sample', path)} sets damaged samples aside and resumes.")


def damage_of(path: Path) -> list[str]:
    """The damaged files of a run, one line each; a saved posterior is whole or refused."""
    from atmc.storage.run_directory import RunDir

    return [] if is_saved(path) else RunDir.open(path).damage()


def check_device(name: str | None) -> str | None:
    """`name` if this machine has it."""
    if name is None:
        return None
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name}: choose cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {name}: choose cpu, cuda or cuda:N")
    return name


def run_recipe(
    recipe: Recipe, folder: Path, *, time_budget: float | None = None, quiet: bool = False, again: str = ""
) -> RunResult:
    """Run or resume a recipe. After a second Ctrl-C, which does not wait, `again` is the command that resumes."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise InputError(f"{there} is a file and cannot hold a run: name a folder with --out")
    with working("starting"):  # torch alone takes seconds on a cold machine
        from atmc.engine.runner import run

    try:
        return run(recipe, folder, time_budget=time_budget, progress=None if quiet else "auto")
    except KeyboardInterrupt:
        from atmc.storage.manifest import Manifest

        if not again and not Manifest.exists(folder):  # there is nothing yet to resume
            raise Stopped(f"stopped before {folder} became a run: the same command begins it") from None
        raise Stopped(
            f"stopped at once; resume from the last checkpoint with {again or command('atmc', 'sample', folder)}"
        ) from None
