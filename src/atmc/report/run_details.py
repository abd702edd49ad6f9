"""What a run was: method, network, device, versions, in words."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from atmc.common.text import plural

if TYPE_CHECKING:
    from atmc.recipe.settings import Recipe
    from atmc.report.read_run import Reading

METHODS = {"atmc": "ATMC", "sgnht": "SGNHT", "sghmc": "SGHMC", "sgld": "SGLD", "sgd": "SGD"}


def method_of(recipe: Recipe) -> str:
    """The sampler, with what differs from the paper's network and likelihood."""
    name = METHODS.get(recipe.sampler.name, recipe.sampler.name)
    if recipe.model.norm != "none":
        name += {"bn": " + BatchNorm", "frn": " + FRN"}.get(recipe.model.norm, f" + {recipe.model.norm}")
    if recipe.target.likelihood != "categorical":
        name += f", {recipe.target.likelihood} likelihood"
    return name


def rounded(epochs: float) -> float:
    """A run ends with a whole step, a hair after its last epoch."""
    return float(round(epochs)) if abs(epochs - round(epochs)) < 0.5 and epochs >= 10 else round(epochs, 1)


def network_of(reading: Reading) -> str:
    section = reading.recipe.model
    if section.name == "custom":
        made = str(reading.run.manifest.get("network", {}).get("class", ""))
        name = made.rpartition(".")[2]  # kept with its module, which for a script's or a notebook's own is "__main__"
        return f"{name}, a custom network" if name else "a custom network"
    label = {"resnetpp": "ResNet++", "resnet": "ResNet", "mlp": "MLP"}.get(section.name, section.name)
    size = sum(p.numel() for p in reading.run.model().parameters())
    return f"{label}-{section.depth}×{section.width}, {size / 1e6:.2f} M parameters"


def device_of(manifest: dict[str, Any]) -> str:
    sessions = manifest.get("sessions") or [{}]
    found = sessions[-1].get("hardware") or {}
    if "gpu" in found:
        return str(found["gpu"])
    if "threads" in found:
        return f"CPU, {plural(found['threads'], 'thread')}"
    return str(found.get("device", platform.machine()))


def details_of(manifest: dict[str, Any], recipe: Recipe) -> dict[str, str]:
    versions = manifest.get("versions") or {}
    prior = {"none": "no prior", "custom": "custom prior"}.get(recipe.target.prior)
    target = f"{recipe.target.likelihood} likelihood, {prior or f'{recipe.target.prior} prior'}"
    details = {"Target": target, "Seed": str(recipe.seed)}
    for key in ("atmc", "torch", "python"):
        if key in versions:
            details[key] = str(versions[key])
    return details


def noise_of(reading: Reading) -> dict[str, str]:
    """The temperature along the gradient noise, beside which the chains' plots show the kinetic one."""
    from atmc.diagnose.noise_checks import said
    from atmc.diagnose.traces import noise_ratio, settled, warmed

    rows = settled(reading.run.metrics(), reading.recipe.schedule.settled_epochs)
    level = noise_ratio(warmed(rows) if reading.recipe.schedule.explore_fraction else rows)
    return {"Temperature along gradient noise": f"{said(level)} × T"} if np.isfinite(level.mean) else {}


def pilots_of(manifest: dict[str, Any]) -> tuple[dict[str, str], ...]:
    """The pilots of `temperature="auto"` as text; what is not a number is a dash, since the file may be anybody's."""
    listed = manifest.get("pilots")

    def number(value: Any, form: str) -> str:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
        return format(value, form) if fine else "–"

    return tuple(
        {
            "likelihood": str(row.get("likelihood", "–")) + (f" ({row['prior']})" if row.get("prior") else ""),
            "temperature": number(row.get("temperature"), "g"),
            "nll": number(row.get("nll"), ".3f"),
            "behind": number(row.get("behind"), ".1f"),
            "seconds": number(row.get("seconds"), ".1f"),
        }
        for row in (listed if isinstance(listed, list) else [])
        if isinstance(row, dict)
    )
