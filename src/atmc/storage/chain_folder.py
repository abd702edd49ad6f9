"""One chain's folder: its manifest, samples, predictions, metrics and two checkpoints, kept consistent with each other.

The rule is one commit for everything that belongs to one moment. A sample, its predictions and the checkpoint after it
are written one after the other and become true together when the manifest is replaced. Hence a run that is killed
anywhere resumes from a checkpoint that knows exactly the samples the manifest lists; and where a checkpoint turns out
to be damaged and the one before has to serve, later samples are already in the bank and are simply kept.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from atmc.common.atomic_files import sweep
from atmc.common.errors import RunError
from atmc.storage.files import DamagedFileError, problem, read_tensors, run_of, tensors_to_bytes
from atmc.storage.manifest import NAME, Manifest, not_of
from atmc.storage.metrics_log import EMPTY, Journal
from atmc.storage.sample_bank import SampleBank

KEPT = 2  # checkpoints: the newest and the one before


@dataclass(frozen=True)
class Saved:
    """A checkpoint as read back: all tensors, and everything else as plain JSON values."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


class ChainStore:
    """The folder of one chain, for the process that runs it (which holds the run's lock)."""

    def __init__(self, manifest: Manifest, chain: int = 0) -> None:
        self.folder = manifest.folder
        self.manifest = manifest
        self.chain = chain
        self.bank = SampleBank(manifest)
        self.journal = Journal(self.folder / "metrics.jsonl", run_of(self.folder), self.check_place)
        self.notes: list[str] = list(manifest.notes)
        self._place: os.stat_result | None = None

    @classmethod
    def open(cls, folder: Path, chain: int = 0, binding: Mapping[str, str] | None = None) -> "ChainStore":
        """The store in `folder`, which must be chain `chain` of the run with this `binding`; a new one if none is."""
        if Manifest.exists(folder):
            store = cls(Manifest.load(folder), chain)
            if reason := not_of(store.manifest.values, chain, binding):
                raise RunError(f"{folder}: {reason}: put the right one back, or remove it to sample that chain anew")
            if store.manifest.values.get("checkpoints") is None:
                raise DamagedFileError(folder / NAME, "lists no checkpoints, as every chain does")
            store.check_place()
            return store
        if any((folder / "samples").glob("*.safetensors")) or any((folder / "checkpoint").glob("*.safetensors")):
            raise DamagedFileError(folder / NAME, "is missing, though there are samples or checkpoints beside it")
        values = {} if binding is None else {"binding": dict(binding)}
        store = cls(Manifest.create(folder, chain=chain, checkpoints=[], **values), chain)
        if _others_have_begun(folder):
            store.notes.append(f"{folder}: is missing, though other chains of this run are there; it begins anew")
        store.manifest.commit()
        store.check_place()
        return store

    # -- writing -------------------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """That the folder is still the one that was opened: writing on would make a second one, without the first's."""
        try:
            now = os.stat(self.folder)
        except FileNotFoundError:
            now = None
        if self._place is None:
            self._place = now
        elif now is None or not os.path.samestat(now, self._place):
            raise RunError(
                f"{self.folder} was removed or renamed while it was being sampled: stopped. Its samples up to the last "
                "checkpoint are where it is now; atmc sample goes on from there"
            )

    def checkpoint(self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Write a checkpoint and commit it together with everything recorded since the last one.

        It replaces one of the same step, and after a rollback those of later steps: the one before stays another one.
        """
        self.check_place()
        before = self.manifest.values["checkpoints"]
        number = 1 + max((int(record["number"]) for record in before), default=-1)
        relative = f"checkpoint/{number:06d}.safetensors"
        meta = {"step": step, "values": dict(values)}
        written = self.manifest.write(relative, tensors_to_bytes(tensors, meta))
        self.manifest.record(relative, written)
        own = {"number": number, "file": relative, "step": step, "metrics": self.journal.mark()}
        kept = [*(record for record in before if int(record["step"]) < step), own][-KEPT:]
        dropped = [record for record in before if record not in kept]
        self.manifest.values["checkpoints"] = kept
        for record in dropped:
            self.manifest.forget(record["file"])
        self.manifest.commit()
        for record in dropped:
            self.manifest.remove(record["file"])

    def add_sample(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write a sample; it is in the bank with the next checkpoint."""
        self.check_place()
        self.bank.append(tensors, {"chain": self.chain, **meta}, commit=False)

    def add_prediction(self, split: str, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Write what sample `index` says about a split; recorded with the next checkpoint."""
        self.check_place()
        relative = f"predictions/{split}/{index:04d}.safetensors"
        meta = {"split": split, "index": index, "chain": self.chain}
        self.manifest.record(relative, self.manifest.write(relative, tensors_to_bytes(tensors, meta)))

    def forget_predictions(self, index: int) -> None:
        """Of a sample that was set aside; committed with the next checkpoint."""
        name = f"{index:04d}.safetensors"
        for relative in [f for f in self.manifest.values["files"] if f.startswith("predictions/") and f.endswith(name)]:
            self.manifest.forget(relative)

    def sample_at(self, index: int) -> dict[str, Tensor] | None:
        """Sample number `index` where the bank has it already, as after falling back to an older checkpoint."""
        for position, entry in enumerate(self.bank.entries):
            if entry.meta["index"] == index:
                return self.bank[position]
        return None

    # -- reading -------------------------------------------------------------------------------------------------

    def restore(self) -> Saved | None:
        """Make the folder consistent and return the newest good checkpoint, or None if none was ever committed.

        What was damaged is in `notes`, one line each. Samples that cannot be read are set aside; all others stay.
        """
        for place in (self.folder, self.folder / "samples", self.folder / "checkpoint", *self._prediction_folders()):
            sweep(place, root=run_of(self.folder))
        self._check_samples()
        listed = self.manifest.values["checkpoints"]
        if not listed:
            self.journal.resume(0, EMPTY)
            return None
        for record in reversed(listed):
            try:
                tensors, meta = read_tensors(*self.manifest.entry(record["file"]))
                saved = Saved(int(meta["step"]), tensors, meta["values"])
            except (DamagedFileError, KeyError) as error:
                self.notes.append(str(error))
                continue
            self.manifest.values["checkpoints"] = [r for r in listed if r["number"] <= record["number"]]
            if complaint := self.journal.resume(record["metrics"]["bytes"], record["metrics"]["sha256"]):
                self.notes.append(complaint)
            self._drop_orphans()
            if self.notes:
                self.manifest.commit()
            return saved
        raise RunError(
            f"{self.folder}: no checkpoint can be read ({'; '.join(self.notes)}); its {len(self.bank)} samples are "
            "intact and can be evaluated, but this run cannot go on"
        )

    def read(self, before: int | None = None) -> Saved:
        """The newest checkpoint, or the newest from before a step; the oldest where there is none such."""
        listed = self.manifest.values["checkpoints"]
        earlier = [r for r in listed if before is None or int(r["step"]) < before]
        record = earlier[-1] if earlier else listed[0]
        tensors, meta = read_tensors(*self.manifest.entry(record["file"]))
        return Saved(int(meta["step"]), tensors, meta["values"])

    def _prediction_folders(self) -> list[Path]:
        return [p for p in (self.folder / "predictions").glob("*") if p.is_dir()]

    def _check_samples(self) -> None:
        for index, error in reversed(self.bank.problems()):
            self.notes.append(str(error))
            self.bank.set_aside(index, error.reason)
        for relative in [f for f in self.manifest.values["files"] if f.startswith("predictions/")]:
            path, sha256, size = self.manifest.entry(relative)
            if reason := problem(path, sha256, size):
                self.notes.append(f"{path}: {reason}")
                self.manifest.forget(relative)

    def _drop_orphans(self) -> None:
        """Checkpoints that nobody lists: written, but never committed, or dropped and not yet removed."""
        keep = {record["file"] for record in self.manifest.values["checkpoints"]}
        for path in (self.folder / "checkpoint").glob("*.safetensors"):
            if f"checkpoint/{path.name}" not in keep:
                self.manifest.remove(f"checkpoint/{path.name}")


def _others_have_begun(folder: Path) -> bool:
    """Whether other chains of the run that `folder` belongs to have got further than their first checkpoint."""
    if folder.parent.name != "chains":
        return False
    others = [Manifest.load(other).values for other in folder.parent.glob("*") if Manifest.exists(other)]
    return any(record["step"] > 0 for values in others for record in values.get("checkpoints", []))
