"""Seconds of a data-parallel step against plain DDP, on the same network, batch and processes.

    torchrun --standalone --nproc-per-node=2 benchmarks/data_parallel.py [--depth 50] [--size 64] [--batch 16]
    torchrun --standalone --nproc-per-node=1 benchmarks/data_parallel.py --size 224 --batch 64 --rounds 30   # one GPU

Four steps are timed in turn, so that all meet the same machine: `alone` does not exchange anything, `ddp` is
`DistributedDataParallel`, `atmc` is the engine's `GradientExchange`, and `flat` is one all-reduce after the backward
pass, which is what the engine did before. All make forward and backward passes and no step of an optimizer. On CPUs
(gloo) cores are shared by computing and sending, so overlap gains little there; on GPUs NCCL has its own. One process
on one GPU shows what hooks and buckets cost without anything to send. With fewer GPUs than processes all share one, and
gloo sends through the host, which says nothing about NCCL. On GPUs activations are bf16.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from atmc.engine.gradient_exchange import GradientExchange
from atmc.engine.processes import World
from atmc.nn import build


def steps(model: nn.Module, x: Tensor, y: Tensor, world: World) -> dict[str, Callable[[], None]]:
    """The four steps, each with a network of its own."""
    alone, ours, flat = (copy.deepcopy(model) for _ in range(3))
    ddp = DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    exchange = GradientExchange(ours, list(ours.parameters()), world)
    buffer = torch.zeros(sum(p.numel() for p in flat.parameters()), device=x.device)

    def backward(network: nn.Module) -> Tensor:
        for p in network.parameters():
            p.grad = None
        loss = F.cross_entropy(network(x), y)
        loss.backward()
        return loss.detach()

    def with_atmc() -> None:
        for p in ours.parameters():
            p.grad = None
        loss = F.cross_entropy(ours(x), y)
        exchange.begin()
        loss.backward()
        exchange.finish(loss.detach())

    def with_flat() -> None:
        backward(flat)
        grads = [p.grad for p in flat.parameters() if p.grad is not None]
        torch.cat([g.flatten() for g in grads], out=buffer)
        dist.all_reduce(buffer)
        buffer.div_(world.size)

    return {
        "alone": lambda: backward(alone) and None,
        "ddp": lambda: backward(ddp) and None,
        "atmc": with_atmc,
        "flat": with_flat,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet-v2")
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="of each process")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/data_parallel"))
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    enough = cuda and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if enough else 0) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if enough else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = build(options.network, depth=options.depth, classes=1000).to(device)
    x = torch.randn(options.batch, 3, options.size, options.size, device=device)
    x = x.to(torch.bfloat16, memory_format=torch.channels_last) if cuda else x
    y = torch.randint(1000, (options.batch,), device=device)
    found: dict[str, list[float]] = {}
    every = steps(model, x, y, World(rank, size, "data"))
    for turn in range(options.rounds + 1):
        for name, step in every.items():
            dist.barrier()
            began = time.perf_counter()
            step()
            if cuda:
                torch.cuda.synchronize()
            if turn:  # the first is for warming up
                found.setdefault(name, []).append(time.perf_counter() - began)
    median = {name: statistics.median(times) for name, times in found.items()}
    over = {name: median[name] / median["ddp"] for name in median}
    if rank == 0:
        for name in median:
            print(f"{name:6s} {1e3 * median[name]:8.1f} ms  {over[name]:.3f} of DDP")
        table = {
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "processes": size,
            "backend": dist.get_backend(),
            "torch": torch.__version__,
            "network": f"{options.network} {options.depth} at {options.size} px, {options.batch} images a process",
            "parameters": sum(p.numel() for p in model.parameters()),
            "milliseconds": {name: round(1e3 * value, 2) for name, value in median.items()},
            "against_ddp": {name: round(value, 4) for name, value in over.items()},
        }
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{device.type}-{size}.json"
        path.write_text(json.dumps(table, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
