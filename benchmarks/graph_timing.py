"""Timing of steps recorded in CUDA graphs: what the benchmarks of networks and kernels share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Step = Callable[[], object]
WARM_UP = 3


def recorded(step: Step, repeats: int = 1, stream: Any = None, keep: object = None) -> Callable[[], None]:
    """A replay of `repeats` calls of a step, recorded after a warm-up. `keep` lives as long as the replay does."""
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            step()
    torch.cuda.synchronize()
    alive = (step, keep)

    def replay() -> None:
        assert alive
        graph.replay()

    return replay


def milliseconds(step: Step, repeats: int) -> float:
    """Of one call, the mean of `repeats` calls in a row on the current stream."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def take_turns(steps: Mapping[str, Step], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each step in every round. All run in every round, so that a slow moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            took = milliseconds(step, repeats)
            if number:  # the first round warms up
                times[name].append(took)
    return times


def slowest(step: Step, count: int) -> list[str]:
    """The kernels of one step by their time, the slowest `count` of them, after a line with the totals."""
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / 5
    lines = [f"{sum(row.count for row in rows) / 5:.0f} kernels, {total:.0f} µs"]
    return lines + [
        f"{row.self_device_time_total / 5:8.1f} µs {row.count / 5:5.0f} × {row.key[:100]}" for row in rows[:count]
    ]
