"""Milliseconds of a step of WRN-16-4 with friction along the noise: gn-ws, batch 128, bf16, one CUDA graph, uncompiled.

    python benchmarks/noise_rank_step.py [--out results/minibatch]

The whole step (forward, backward, sampler) and the sampler alone, for ranks 0, 8 and 16: medians of ten rounds of 64
replays. Ranks above 0 include the update of the noise's directions every 16 steps, outside the graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import atmc
from atmc.nn import build
from atmc.samplers import noise_friction, noise_rows


def timed(step: Callable[[], None], sampler: atmc.ATMC) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    times = []
    for _ in range(12):
        torch.cuda.synchronize()
        since = time.perf_counter()
        with torch.cuda.stream(stream):
            for number in range(64):
                graph.replay()
                if sampler.noise_rank and (number + 1) % noise_rows.EVERY == 0:
                    noise_friction.update(sampler, 1000)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - since) / 64 * 1e3)
    return statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(128, 3, 32, 32, device="cuda").bfloat16().to(memory_format=torch.channels_last)
    y = torch.randint(10, (128,), device="cuda")
    rows = []
    for rank in (0, 8, 16):
        model = build("wide-resnet", depth=16, width=4, norm="gn-ws").cuda()
        params = list(model.parameters())
        sampler = atmc.ATMC(params, lr=1e-3, mass=1e6, friction=105.0, noise_rank=rank)

        def whole(model: torch.nn.Module = model, sampler: atmc.ATMC = sampler) -> None:
            for p in model.parameters():
                p.grad = None
            (F.cross_entropy(model(x).float(), y) * 45_000).backward()
            sampler.step()

        row = {"rank": rank, "whole_ms": timed(whole, sampler), "sampler_ms": timed(sampler.step, sampler)}
        rows.append(row)
        print(f"rank {rank:2d}: whole step {row['whole_ms']:.3f} ms, sampler {row['sampler_ms']:.3f} ms", flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        (options.out / "step_cuda.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
