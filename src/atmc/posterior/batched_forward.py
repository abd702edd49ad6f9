"""Run one batch through many samples, by one of three strategies.

    loop      one sample after another: copy its weights into the network, call the network
    together  all samples in one call, `torch.func.vmap` over stacked weights; faster for small networks
    graph     CUDA only: one sample's forward pass as a captured graph, replayed for each sample; faster for small
              batches, where launching kernels dominates

`choose` times each on a real batch; `benchmarks/predict.py` prints the same comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from atmc.posterior.uncertainty import Moments

State = Mapping[str, Tensor]
ToProbs = Callable[[Tensor], Tensor]  # outputs of the network to float64 probabilities

STRATEGIES = ("loop", "together", "graph")
# Activations of all samples exist at once under vmap; beyond this many examples x samples it is done in parts.
TOGETHER_LIMIT = 16_384
# Probabilities that wait to be summed in one go: few calls where networks are small, little memory where they are not.
TOGETHER_NUMBERS = 1 << 22
# A rival must be this much faster than the loop: one timing on a busy machine proves little.
CLEARLY = 0.9
# Samples that a trial takes: the loop's time is proportional to their number, running together needs some to pay.
TRIAL = {"loop": 2, "graph": 2, "together": 4}


class Forward:
    """Samples on a device, ready to run; `run` adds all of them for one batch into fresh sums."""

    def __init__(self, model: nn.Module, states: Sequence[State], weights: Sequence[float], to_probs: ToProbs) -> None:
        if not states:
            raise ValueError("there are no posterior samples to run")
        self.model = model
        self.states = states
        self.weights = weights
        self.to_probs = to_probs
        own = model.state_dict(keep_vars=True)
        self.slots = [own[name].data for name in states[0]]
        self.sources = [[state[name] for name in states[0]] for state in states]
        self.scales = torch.tensor(list(weights), dtype=torch.float64, device=self.slots[0].device)

    def swap(self, k: int) -> None:
        """Copy sample k's weights into the network."""
        torch._foreach_copy_(self.slots, self.sources[k])

    def run(self, x: Tensor) -> Moments:
        """Sums over these samples for the prepared batch `x`."""
        raise NotImplementedError


class Loop(Forward):
    """One sample after another."""

    def each(self, x: Tensor) -> Iterator[Tensor]:
        for k in range(len(self.states)):
            self.swap(k)
            yield self.to_probs(self.model(x))

    def run(self, x: Tensor) -> Moments:
        moments: Moments | None = None
        waiting: list[Tensor] = []
        done = 0
        for probs in self.each(x):
            moments = moments or Moments(probs.shape[0], probs.shape[1], x.device)
            waiting.append(probs)
            if len(waiting) * probs.numel() >= TOGETHER_NUMBERS or done + len(waiting) == len(self.states):
                moments.add_all(torch.stack(waiting), self.scales[done : done + len(waiting)])
                done += len(waiting)
                waiting.clear()
        assert moments is not None
        return moments


class Together(Forward):
    """All samples in one call, in parts where their activations would be too many."""

    def __init__(self, model: nn.Module, states: Sequence[State], weights: Sequence[float], to_probs: ToProbs) -> None:
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        # The samples become views of the stack, so that they are not held twice.
        views = [{name: tensor[k] for name, tensor in stacked.items()} for k in range(len(states))]
        super().__init__(model, views, weights, to_probs)
        self.stacked = stacked

        def one(state: dict[str, Tensor], x: Tensor) -> Tensor:
            return to_probs(functional_call(model, state, (x,)))

        self.every = vmap(one, in_dims=(0, None), randomness="different")

    def run(self, x: Tensor) -> Moments:
        part = max(1, TOGETHER_LIMIT // max(len(x), 1))
        moments: Moments | None = None
        for start in range(0, len(self.states), part):
            piece = {name: tensor[start : start + part] for name, tensor in self.stacked.items()}
            probs = self.every(piece, x)
            moments = moments or Moments(probs.shape[1], probs.shape[2], x.device)
            moments.add_all(probs, self.scales[start : start + part])
        assert moments is not None
        return moments


class Graph(Forward):
    """One captured forward pass, replayed for each sample with its weights copied in (CUDA)."""

    def __init__(self, model: nn.Module, states: Sequence[State], weights: Sequence[float], to_probs: ToProbs) -> None:
        super().__init__(model, states, weights, to_probs)
        self.scale = torch.ones((), dtype=torch.float64, device=self.scales.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.input = torch.empty(0)
        self.moments = Moments(0, 0)

    def capture(self, x: Tensor) -> None:
        """Record the pass for batches of this shape; somewhat smaller ones are padded to it."""
        self.input = x.clone()
        stream = torch.cuda.Stream(device=x.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries choose their kernels and allocate their workspaces before the recording
                probs = self.to_probs(self.model(self.input))
            self.moments = Moments(probs.shape[0], probs.shape[1], x.device)
            self.moments.add(probs, self.scale)
        torch.cuda.current_stream(x.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.moments.add(self.to_probs(self.model(self.input)), self.scale)

    def run(self, x: Tensor) -> Moments:
        if self.graph is None:
            self.capture(x)
        if not len(self.input) // 2 < len(x) <= len(self.input):  # an odd batch of a stream: not worth padding
            return Loop(self.model, self.states, self.weights, self.to_probs).run(x)
        assert self.graph is not None
        self.input[: len(x)].copy_(x)
        self.moments.zero_()
        for k in range(len(self.sources)):
            self.swap(k)
            self.scale.copy_(self.scales[k])
            self.graph.replay()
        return self.moments.part(len(x))


KINDS: dict[str, type[Forward]] = {"loop": Loop, "together": Together, "graph": Graph}


def make(kind: str, model: nn.Module, states: Sequence[State], weights: Sequence[float], to_probs: ToProbs) -> Forward:
    if kind not in KINDS:
        raise ValueError(f"no strategy is called {kind!r}; choose auto, {', '.join(STRATEGIES)}")
    return KINDS[kind](model, states, weights, to_probs)


def seconds(forward: Forward, x: Tensor) -> float:
    """Time of one run after a warm-up run."""
    forward.run(x)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    start = time.perf_counter()
    forward.run(x)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start


def choose(model: nn.Module, states: Sequence[State], weights: Sequence[float], to_probs: ToProbs, x: Tensor) -> str:
    """The fastest strategy for this network, batch and device, timed on a few samples.

    A strategy that fails (data-dependent control flow, no batching rule, too little memory) is left out.
    """
    if len(states) == 1 and not x.is_cuda:
        return "loop"
    times: dict[str, float] = {}
    for kind in ("loop", "graph", "together") if x.is_cuda else ("loop", "together"):
        few = TRIAL[kind]
        try:
            trial = make(kind, model, states[:few], weights[:few], to_probs)
            times[kind] = seconds(trial, x) / len(trial.states)
        except (RuntimeError, NotImplementedError, ValueError):
            if kind == "loop":
                raise
    best = min(times, key=lambda kind: times[kind])
    return best if times[best] < CLEARLY * times["loop"] else "loop"
