"""Which residual block trains without a jump? Designs of ResNet++ under plain SGD with momentum on CIFAR-10.

    python benchmarks/blocks.py --epochs 20 --depth 20 --width 32 [--designs 'one small gain;batch norm'] [--lr 0.1]

Every design sees the same batches in the same order: all are trained side by side, each on a stream of its own inside
one CUDA graph. The loss is U/N (mean negative log-likelihood plus prior over N). Reported, all on the training set or
its validation split: the loss at the end, the largest jump (mean of 20 steps over the mean of the 200 before them, the
worst over the run), the validation accuracy, and the sharpness (top Hessian eigenvalue of the mean loss on 512 images,
at the end and, with --sharpness both, at the start). Nothing here looks at the test set.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from atmc.data import DeviceBatches, hold_out, load
from atmc.nn import build
from atmc.nn.measurements import top_eigenvalue
from atmc.target import priors

DESIGNS: dict[str, dict[str, Any]] = {
    "small last scales": {"gain": "scale"},
    "one small gain": {"gain": "scalar"},
    "fixed factor 0.1": {"gain": "fixed"},
    "fixed factor 1/sqrt(blocks)": {"gain": "fixed", "branch_scale": "depth"},
    "last scales 1/sqrt(blocks)": {"gain": "scale", "branch_scale": "depth"},
    "SELU after the addition": {"gain": "scale", "order": "post", "bias": "after"},
    "biases everywhere": {"gain": "scale", "bias": "after"},
    "biases before": {"gain": "scale", "bias": "before"},
    "scalar biases": {"gain": "scale", "bias": "scalar"},
    "pool and pad": {"gain": "scale", "shortcut": "pool-pad"},
    "pool and project": {"gain": "scale", "shortcut": "pool-projection"},
    "FRN": {"gain": "scale", "norm": "frn"},
    "batch norm": {"model": "resnet"},
}


class Trainee:
    """One design with its own weights, optimizer and learning rate."""

    def __init__(self, name: str, options: argparse.Namespace, steps: int, num_data: int, lr: float) -> None:
        self.name, self.num_data = name, num_data
        design = dict(DESIGNS[name])
        kind = design.pop("model", "resnetpp")
        self.make = lambda: build(kind, depth=options.depth, width=options.width, **design).cuda()
        torch.manual_seed(options.seed)
        self.model = self.make()
        self.plain = not hasattr(self.model, "head") or "batch norm" in name
        self.prior = None if self.plain else priors.resnetpp().assign(self.model)
        self.params = [p for p in self.model.parameters() if p.requires_grad]
        self.lr = torch.tensor(lr, device="cuda")
        self.base_lr = lr
        self.optimizer = torch.optim.SGD(
            self.params, lr=self.lr, momentum=0.9, weight_decay=5e-4 if self.plain else 0.0, fused=True
        )
        self.losses = torch.full((steps,), math.nan, device="cuda")
        if options.compile:
            self.model.compile_blocks()

    def step(self, x: torch.Tensor, y: torch.Tensor, number: torch.Tensor) -> None:
        for p in self.params:
            p.grad = None
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        if self.prior is not None:
            by_name = dict(self.model.named_parameters())
            named = [by_name[name] for name in self.prior.names]
            self.prior.add_grad_(named, [p.grad for p in named], 1.0 / self.num_data)
        self.optimizer.step()
        self.losses.index_copy_(0, number.reshape(1), loss.detach().float().reshape(1))

    @torch.no_grad()
    def accuracy(self, x: torch.Tensor, y: torch.Tensor) -> float:
        self.model.eval()
        right = sum(
            int((self.model(a).argmax(1) == b).sum()) for a, b in zip(x.split(1000), y.split(1000), strict=True)
        )
        self.model.train()
        return right / len(y)


def largest_jump(losses: torch.Tensor) -> tuple[float, int]:
    """The worst ratio of a mean of 20 losses to the mean of the 200 before them, and the step where it was reached."""
    total = torch.cat([torch.zeros(1, dtype=torch.float64), losses.double().cpu().cumsum(0)])
    ends = torch.arange(220, len(losses) + 1)
    recent = (total[ends] - total[ends - 20]) / 20
    before = (total[ends - 20] - total[ends - 220]) / 200
    ratio = (recent / before).nan_to_num(math.inf, math.inf)
    return float(ratio.max()), int(ends[ratio.argmax()])


def schedule(step: int, steps: int, warmup: int) -> float:
    """A short linear warm-up, then a cosine to zero."""
    return min(1.0, (step + 1) / warmup) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def sharpness(trainee: Trainee, x: torch.Tensor, y: torch.Tensor) -> float:
    """On a copy that was not compiled: compiled code cannot be differentiated twice."""
    plain = trainee.make()
    plain.load_state_dict(trainee.model.state_dict())
    return top_eigenvalue(lambda: F.cross_entropy(plain(x.float()), y), list(plain.parameters()), iterations=12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, nargs="*", default=[0.1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--designs", default=";".join(DESIGNS), help="names, separated by semicolons")
    parser.add_argument("--data", default=None)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--sharpness", choices=("none", "end", "both"), default="end")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds after which to stop")
    parser.add_argument("--out", type=Path, default=Path("results/blocks"))
    options = parser.parse_args()
    began = time.perf_counter()
    train, validation = hold_out(load("cifar10", "train", options.data), 5000)
    feed = DeviceBatches(train, options.batch, "cuda", torch.bfloat16, "crop-flip", seed=options.seed)
    held = DeviceBatches(validation, 5000, "cuda", torch.bfloat16)
    held_x, held_y = next(iter(held.epoch_batches(0)))
    steps = int(options.epochs * len(train) / options.batch)
    names = [name.strip() for name in options.designs.split(";")]
    trainees = [Trainee(name, options, steps, len(train), lr) for name in names for lr in options.lr]
    number = torch.zeros((), dtype=torch.int64, device="cuda")
    streams = [torch.cuda.Stream() for _ in trainees]
    probe_x, probe_y = held_x[:512], held_y[:512]
    start_sharpness = [sharpness(t, probe_x, probe_y) if options.sharpness == "both" else math.nan for t in trainees]

    def together() -> None:
        x, y = feed.batch(number)
        here = torch.cuda.current_stream()
        for trainee, stream in zip(trainees, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                trainee.step(x, y, number)
        for stream in streams:
            here.wait_stream(stream)
        number.add_(1)

    feed.start(0)
    saved = [{k: v.clone() for k, v in t.model.state_dict().items()} for t in trainees]
    for trainee in trainees:
        trainee.lr.fill_(0.0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            together()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        together()
    torch.cuda.synchronize()
    number.zero_()
    for trainee, state in zip(trainees, saved, strict=True):
        with torch.no_grad():
            for k, v in trainee.model.state_dict().items():
                v.copy_(state[k])
            for s in trainee.optimizer.state.values():
                s["momentum_buffer"].zero_()
    print(f"ready after {time.perf_counter() - began:.1f} s: {len(trainees)} designs, {steps} steps", flush=True)
    start = time.perf_counter()
    done = steps
    with torch.cuda.stream(side):
        for step in range(steps):
            feed.ensure(step)
            for trainee in trainees:
                trainee.lr.fill_(trainee.base_lr * schedule(step, steps, 200))
            graph.replay()
            if step % 500 == 499:
                torch.cuda.synchronize()
                if time.perf_counter() - began > options.budget:
                    done = step + 1
                    break
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    rows = []
    for trainee, sharp in zip(trainees, start_sharpness, strict=True):
        losses = trainee.losses[:done]
        jump, where = largest_jump(losses)
        rows.append(
            {
                "design": trainee.name,
                "lr": trainee.base_lr,
                "loss": float(losses[-400:].mean()),
                "jump": jump,
                "jump_epoch": round(where * options.batch / len(train), 2),
                "validation_accuracy": trainee.accuracy(held_x, held_y),
                "sharpness_start": sharp,
                "sharpness_end": math.nan,
                "curve": [round(float(c.mean()), 4) for c in losses.chunk(40)],
            }
        )
    if options.sharpness != "none":
        for row, trainee in zip(rows, trainees, strict=True):
            if time.perf_counter() - began < options.budget + 20:
                row["sharpness_end"] = sharpness(trainee, probe_x, probe_y)
    record = {
        "command": "python benchmarks/blocks.py "
        f"--depth {options.depth} --width {options.width} --epochs {options.epochs:g}",
        "depth": options.depth,
        "width": options.width,
        "epochs": done * options.batch / len(train),
        "batch": options.batch,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "seconds": seconds,
        "images_per_second_per_design": done * options.batch / seconds,
        "rows": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"depth-{options.depth}x{options.width}-{options.epochs:g}-epochs.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"depth {options.depth}, width {options.width}, {record['epochs']:.1f} epochs in {seconds:.1f} s; ", end="")
    print(f"{record['images_per_second_per_design'] * len(trainees):,.0f} img/s over {len(trainees)} designs")
    heads = ("lr", "loss", "jump", "epoch", "val %", "sharp 0", "sharp 1")
    print(f"{'design':28s} " + " ".join(f"{head:>8s}" for head in heads))
    for r in rows:
        print(
            f"{r['design']:28s} {r['lr']:8.3f} {r['loss']:8.4f} {r['jump']:8.2f} {r['jump_epoch']:8.1f} "
            f"{100 * r['validation_accuracy']:8.2f} {r['sharpness_start']:8.1f} {r['sharpness_end']:8.1f}"
        )


if __name__ == "__main__":
    main()
