"""Recording a step in a CUDA graph without moving the chain.

Libraries choose kernels and allocate workspaces when they first run, and compilers compile; none of that may happen
while a graph is recorded. So the step first runs a few times for real on the stream it will be recorded on, and
everything it changed is put back: the chain does not notice that it was warmed up.
"""

from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3


class GraphStep:
    """A step recorded in a CUDA graph on a stream of its own; call it to replay the step."""

    def __init__(
        self,
        step: Callable[[], None],
        stream: torch.cuda.Stream,
        save: Callable[[], Any],
        restore: Callable[[Any], None],
    ) -> None:
        self.stream = stream
        saved = save()
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.synchronize(stream.device)
        restore(saved)
        torch.cuda.synchronize(stream.device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            step()
        # Recording runs nothing on the device, but whatever counts on the host has counted one step too many.
        restore(saved)
        torch.cuda.synchronize(stream.device)

    def __call__(self) -> None:
        """Enqueue one step. Call it with the graph's stream current."""
        self.graph.replay()
