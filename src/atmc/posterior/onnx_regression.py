"""The end of an ONNX graph of a regression: mean and standard deviation of the predictive, in the targets' units.

    f_k, σ_k from the outputs of sample k, as the likelihood says
    mean = Σ_k w_k f_k;   aleatoric = Σ_k w_k v σ_k²;   epistemic = Σ_k w_k (f_k − mean)²
    std = √(aleatoric + epistemic)

v is 1 for Gaussian noise and ν/(ν − 2) for Student-t. The difference to the mean is taken before it is squared, so that
float32 is enough where the mean is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atmc.common.errors import InputError
from atmc.target.likelihoods import Gaussian, LocationScale
from atmc.target.likelihoods.learned_noise import MOST

if TYPE_CHECKING:
    from atmc.posterior.onnx_graph import Graph
    from atmc.posterior.posterior import Posterior

OUTPUTS = ("mean", "std", "aleatoric", "epistemic")


def average_values(posterior: Posterior, graph: Graph, sizes: list[int]) -> dict[str, list[int]]:
    """Add mean, std, aleatoric and epistemic to the graph; names and shapes of the outputs."""
    law: Any = posterior.likelihood
    if not isinstance(law, Gaussian | LocationScale):
        raise InputError(f"{type(law).__name__} has no ONNX form: export it with onnx=False")
    node, constant = graph.node, graph.constant
    shape = sizes if isinstance(law, Gaussian) else _shape(law, sizes)
    parts = [_values(law, graph, k) for k in range(len(posterior))]
    weights = [constant(f"s{k}/weight", posterior.weights[k]) for k in range(len(posterior))]
    mean = node("Sum", [node("Mul", [f, w], f"{f}/share") for (f, _), w in zip(parts, weights, strict=True)], "mean")
    noise, own = [], []
    for k, ((f, variance), weight) in enumerate(zip(parts, weights, strict=True)):
        away = node("Sub", [f, mean], f"s{k}/away")
        own.append(node("Mul", [node("Mul", [away, away], f"s{k}/square"), weight], f"s{k}/own"))
        noise.append(node("Mul", [variance, weight], f"s{k}/noise"))
    total = node("Sum", [node("Sum", noise, "aleatoric"), node("Sum", own, "epistemic")], "variance")
    node("Sqrt", [total], "std")
    return dict.fromkeys(OUTPUTS, shape)


def _shape(law: LocationScale, sizes: list[int]) -> list[int]:
    return [] if isinstance(law.center, float) else [sizes[0] // 2]


def _values(law: Any, graph: Graph, k: int) -> tuple[str, str]:
    """Names of the mean and of the variance of the noise that sample k predicts."""
    node, constant, raw = graph.node, graph.constant, f"s{k}/logits"
    if isinstance(law, Gaussian):
        still = node("Mul", [raw, constant(f"s{k}/zero", 0.0)], f"s{k}/still")
        return raw, node("Add", [still, constant(f"s{k}/variance", law.scale**2)], f"s{k}/noisy")
    from onnx import helper

    halves = [f"s{k}/f", f"s{k}/s"]
    graph.nodes.append(helper.make_node("Split", [raw], halves, name=f"s{k}/halves", axis=-1, num_outputs=2))
    center, spread = (np.zeros(()), np.ones(())) if law.center is None else (np.array(law.center), np.array(law.spread))
    f = node("Mul", [halves[0], constant(f"s{k}/spread", spread)], f"s{k}/wide")
    f = node("Add", [f, constant(f"s{k}/center", center)], f"s{k}/value")
    bounds = [constant(f"s{k}/least", -MOST), constant(f"s{k}/most", MOST)]
    s = node("Clip", [halves[1], *bounds], f"s{k}/bounded")
    tail = 1.0 if law.degrees() is None else law.degrees() / (law.degrees() - 2)
    scale = node("Mul", [node("Exp", [s], f"s{k}/exp"), constant(f"s{k}/size", spread * np.sqrt(tail))], f"s{k}/scale")
    variance = node("Mul", [scale, scale], f"s{k}/variance")
    if not isinstance(law.center, float):
        return f, variance
    axis = constant(f"s{k}/axis", [-1], np.int64)
    return node("Squeeze", [f, axis], f"s{k}/flat"), node("Squeeze", [variance, axis], f"s{k}/flat_variance")
