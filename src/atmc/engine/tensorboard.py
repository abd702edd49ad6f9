"""TensorBoard, where it is installed and a recipe asks for it (`run.tensorboard = true`): the rows of metrics.jsonl."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atmc.common.errors import InputError
from atmc.engine.progress import Progress, Row
from atmc.engine.schedule import Schedule

_NOT_CURVES = {"event", "chain", "step", "epoch", "cycle", "phase", "index"}


def curves(row: Row, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Names and values of all that a row has to draw; nested scores become `test/predictive/nll`."""
    for key, value in row.items():
        if not prefix and key in _NOT_CURVES:
            continue
        if isinstance(value, dict):
            yield from curves(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


class WithBoard(Progress):
    """Another progress, with every row drawn as well, chain by chain."""

    def __init__(self, inner: Progress, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("run.tensorboard = true needs TensorBoard: pip install tensorboard") from None
        self.inner, self.folder = inner, folder
        self._make: Any = SummaryWriter
        self._writers: dict[int, Any] = {}

    def begin(self, name: str, schedule: Schedule, chains: int, done: int) -> None:
        self.inner.begin(name, schedule, chains, done)

    def row(self, row: Row, samples: int) -> None:
        self.inner.row(row, samples)
        chain = int(row["chain"])
        if chain not in self._writers:
            # Steps that are made again after a stop are drawn again; what was drawn beyond them is purged.
            self._writers[chain] = self._make(str(self.folder / f"chain{chain}"), purge_step=int(row["step"]))
        for name, value in curves(row):
            self._writers[chain].add_scalar(f"{row['event']}/{name}", value, int(row["step"]))

    def note(self, text: str) -> None:
        self.inner.note(text)

    def end(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self.inner.end()
