"""The sample bank: the weights a chain has drawn, one file each, checked whenever they are read.

A bank is a folder with a manifest and `samples/NNNN.safetensors`. Several folders (the chains of a run) can be opened
as one bank, in the order in which the chains drew.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from atmc.common.errors import RunError
from atmc.storage.files import DamagedFileError, problem, read_tensors, tensors_to_bytes
from atmc.storage.manifest import Manifest


@dataclass(frozen=True)
class Entry:
    """One sample: the manifest that lists it, and what that says."""

    manifest: Manifest
    meta: dict[str, Any]

    @property
    def file(self) -> str:
        return str(self.meta["file"])

    @property
    def chain(self) -> int:
        return int(self.meta.get("chain", 0))

    @property
    def step(self) -> int:
        return int(self.meta.get("step", 0))


class SampleBank:
    """Samples on disk: `len(bank)`, `bank[i]` → tensors by name, `bank.meta(i)`, `bank.chain_of(i)`."""

    def __init__(self, path: str | Path | Manifest, *more: str | Path | Manifest) -> None:
        self.manifests = [self._open(part) for part in (path, *more)]

    @staticmethod
    def _open(part: str | Path | Manifest) -> Manifest:
        if isinstance(part, Manifest):
            return part
        folder = Path(part)
        return Manifest.load(folder) if Manifest.exists(folder) else Manifest.create(folder)

    @property
    def entries(self) -> list[Entry]:
        """All samples; with several chains in the order of steps, so that any first k hold all chains alike."""
        found = [Entry(manifest, meta) for manifest in self.manifests for meta in manifest.values["samples"]]
        return found if len(self.manifests) == 1 else sorted(found, key=lambda e: (e.step, e.chain))

    def __len__(self) -> int:
        return sum(len(manifest.values["samples"]) for manifest in self.manifests)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Tensors of one sample, on the CPU; a damaged file raises `DamagedFileError` naming it."""
        entry = self.entries[index]
        tensors, _ = read_tensors(*entry.manifest.entry(entry.file))
        return tensors

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for entry in self.entries:
            yield read_tensors(*entry.manifest.entry(entry.file))[0]

    def meta(self, index: int) -> dict[str, Any]:
        """Step, epoch, chain, temperature and whatever else was recorded with a sample."""
        return dict(self.entries[index].meta)

    def chain_of(self, index: int) -> int:
        return self.entries[index].chain

    def hashes(self) -> list[str]:
        """SHA-256 of each sample's file: two banks with equal hashes hold equal samples."""
        return [entry.manifest.entry(entry.file)[1] for entry in self.entries]

    def problems(self) -> list[tuple[int, DamagedFileError]]:
        """Every sample that is missing, torn or altered; reads them all."""
        found = []
        for index, entry in enumerate(self.entries):
            path, sha256, size = entry.manifest.entry(entry.file)
            if reason := problem(path, sha256, size):
                found.append((index, DamagedFileError(path, reason)))
        return found

    def append(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, commit: bool = True) -> dict[str, Any]:
        """Write one sample, as number `meta["index"]` or the next; it joins the bank when the manifest is committed."""
        if len(self.manifests) != 1:
            raise RunError("a bank opened over several chains cannot be written: append to one chain's own")
        manifest = self.manifests[0]
        listed = manifest.values["samples"]
        number = int(meta.get("index", max((int(m["index"]) for m in listed), default=-1) + 1))
        relative = f"samples/{number:04d}.safetensors"
        own = {**meta, "index": number}
        written = manifest.write(relative, tensors_to_bytes(tensors, own))
        manifest.record(relative, written)
        entry = {"file": relative, **own}
        manifest.values["samples"] = sorted([m for m in listed if m["index"] != number] + [entry], key=_index)
        if commit:
            manifest.commit()
        return entry

    def set_aside(self, index: int, reason: str) -> str:
        """Take a damaged sample out of the bank (its file stays) and remember why; the others keep their numbers."""
        entry = self.entries[index]
        entry.manifest.values["samples"].remove(entry.meta)
        entry.manifest.values.setdefault("lost", []).append({**entry.meta, "reason": reason})
        entry.manifest.forget(entry.file)
        return entry.file


def _index(meta: Mapping[str, Any]) -> int:
    return int(meta["index"])
