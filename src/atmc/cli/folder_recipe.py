"""`atmc sample folder:PATH`: default settings for a folder of images, a sub-folder for each class.

Network and likelihood are the demo's, whose speed is for 200 images. At T = 0 a sampler is SGD with learning rate
speed² N, so speeds scale as 1/√N. A few hundred steps of SGD come first: with few images a chain would spend most
of its time on the initial fit.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atmc.cli.console import remark
from atmc.common.errors import InputError
from atmc.common.text import plural

if TYPE_CHECKING:
    from atmc.data import Source
    from atmc.recipe.settings import Recipe

PREFIX = "folder:"
BASE = "digits-atmc"  # the demo's recipe
SIDE = 32  # pixels, where no size is asked for: minutes on a CPU
RATE = 0.01  # of the SGD that the sampler would be without its noise
WARM_STEPS, WARM_LR = 400, 0.01
STEPS, CYCLES = 1200, 20


def recipe_for(name: str, settings: Sequence[str] = ()) -> Recipe:
    """The demo's recipe with data, speed and lengths for the images of `name`; `settings` override all of them."""
    from atmc import data
    from atmc.recipe.settings import ScheduleSection
    from atmc.recipe.toml_files import find_recipe, load_recipe

    finer = "" if "?" in name else shlex.quote(f"{name}?size=64")
    if finer:
        name = f"{name}?size={SIDE}"
    _look(name)
    # The whole path: a run may be resumed from another working directory.
    folder, mark, wishes = name.removeprefix(PREFIX).partition("?")
    name = f"{PREFIX}{Path(folder).expanduser().resolve()}{mark}{wishes}"
    source = data.open_source(name, "train")
    if len(source.classes) < 2:
        raise InputError(f"{name} has pictures of one class only: add a sub-folder with those of another")
    count = len(source)
    if count < 16:
        raise InputError(
            f"{name} has {count} training pictures; it takes at least 16, better some dozens of each class"
        )
    if finer:  # once they can be sampled: a mistake is one line
        remark(f"Pictures are brought to {SIDE} × {SIDE} pixels; for more detail name {finer}")
    batch = min(32, count // 4)
    cycle = max(2, math.ceil(STEPS * batch / count / CYCLES))
    speed = math.sqrt(RATE / count)
    own = {
        "name": f'"{_title(name)}"',
        "data.name": _quoted(name),
        "data.batch_size": batch,
        "sampler.speed": round(speed, 5),
        "sampler.max_speed": round(speed / 0.3, 5),
        "sampler.temperature": 1.0,  # the demo's T was chosen for its 200 digits
        "sampler.inertia": 0.001,
        "schedule.warm_start_epochs": max(10, math.ceil(WARM_STEPS * batch / count)),
        "schedule.warm_start_lr": WARM_LR,
        "schedule.cycle_epochs": cycle,
        "schedule.epochs": CYCLES * cycle,
        "schedule.burn_in_epochs": CYCLES // 4 * cycle,
    }
    if any(setting.replace(" ", "") == "schedule.warm_start_epochs=0" for setting in settings):
        own["schedule.warm_start_lr"] = ScheduleSection.warm_start_lr  # the default: it has no meaning then
    _check_lengths(own, settings, count)
    try:
        made = load_recipe(BASE, [*(f"{key}={value}" for key, value in own.items()), *settings], typed=settings)
    except InputError as error:  # the recipe behind it is not one that anybody named
        raise InputError(str(error).removeprefix(f"{find_recipe(BASE)}: ")) from None
    for sentence in described(made, source):
        remark(sentence)
    return made


def described(recipe: Recipe, train: Source) -> list[str]:
    """What was found in the folder, and which network it gets and why."""
    from atmc import data
    from atmc.recipe.build import build_model

    try:
        held = len(data.open_source(recipe.data.name, "test"))
    except InputError:  # none, which the run will speak of if it needs them
        held = 0
    counts = train.labels.bincount(minlength=len(train.classes)).tolist()
    least, most = min(counts), max(counts)
    each = f"{least}" if least == most else f"{least} to {most}"
    how = "held out by a hash of their names" if _split_here(recipe.data.name) else "of its test folder"
    found = f"Found {len(train) + held:,} pictures of {len(train.classes)} classes ({_names(train.classes)}): "
    found += f"{len(train):,} to learn from, {each} of each class, and {held:,} to test on{f', {how}' if held else ''}."
    network = build_model(recipe, train.shape, len(train.classes))
    size = sum(p.numel() for p in network.parameters())
    section = recipe.model
    kind = {"resnetpp": "ResNet++", "resnet": "ResNet", "mlp": "MLP"}.get(section.name, section.name)
    chosen = f"Network: {kind} of depth {section.depth} and width {section.width}, {size:,} parameters"
    if (section.name, section.depth, section.width) == ("resnetpp", 8, 8):
        chosen += ": small, so that a CPU samples it in minutes, and without BatchNorm, which cannot be sampled. "
        chosen += "With many pictures a wider one is worth a try: --set model.width=32"
    return [found, chosen + ("" if chosen.endswith("32") else ".")]


def _names(classes: Sequence[str]) -> str:
    shown = [str(name) for name in classes[:5]]
    return ", ".join(shown) + (f" and {len(classes) - 5} more" if len(classes) > 5 else "")


def _split_here(name: str) -> bool:
    """Whether the test pictures were chosen here, and not put into a folder of their own."""
    return not (Path(name.removeprefix(PREFIX).partition("?")[0]) / "train").is_dir()


def _check_lengths(own: Mapping[str, object], settings: Sequence[str], count: int) -> None:
    """Refuse lengths that leave no sample, with the fewest epochs that do.

    The recipe's own error would name a cycle and a burn-in that were chosen here, and that nobody has typed.
    """
    given = _keys(settings)
    if given.keys() & {"schedule.kind", "schedule.sample_every_steps"}:
        return  # no cycles, or samples at other times than their ends
    keys = [f"schedule.{name}" for name in ("epochs", "cycle_epochs", "burn_in_epochs")]
    try:
        epochs, cycle, burn_in = (int(str(given.get(key, own[key]))) for key in keys)
    except ValueError:
        return  # no whole number, as the recipe will say
    if min(epochs, cycle) < 1 or burn_in < 0:
        return  # so it will of these
    fewest = (burn_in // cycle + 1) * cycle
    if epochs >= fewest:
        return
    less = {keys[1]: max(1, epochs // CYCLES), keys[2]: epochs // 4}
    short_cycle, short_burn_in = (int(given.get(key, value)) for key, value in less.items())
    shorter = ""
    if (short_burn_in // short_cycle + 1) * short_cycle <= epochs:
        sets = " ".join(f"--set {key}={value}" for key, value in less.items() if key not in given)
        shorter = f", or shorten what is not set: {sets}"
    typed = " ".join(f"--set {key}={given[key]}" for key in keys if key in given)
    raise InputError(
        f"{typed}: {plural(epochs, 'epoch')} of {count} pictures are too few for a sample, with cycles of "
        f"{cycle} and a burn-in of {burn_in}: set {keys[0]}={fewest} or more{shorter}"
    )


def _keys(settings: Sequence[str]) -> dict[str, str]:
    """The values of `--set` by key; the last one counts."""
    return {key.strip(): value.strip() for key, _, value in (setting.partition("=") for setting in settings)}


def _look(name: str) -> None:
    """Refuse images without sub-folders: they have no class."""
    from atmc.data.image_decoding import SUFFIXES

    folder = Path(name.removeprefix(PREFIX).partition("?")[0])
    if not folder.is_dir():
        return
    inside = list(folder.iterdir())
    if any(p.suffix.lower() in SUFFIXES for p in inside) and not any(p.is_dir() for p in inside):
        raise InputError(
            f"{folder} has pictures but no sub-folders: put those of each class into a folder of its own, "
            f"for example {folder / 'cats' / '1.jpg'} and {folder / 'dogs' / '1.jpg'}"
        )


def _title(name: str) -> str:
    """The name of the run, from the folder's."""
    folder = Path(name.removeprefix(PREFIX).partition("?")[0]).resolve().name
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in folder) or "images"


def _quoted(text: str) -> str:
    """`text` as a TOML string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
