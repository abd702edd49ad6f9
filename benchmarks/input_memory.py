"""Host memory of a streamed set over one epoch: this process and its workers together.

python benchmarks/input_memory.py 'tiny-imagenet?stream=1' --workers 2
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from pathlib import Path

from atmc.data import StreamBatches, open_source


def memory(name: str, workers: int, out: Path) -> None:
    """Proportional set size of this process and its workers, ten times over an epoch of a stream."""
    batches = StreamBatches(open_source(name, "train"), 250, augment="resized-crop-flip", workers=workers)
    steps, rows = batches.steps_for(1), []
    for step in range(steps + 1):
        batches.batch(step)
        if step % (steps // 10) == 0:
            ids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
            lines = [line for i in ids for line in Path(f"/proc/{i}/smaps_rollup").read_text().splitlines()]
            total = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
            rows.append({"images": step * 250, "megabytes": round(total)})
            print(f"{step * 250:9,} images {total:7.0f} MB", flush=True)
    batches.close()
    out.mkdir(parents=True, exist_ok=True)
    (out / "memory.json").write_text(json.dumps({"set": name, "workers": workers, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="the set, as a recipe names it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/input"))
    asked = parser.parse_args()
    memory(asked.name, asked.workers, asked.out)
