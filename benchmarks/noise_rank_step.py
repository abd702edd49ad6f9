"""Milliseconds of a step with friction along the noise: bf16, one CUDA graph, uncompiled.

    python benchmarks/noise_rank_step.py [--networks wrn frn] [--out results/minibatch]

WRN-16-4 gn-ws at batch 128, ResNet-20-FRN at batch 256. The whole step (forward, backward, sampler) and the sampler
alone, for several ranks, rank 16 with a Kronecker-factored rest, and each example (ResNet-20-FRN): means of 1,024
replays. Ranks above 0 include the update of the noise's directions every 16 steps, outside the graph, and one change of
the Kronecker factors' basis.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import atmc
from atmc.nn import build
from atmc.samplers import noise_friction, noise_rows
from atmc.target.example_gradients import example_gradients, store_gradients

NETWORKS: dict[str, tuple[int, dict[str, Any]]] = {
    "wrn": (128, {"name": "wide-resnet", "depth": 16, "width": 4, "norm": "gn-ws"}),
    "frn": (256, {"name": "resnet-frn", "depth": 20}),
}
FRICTION: dict[str, dict[str, Any]] = {
    **{f"rank {rank}": {"noise_rank": rank} for rank in (0, 8, 16, 32)},
    "rank 16, Kronecker": {"noise_rank": 16, "noise_kronecker": True},
    "each example": {"noise_examples": True, "nonfinite": "ignore"},
}


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
    for _ in range(18):
        torch.cuda.synchronize()
        since = time.perf_counter()
        with torch.cuda.stream(stream):
            for number in range(64):
                graph.replay()
                if sampler.noise_rank and (number + 1) % noise_rows.EVERY == 0:
                    noise_friction.update(sampler, 1000)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - since) / 64 * 1e3)
    return statistics.mean(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    likelihood = atmc.likelihoods.Categorical()
    for network, name in itertools.product(options.networks, FRICTION):
        by_example = FRICTION[name].get("noise_examples", False)
        if by_example and network == "wrn":  # 128 × 2.7 million numbers, and convolutions in 128 groups
            continue
        batch, settings = NETWORKS[network]
        x = torch.randn(batch, 3, 32, 32, device="cuda").bfloat16().to(memory_format=torch.channels_last)
        y = torch.randint(10, (batch,), device="cuda")
        model = build(**settings).cuda()
        params = list(model.parameters())
        sampler = atmc.ATMC(params, lr=1e-3, mass=1e6, friction=105.0, **FRICTION[name])

        def whole(model: torch.nn.Module = model, sampler: atmc.ATMC = sampler, x: Tensor = x, y: Tensor = y) -> None:
            for p in model.parameters():
                p.grad = None
            if sampler.noise_examples:
                store_gradients(model, example_gradients(model, likelihood, x, y, 45_000 / len(x))[2])
            else:
                (F.cross_entropy(model(x).float(), y) * 45_000).backward()
            sampler.step()

        if by_example:
            store_gradients(model, example_gradients(model, likelihood, x, y, 45_000 / len(x))[2])
        parts = [getattr(p, "grad_sample", None) for p in params]

        def alone(params: list[Any] = params, parts: list[Any] = parts, sampler: atmc.ATMC = sampler) -> None:
            for p, part in zip(params, parts, strict=True):
                p.grad_sample = part  # a step takes it away
            sampler.step()

        row = {"network": network, "friction": name}
        row |= {"whole_ms": timed(whole, sampler), "sampler_ms": timed(alone, sampler)}
        rows.append(row)
        print(
            f"{network} {name:20} whole step {row['whole_ms']:.3f} ms, sampler {row['sampler_ms']:.3f} ms", flush=True
        )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        (options.out / "step_cuda.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
