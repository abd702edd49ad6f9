"""What a long run on ImageNet-1k takes: hours, price, bytes read, cores for decoding, checkpoint and sample bank.

    python benchmarks/imagenet_cost.py [--gpus 1 8 64] [--epochs 1000] [--rate 7774] [--price 3.0] [--per-core 150]

The model, for n GPUs that share one chain with a batch of B images:

    step     = B/n images at the measured speed of one GPU, where small batches are slower: rate(b) = rate·b/(b + b₀)
    exchange = 2 (n − 1)/n · 4 bytes · parameters / bandwidth, of which the part that the backward pass (two thirds of
               the step) covers is free
    hours    = epochs · images / B · (step + exchange left over) + checkpoints and evaluations

Chains spread over groups of GPUs exchange nothing between groups. Measured are the speed (results/networks/cuda.json:
ResNet++-50 at 224 pixels, batch 128, one H200, bf16, data on the device) and the sizes of files, which a test holds
against a run. Assumed are b₀ = 8 images, 300 GB/s between GPUs of one node of eight and 40 GB/s between nodes, 110 KB
an image, and the price of a GPU hour.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

TRAIN, VALIDATION, CLASSES = 1_281_167, 50_000, 1_000
IMAGE_BYTES = 110e3
HALF_BATCH = 8.0  # b₀
NODE, NEAR, FAR = 8, 300e9, 40e9  # GPUs of a node, bytes/s inside and between nodes
PROBE = 256  # training images whose predictions a checkpoint has
MEASURED = Path(__file__).parents[1] / "results" / "networks" / "cuda.json"


@dataclass(frozen=True)
class Run:
    """A run of one network; the defaults are the paper's ImageNet setting, recipes/imagenet/atmc.toml."""

    rate: float  # images per second of one GPU, at `rate_batch`
    parameters: int = 25_557_032
    epochs: int = 1000
    batch: int = 1024
    cycle: int = 20
    burn_in: int = 150
    rate_batch: int = 128
    keep: int = 256  # side of the decoded cache
    checkpoint_minutes: float = 10.0
    disk: float = 1e9  # bytes/s
    train: int = TRAIN
    validation: int = VALIDATION
    classes: int = CLASSES

    @property
    def samples(self) -> int:
        return self.epochs // self.cycle - self.burn_in // self.cycle

    @property
    def checkpoint_bytes(self) -> float:
        """Weights, momenta, thermostats, and the sum of predictions so far; two are kept."""
        return 4.0 * (3 * self.parameters + (self.validation + min(PROBE, self.train)) * self.classes)

    @property
    def sample_bytes(self) -> float:
        return 4.0 * self.parameters

    @property
    def prediction_bytes(self) -> float:
        """Of one sample: half precision where there are very many, as `prediction_files` has it."""
        numbers = self.validation * self.classes
        return numbers * (2.0 if numbers > 5_000_000 else 4.0)


@dataclass(frozen=True)
class Cost:
    gpus: int
    hours: float
    gpu_hours: float
    price: float
    images_per_second: float
    efficiency: float  # against n times one GPU
    exposed_ms: float  # of the exchange, a step
    terabytes_read: float  # JPEG bytes from the disk without a cache
    read_once_gb: float  # and with the decoded cache in each node
    cache_gb: float  # host memory of a node for that
    decode_cores: float  # of each GPU, without a cache
    checkpoint_gb: float
    bank_gb: float


def cost(run: Run, gpus: int, price: float = 3.0, per_core: float = 150.0) -> Cost:
    """The cost of one chain shared by `gpus`."""
    if run.batch % gpus:
        raise ValueError(f"a batch of {run.batch} does not split over {gpus} GPUs")
    share = run.batch / gpus
    ceiling = run.rate * (run.rate_batch + HALF_BATCH) / run.rate_batch
    compute = (share + HALF_BATCH) / ceiling
    band = NEAR if gpus <= NODE else FAR
    exchange = 2 * (gpus - 1) / gpus * 4 * run.parameters / band
    exposed = max(0.0, exchange - compute * 2 / 3)
    steps = run.epochs * math.ceil(run.train / run.batch)
    seconds = steps * (compute + exposed)
    evaluation = run.samples * run.validation / (3 * run.rate)  # forward passes alone, on one GPU, in float32
    files = (seconds / (60 * run.checkpoint_minutes)) * run.checkpoint_bytes / run.disk
    hours = (seconds + evaluation + files) / 3600
    speed = run.batch / (compute + exposed)
    one = run.batch / ((run.batch + HALF_BATCH) / ceiling)
    nodes = math.ceil(gpus / NODE)
    return Cost(
        gpus=gpus,
        hours=hours,
        gpu_hours=hours * gpus,
        price=hours * gpus * price,
        images_per_second=speed,
        efficiency=speed / (gpus * one),
        exposed_ms=1e3 * exposed,
        terabytes_read=run.epochs * run.train * IMAGE_BYTES / 1e12,
        read_once_gb=nodes * run.train * IMAGE_BYTES / 1e9,
        cache_gb=run.train * run.keep**2 * 3 / 1e9,
        decode_cores=speed / gpus / per_core,
        checkpoint_gb=2 * run.checkpoint_bytes / 1e9,
        bank_gb=run.samples * (run.sample_bytes + run.prediction_bytes) / 1e9,
    )


def measured_rate(kind: str = "resnetpp") -> float:
    """Images per second of ResNet-50 at 224 pixels on one H200."""
    rows = json.loads(MEASURED.read_text())["rows"]
    return float(next(row for row in rows if row["size"] == 224)["images_per_second"][kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--rate", type=float, help="images per second of one GPU; otherwise the measured one")
    parser.add_argument("--price", type=float, default=3.0, help="of a GPU hour")
    parser.add_argument("--per-core", type=float, default=150.0, help="images per second that a core decodes and crops")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    run = Run(rate=options.rate or measured_rate(), epochs=options.epochs)
    rows = [cost(run, gpus, options.price, options.per_core) for gpus in options.gpus]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(f"{run.epochs:,} epochs, batch {run.batch:,}, {run.samples} samples, {run.rate:,.0f} img/s on one GPU")
    for row in rows:
        print(
            f"{row.gpus:3d} GPUs: {row.hours:7.1f} h, {row.gpu_hours:6.0f} GPU hours, price {row.price:7,.0f}, "
            f"{row.images_per_second:9,.0f} img/s ({row.efficiency:.0%}), {row.decode_cores:.0f} cores a GPU to decode"
        )
    row = rows[0]
    print(f"read {row.terabytes_read:.0f} TB of JPEG, or {row.read_once_gb:.0f} GB a node with a cache of "
          f"{row.cache_gb:.0f} GB; checkpoints {row.checkpoint_gb:.2f} GB, bank {row.bank_gb:.1f} GB")  # fmt: skip


if __name__ == "__main__":
    main()
