"""One ONNX graph that averages the samples.

The network is traced once, which takes seconds, and copied K times under the prefixes `s0/`, `s1/`, …, with each
sample's tensors as constants. Then follows:

    p_k = Softmax(logits_k);   probs = Σ_k w_k p_k;   entropy = −Σ_c probs log probs;
    epistemic = max(entropy + Σ_k w_k Σ_c p_k log p_k, 0)

A regression's samples are averaged as `onnx_regression` says. Everything is float32. uint8 images are standardised
inside the graph.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior

INPUT = "input"
TINY = 1e-37  # log of a stored zero must be finite; x log x is zero there all the same


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's messages about torchvision and its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def trace(posterior: Posterior, example: Tensor) -> Any:
    """The network's own ONNX model with its parameters as named constants and any number of examples."""
    model = copy.deepcopy(posterior.model).cpu().eval()
    # Two different examples: a batch of one would be taken for a constant.
    pair = posterior.prepare(example[:2] if len(example) > 1 else example.repeat(2, *[1] * (example.ndim - 1)), _CPU)
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            model,
            (pair,),
            dynamo=True,
            optimize=False,  # optimising would melt the parameters into other constants and lose their names
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=[INPUT],
            output_names=["logits"],
            verbose=False,
        )
    assert program is not None
    return program.model_proto


class Graph:
    """Nodes and constants of the graph that is being built."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, value: Any, kind: Any = np.float32) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=kind), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output


def build(posterior: Posterior, example: Tensor) -> Any:
    """The averaging `onnx.ModelProto` for inputs like `example`: uint8 pixels or the network's own floats."""
    from onnx import TensorProto, compose, helper, numpy_helper

    from atmc.posterior.onnx_regression import average_values

    single = trace(posterior, example)
    pixels = example.dtype == torch.uint8
    graph = Graph()
    entry = INPUT
    if pixels:
        entry = graph.node("Cast", [INPUT], "pixels", to=TensorProto.FLOAT)
        entry = graph.node("Div", [entry, graph.constant("full", 255.0)], "scaled")
        if posterior.mean:
            shape = (1, -1, *[1] * (example.ndim - 2))
            entry = graph.node("Sub", [entry, graph.constant("mean", np.reshape(posterior.mean, shape))], "centred")
            entry = graph.node("Div", [entry, graph.constant("std", np.reshape(posterior.std, shape))], "standardised")
    for k in range(len(posterior)):
        own = compose.add_prefix_graph(single.graph, f"s{k}/", inplace=False)
        state = posterior.state(k)
        for piece in own.initializer:
            name = piece.name.removeprefix(f"s{k}/")
            if name in state:
                piece.CopyFrom(numpy_helper.from_array(state[name].detach().cpu().numpy(), piece.name))
        for inside in own.node:
            inside.input[:] = [entry if name == f"s{k}/{INPUT}" else name for name in inside.input]
        graph.nodes.extend(own.node)
        graph.constants.extend(own.initializer)

    shape_of = single.graph.output[0].type.tensor_type.shape.dim
    sizes = [dim.dim_value for dim in shape_of][1:]
    average = average_values if posterior.is_regression else _average_probs
    form: list[str | int | None] = ["batch", *(int(n) for n in example.shape[1:])]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])
        for name, dims in average(posterior, graph, sizes).items()
    ]
    entry_info = helper.make_tensor_value_info(INPUT, TensorProto.UINT8 if pixels else TensorProto.FLOAT, form)
    whole = helper.make_graph(graph.nodes, "posterior", [entry_info], outputs, initializer=graph.constants)
    model = helper.make_model(whole, opset_imports=single.opset_import, functions=single.functions)
    model.ir_version = single.ir_version
    model.producer_name = "atmc"
    return model


def _average_probs(posterior: Posterior, graph: Graph, sizes: list[int]) -> dict[str, list[int]]:
    """The averaged probabilities of a classifier with their uncertainty; names and shapes of the outputs."""
    node, constant = graph.node, graph.constant
    tiny, last_axis = constant("tiny", TINY), constant("last_axis", [-1], np.int64)

    def minus_entropy(probs: str, name: str) -> str:
        log = node("Log", [node("Max", [probs, tiny], f"{name}/floored")], f"{name}/log")
        each = node("Mul", [probs, log], f"{name}/plogp")
        return node("ReduceSum", [each, last_axis], f"{name}/minus_entropy", keepdims=0)

    weighted: list[str] = []
    inner: list[str] = []
    for k in range(len(posterior)):
        probs = node("Softmax", [f"s{k}/logits"], f"s{k}/probs", axis=-1)
        weight = constant(f"s{k}/weight", posterior.weights[k])
        weighted.append(node("Mul", [probs, weight], f"s{k}/share"))
        inner.append(node("Mul", [minus_entropy(probs, f"s{k}"), weight], f"s{k}/inner"))
    node("Sum", weighted, "probs")
    node("Neg", [minus_entropy("probs", "mean")], "entropy")
    gap = node("Sum", ["entropy", *inner], "gap")
    node("Max", [gap, constant("zero", 0.0)], "epistemic")
    return {"probs": sizes, "entropy": [], "epistemic": []}


_CPU = torch.device("cpu")
