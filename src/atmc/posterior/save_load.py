"""Save and load a posterior, and open the posterior of a run.

    posterior.json               everything but the tensors: format, network, likelihood, preprocessing, classes,
                                 weights and chains, and a SHA-256 for every sample's file and for itself
    samples/NNNN.safetensors     one sample each
    fixed.safetensors            what of the network was not sampled, where that is a part of it

The JSON file is written last, so that a folder without one is an unfinished save. Samples are read when needed and
checked against their checksums. Nothing is a pickle, so an untrusted posterior runs no code.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from atmc.common.atomic_files import read_file, remove, sweep
from atmc.common.errors import InputError, RunError
from atmc.nn.parts import load_fixed_
from atmc.posterior.architecture import describe, rebuild
from atmc.posterior.posterior import Posterior
from atmc.posterior.samples import Likelihood

FORMAT = 1
NAME = "posterior.json"
FIXED = "fixed.safetensors"
# What reading an altered or hostile file may raise.
BAD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, OSError, RecursionError)


class StoredSamples:
    """The samples of a saved posterior, read and verified one at a time."""

    def __init__(self, folder: Path, entries: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        from atmc.storage.files import read_tensors

        entry = self.entries[index]
        # Only the last part of a name counts: a description may not point outside its folder.
        path = self.folder / "samples" / Path(str(entry["file"])).name
        return read_tensors(path, str(entry["sha256"]), int(entry["bytes"]))[0]


def save(posterior: Posterior, folder: Path, **more: Any) -> Path:
    """Write `posterior` into `folder`, with `more` in its JSON file; an earlier posterior there is unlisted first."""
    from atmc.storage.files import tensors_to_bytes, write_bytes

    if len(posterior) == 0:
        raise ValueError("the posterior has no samples to save")
    folder = Path(folder)
    if (folder / NAME).exists() and any(getattr(bank, "folder", None) == folder for bank, _ in posterior._refs):
        raise ValueError(f"{folder} holds the samples of this very posterior: save to another folder")
    remove(folder / NAME)
    for old in (folder, folder / "samples"):
        sweep(old, root=folder)
    entries = []
    for k in range(len(posterior)):
        path = folder / "samples" / f"{k:04d}.safetensors"
        record = write_bytes(path, tensors_to_bytes(posterior.state(k), {}), folder)
        entries.append(record.to_dict())
    listed = {entry["file"] for entry in entries}
    for old in (folder / "samples").glob("*.safetensors"):
        if old.name not in listed:
            remove(old, root=folder)
    remove(folder / FIXED, root=folder)
    fixed = {}
    if any(name not in posterior.state(0) for name, _ in posterior.model.named_parameters()):
        kept = {n: t for n, t in posterior.model.state_dict().items() if n not in posterior.state(0)}
        fixed = {"fixed": write_bytes(folder / FIXED, tensors_to_bytes(kept, {}), folder).to_dict()}
    about = {
        "format": FORMAT,
        "network": describe(posterior.model),
        "network_class": f"{type(posterior.model).__module__}.{type(posterior.model).__qualname__}",
        "likelihood": describe_likelihood(posterior.likelihood),
        "input": {
            "mean": list(posterior.mean),
            "std": list(posterior.std),
            "shape": None if posterior.shape is None else list(posterior.shape),
            "crop": posterior.crop,
        },
        "classes": list(posterior.classes) if posterior.classes else None,
        "weights": [float(w) for w in posterior.weights],
        "chains": list(posterior.chains),
        "samples": entries,
        **fixed,
        **more,
    }
    about["checksum"] = checksum(about)
    write_bytes(folder / NAME, (json.dumps(about, indent=1) + "\n").encode())
    return folder


def load(folder: Path, model: nn.Module | None = None, own: Any = None) -> Posterior:
    """Open a saved posterior; `model` and `own` are network and likelihood if they cannot be rebuilt from JSON."""
    path = Path(folder) / NAME
    try:
        about = json.loads(read_file(path))
        if not isinstance(about, dict) or not isinstance(about["samples"], list):
            raise ValueError("it lists no samples")
        if int(about["format"]) > FORMAT:
            raise InputError(f"{path} has format {about['format']}, newer than this atmc reads: upgrade atmc")
        if about.get("checksum") != checksum(about):
            raise InputError(f"{path} was altered: it does not match its own checksum")
        if model is None:
            if about["network"] is None:
                raise InputError(
                    f"{path}: the network is a {about['network_class']}, which only its own code can make: "
                    "pass it as Posterior.load(folder, model=...)"
                )
            model = rebuild(about["network"])
        likelihood = with_own(rebuild_likelihood(about["likelihood"]), own)
        model = sampled(model, likelihood)
        if about.get("fixed") is not None:
            from atmc.storage.files import read_tensors

            record = about["fixed"]
            kept = read_tensors(Path(folder) / FIXED, str(record["sha256"]), int(record["bytes"]))[0]
            model = load_fixed_(copy.deepcopy(model), kept)
        return Posterior(
            StoredSamples(Path(folder), about["samples"]),
            model,
            weights=about["weights"],
            chains=about["chains"],
            likelihood=likelihood,
            mean=about["input"]["mean"],
            std=about["input"]["std"],
            shape=about["input"].get("shape"),
            classes=about["classes"],
            crop=float(about["input"].get("crop", 1.0)),
        )
    except (FileNotFoundError, NotADirectoryError):
        from atmc.storage.manifest import Manifest

        cure = "; it is a run, which atmc.Posterior.from_run opens" if Manifest.exists(Path(folder)) else ""
        kind = "it has no" if Path(folder).is_dir() else "that is a folder with a"
        raise InputError(f"{folder} is not a saved posterior: {kind} {NAME}{cure}") from None
    except (InputError, RunError):
        raise
    except BAD as error:
        # The file may be untrusted: whatever torch raises becomes one line.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} cannot be read: {reason}") from error


def checksum(about: dict[str, Any]) -> str:
    """SHA-256 of a description without its own checksum."""
    body = {key: value for key, value in about.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def from_run(folder: Any, model: nn.Module | None = None, own: Any = None) -> Posterior:
    """The posterior of a run directory; pixels are standardised as the run's training data were."""
    from atmc.storage.run_directory import RunDir, fixed_tensors

    run = folder if isinstance(folder, RunDir) else RunDir.open(folder)
    about = run.manifest["data"]
    if model is None:
        model = run.model()
        section = run.recipe.to_dict()["model"]
        model.made_by = {"recipe": section, "shape": list(about["shape"]), "classes": len(about["classes"])}  # type: ignore[assignment]
    likelihood = with_own(run.likelihood(), own)
    model = sampled(model, likelihood)
    if kept := fixed_tensors(run.top):
        model = load_fixed_(copy.deepcopy(model), kept)
    found = Posterior(
        run.bank,
        model,
        likelihood=likelihood,
        mean=about["mean"],
        std=about["std"],
        classes=about["classes"],
        shape=about["shape"],
        crop=_crop(run.recipe.data.name),
    )
    found.pilots = tuple(run.manifest.get("pilots") or ())
    return found


def sampled(model: nn.Module, likelihood: Any) -> nn.Module:
    """What was sampled for a user's network: itself, or with the noise of the targets as one more parameter."""
    found: nn.Module = likelihood.network(model) if hasattr(likelihood, "network") else model
    return found


def with_own(known: Any, own: Any) -> Any:
    """A likelihood of a person's own is known by its name; `own` is the thing itself, where it is given."""
    from atmc.target.likelihoods import OwnLikelihood

    if not isinstance(known, OwnLikelihood) or own is None:
        return known
    given = own.law if isinstance(own, OwnLikelihood) else own
    if type(given).__name__ != known.name:
        raise InputError(f"the likelihood was {known.name}, not {type(given).__name__}: pass that one")
    return dataclasses.replace(known, law=given)


def _crop(data: str) -> float:
    """The share of each image's middle that a data set's name asks for."""
    from atmc.data.dataset_names import Name

    parts = Name.parse(data)
    return parts.real("crop", 1.0) if parts else 1.0


def describe_likelihood(likelihood: Likelihood | None) -> dict[str, Any] | None:
    """Class name and fields of one of atmc's likelihoods; None is the softmax."""
    if likelihood is None:
        return None
    kind = type(likelihood)
    if not kind.__module__.startswith("atmc.target."):
        raise ValueError(f"a likelihood of class {kind.__name__} cannot be saved: only those of atmc.likelihoods can")
    fields = {f.name: getattr(likelihood, f.name) for f in dataclasses.fields(likelihood) if f.compare}  # type: ignore[arg-type]
    return {"class": kind.__name__, "args": fields}


def rebuild_likelihood(about: dict[str, Any] | None) -> Likelihood | None:
    """The likelihood that a description names."""
    if about is None:
        return None
    from atmc.target import likelihoods

    kind = getattr(likelihoods, str(about["class"]), None)
    if not isinstance(kind, type) or not kind.__module__.startswith("atmc.target."):
        raise ValueError(f"there is no likelihood called {about['class']!r}")
    made: Likelihood = kind(**about["args"])
    return made
