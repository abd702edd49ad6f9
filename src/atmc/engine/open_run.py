"""Opening a run directory to run in it: make it where there is none, or see that what is there is this very run."""

import json
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from atmc.common.atomic_files import sweep
from atmc.common.errors import InputError, OtherRunError
from atmc.engine.run_data import RunData
from atmc.engine.schedule import Schedule, make_schedule
from atmc.recipe.settings import Recipe, flat
from atmc.recipe.toml_files import RECIPE_FILE, recipe_to_toml
from atmc.samplers import fused_native, fused_triton
from atmc.storage.files import DamagedFileError, problem, tensors_to_bytes
from atmc.storage.manifest import NAME, Manifest, binding_of, hardware
from atmc.storage.run_directory import FIXED, fixed_tensors, labels_file, read_recipe

# What may differ when a run goes on: nothing of this changes what is sampled. The length may, see `_longer`.
_FREE = ("run.", "name", "data.root", "data.workers")
_LENGTH = "schedule.epochs"
_PRIOR = "target.prior"


def prepare(
    folder: Path,
    recipe: Recipe,
    data: RunData,
    device: torch.device,
    network: dict[str, Any],
    fixed: dict[str, Tensor] | None = None,
    pilots: Sequence[dict[str, Any]] = (),
) -> Manifest:
    """The manifest of the run in `folder`: a new one, or that of the same run begun earlier.

    Call it when everything else has been built: from here on the folder is a run of this recipe. A run that was killed
    before its first checkpoint has nothing that another recipe could spoil, and gives way to it.
    """
    for place in (folder, folder / "labels"):
        sweep(place, root=folder)
    before = Manifest.load(folder) if Manifest.exists(folder) else None
    if before is not None and _has_begun(before, folder):
        manifest = before
        for key in ("data", "sessions", "checkpoints", "recipe"):
            if manifest.values.get(key) is None:
                raise DamagedFileError(folder / NAME, f"does not have the {key!r} of a run")
        _check_same(manifest, folder, recipe, data, fixed or {})
    else:
        if before is not None:
            shutil.rmtree(folder / "chains", ignore_errors=True)
        # A run killed in its first moments may have left these.
        elif any(p.name not in (".lock", RECIPE_FILE) and p.suffix != ".tmp" for p in folder.glob("*")):
            raise InputError(f"{folder} is not empty and not a run: choose another folder, or remove it first")
        seen = data.inputs or data.train
        about = {
            "digests": data.digests(),
            "name": seen.name,
            "examples": len(seen),
            "shape": list(seen.shape),
            "classes": list(seen.classes),
            "mean": list(seen.mean),
            "std": list(seen.std),
        }
        manifest = Manifest.create(
            folder,
            seed=recipe.seed,
            chains=recipe.chains,
            data=about,
            network=network,
            sessions=[],
            checkpoints=[],
            binding=binding_of(_what_is_sampled(recipe, data)),
            **({"pilots": list(pilots)} if pilots else {}),
        )
    manifest.values["recipe"] = text = recipe_to_toml(recipe)
    manifest.record(RECIPE_FILE, manifest.write(RECIPE_FILE, text.encode()))
    manifest.values["sessions"].append(
        {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "hardware": hardware(device) | {"step": _step(recipe, device)},
        }
    )
    manifest.commit()
    if fixed and FIXED not in manifest.values["files"]:
        manifest.record(FIXED, manifest.write(FIXED, tensors_to_bytes(fixed, {})))
        manifest.commit()
    if _keep_labels(manifest, data):  # after the folder is known to be a run, whatever happens next
        manifest.commit()
    return manifest


def _what_is_sampled(recipe: Recipe, data: RunData) -> str:
    """Recipe and data, but for what may differ when a run is resumed."""
    kept = {key: value for key, value in flat(recipe).items() if not key.startswith(_FREE) and key != _LENGTH}
    return json.dumps([kept, data.train.digest], sort_keys=True, default=str)


def _step(recipe: Recipe, device: torch.device) -> str:
    """What makes the steps here. Bodies agree to rounding; only the two compiled ones with fused multiply-adds agree
    bit for bit."""
    if recipe.sampler.name == "sgd":
        return "torch.optim.SGD"
    if device.type == "cuda":
        return "Triton" if getattr(fused_triton, "kernels", None) else "PyTorch operations"
    found = fused_native.library()
    if found is None:
        return "PyTorch operations"
    return "compiled code with fused multiply-adds" if "_avx" in str(found._name) else "compiled code"


def made_elsewhere(manifest: Manifest) -> list[str]:
    """A line for everything about this machine that keeps a resumed run from being the same bit for bit."""
    if len(manifest.values["sessions"]) < 2:
        return []
    before, now = (session.get("hardware") or {} for session in manifest.values["sessions"][-2:])
    names = {"step": "steps by", "gpu": "on", "device": "on", "instructions": "processor with", "threads": "threads:"}
    changed = [
        f"{words} {before[key]}, now {now[key]}"
        for key, words in (*names.items(), ("torch", "PyTorch"))
        if key in before and key in now and before[key] != now[key]
    ]
    said = "The run is resumed under other conditions, so its samples will not be bit for bit those of an unbroken run"
    return [f"{said} ({'; '.join(changed)})"] if changed else []


def _has_begun(manifest: Manifest, folder: Path) -> bool:
    """Whether any chain has a checkpoint or a sample, be it a lost one; where that cannot be known it has."""
    chains = [path for path in (folder / "chains").glob("*") if path.is_dir()]
    if any(not Manifest.exists(path) and any(path.rglob("*.safetensors")) for path in chains):
        return True
    try:
        parts = [manifest, *(Manifest.load(path) for path in chains if Manifest.exists(path))]
    except DamagedFileError:
        return True
    kept = ("checkpoints", "samples", "lost")
    return any(part.values.get(key) or any(part.folder.glob("samples/*")) for part in parts for key in kept)


def _keep_labels(manifest: Manifest, data: RunData) -> bool:
    """Write the labels of every evaluation set that has none yet, or whose file was damaged since; whether any."""
    changed = False
    known = manifest.values["data"]["digests"]
    for split, found in data.evaluate.items():
        known.setdefault(split, found.digest)  # a set that was named only when the run was gone on with
        relative = labels_file(split)
        if relative in manifest.values["files"]:
            path, sha256, size = manifest.entry(relative)
            reason = problem(path, sha256, size)
            if reason is None:
                continue
            manifest.notes.append(f"{path}: {reason}")
        payload = tensors_to_bytes({"labels": found.labels}, {"split": split, "digest": found.digest})
        manifest.record(relative, manifest.write(relative, payload))
        changed = True
    return changed


def _check_same(manifest: Manifest, folder: Path, recipe: Recipe, data: RunData, fixed: dict[str, Tensor]) -> None:
    past = read_recipe(manifest)
    before, now = flat(past), flat(recipe)
    for key, value in now.items():
        if before.get(key) == value or key.startswith(_FREE) or key == _LENGTH:
            continue
        if key == _PRIOR and "custom" in (before[key], value):
            _refuse_prior(folder, before[key], value)
        raise OtherRunError(
            f"{folder} was begun with {key} = {before.get(key)!r}, not {value!r}: "
            "use the same value to go on with it, or another folder for a new run"
        )
    if before[_LENGTH] != now[_LENGTH]:
        _check_longer(past, recipe, manifest, folder)
    _check_fixed(manifest, fixed)
    known = manifest.values["data"]["digests"]
    if known["train"] != data.train.digest:
        raise InputError(
            f"{folder} was begun on other training data (checksum {known['train'][:12]}…): {data.train.name} changed; "
            "give the same to go on with it, or use another folder for a new run"
        )
    for split, found in data.evaluate.items():
        if known.get(split, found.digest) != found.digest:
            raise InputError(
                f"{folder} was begun with other {split} data (checksum {known[split][:12]}…), which its samples were "
                "evaluated on: give the same, or use another folder for a new run"
            )


def _check_fixed(manifest: Manifest, fixed: dict[str, Tensor]) -> None:
    """That the part of the network that is not sampled is what it was: samples would belong to another network."""
    known = fixed_tensors(manifest)
    for name in sorted(known.keys() | fixed.keys()):
        if name not in known or name not in fixed or not torch.equal(known[name], fixed[name]):
            raise InputError(
                f"{manifest.folder} was begun with another {name}, which is not sampled: pass the network that it was "
                "begun with, or use another folder for a new run"
            )


def _refuse_prior(folder: Path, before: str, now: str) -> NoReturn:
    """A rule given in Python has no name to compare: say which of the two priors it is, and how to give the other."""
    if now == "custom":
        said, cure = f"target.prior = {before!r}, not with the rule that prior= gives now", f"pass prior={before!r}"
    else:
        said, cure = f"a rule given in Python as prior=, not with target.prior = {now!r}", "pass the same rule"
    raise OtherRunError(f"{folder} was begun with {said}: {cure} to go on with it, or use another folder for a new run")


def _check_longer(before: Recipe, now: Recipe, manifest: Manifest, folder: Path) -> None:
    """A run may be made longer (or shorter) where that changes nothing of what it has done already."""
    examples = int(manifest.values["data"]["examples"])
    old, new = make_schedule(before, examples), make_schedule(now, examples)
    done = max((int(record["step"]) for record in manifest.values["checkpoints"]), default=0)
    if now.chains > 1:
        done = old.steps  # chains keep their own checkpoints; be strict rather than look into each
    if not _same_until(done, old, new):
        # What it is set to now, which need not be what it was begun with: runs are made longer.
        epochs, asked = before.schedule.epochs, now.schedule.epochs
        command = f"go on with atmc sample {shlex.quote(str(folder))}"
        cure = f"pass epochs={epochs} to go on with it" if now.model.name == "custom" else command
        kinds = " (cyclic or constant schedules can be made longer)" if asked > epochs else ""
        raise OtherRunError(
            f"{folder} is set to {_LENGTH} = {epochs}, not {asked}, which would change what it has done: {cure}, "
            f"or use another folder for a new run{kinds}"
        )


def _same_until(done: int, old: Schedule, new: Schedule) -> bool:
    return (
        done <= min(old.steps, new.steps)
        and torch.equal(old.lr[:done], new.lr[:done])
        and torch.equal(old.temperature[:done], new.temperature[:done])
        and [k for k in old.sample_after if k <= done] == [k for k in new.sample_after if k <= done]
    )
