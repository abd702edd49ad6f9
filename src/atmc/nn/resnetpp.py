"""ResNet++: a residual network without batch statistics. SELU, weight normalisation, small last scales.

- Every convolution is weight-normalised with scale 1 and keeps the mean square of its input. SELU's fixed point is mean
  0, variance 1. The initialisation does not depend on data.
- A branch starts small (the paper's simplified Fixup; here 0.1): a stage of n blocks ends at variance 1 + 0.01 n. The
  learned scales of its last convolution start small ("scale", as in the paper). One learned number per branch
  ("scalar") fits faster on CIFAR-10 but stands only half the learning rate; a constant factor ("fixed") stands the most
  and learns far too slowly (docs/networks.md).
- SELU is before the branch ("pre"), so the identity path has no nonlinearity. With SELU after the addition ("post")
  positive values grow by 1.05 a block and negative ones collapse to -1.26, so that at depth 110 neither values nor
  gradients survive.
- Where resolution changes, a weight-normalised 1×1 projection of the activated stream restores mean square one; pooling
  and padding would lose variance at every stage.
- Biases stay inside branches ("inner"). Biases added to the stream act on all later blocks: n parameters with one
  effect, a direction n times as sharp as each.

The constructor can switch all of these for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atmc.nn.effective_weights import effective_weights
from atmc.nn.frn import FilterResponseNorm2d
from atmc.nn.kernels import nvrtc, stage, transition
from atmc.nn.norm_functions import channels_last_on_cuda
from atmc.nn.resnet import raise_recompile_limit
from atmc.nn.resnet_shapes import BlockShape, layout, made_by
from atmc.nn.resnetpp_block import BlockKind, Order, Shortcut, block_forward, entry_forward, stem_forward
from atmc.nn.weightnorm import BiasKind, WNConv2d, WNLinear

Bias = Literal["inner", "before", "after", "scalar", "none"]
Gain = Literal["scale", "scalar", "fixed"]


class Block(nn.Module):
    """The parameters of one residual block; what happens with them is `block_forward`.

    `pre_bias` is added before the block's first activation, which the block before (or the stem) computes.
    """

    def __init__(
        self, shape: BlockShape, bias: Bias, gain: Gain, branch_scale: float, norm: str | None, kind: BlockKind
    ) -> None:
        super().__init__()
        specs = shape.convolutions()
        inner: BiasKind = "none" if bias == "none" or norm else ("scalar" if bias == "scalar" else "feature")
        outer: BiasKind = inner if bias in ("after", "scalar") else "none"
        self.kind = kind
        self.convs = nn.ModuleList()
        for i, (inputs, outputs, size, stride) in enumerate(specs):
            last = i + 1 == len(specs)
            scale = branch_scale if last and gain == "scale" else 1.0
            self.convs.append(
                WNConv2d(
                    inputs,
                    outputs,
                    size,
                    stride,
                    size // 2,
                    bias=outer if last else inner,
                    scale=1.0 if norm else scale,
                    learn_scale=norm is None,
                )
            )
        self.norms: nn.ModuleList | None = None
        if norm is not None:
            gains = [1.0] * (len(specs) - 1) + [branch_scale if gain == "scale" else 1.0]
            self.norms = nn.ModuleList(
                FilterResponseNorm2d(outputs, False, start)
                for (_, outputs, _, _), start in zip(specs, gains, strict=True)
            )
        self.gain = nn.Parameter(torch.tensor([branch_scale])) if gain == "scalar" else None
        lengths = {"before": shape.inputs, "scalar": 1}
        self.pre_bias = nn.Parameter(torch.zeros(lengths[bias])) if bias in lengths else None
        self.project: WNConv2d | None = None
        if kind.shortcut in ("projection", "pool-projection"):
            stream_bias: BiasKind = "none" if bias in ("none", "before") else "feature"
            self.project = WNConv2d(shape.inputs, shape.outputs, 1, shape.stride, bias=stream_bias)

    def layers(self) -> list[WNConv2d]:
        """The convolutions in the order their weights are asked for, and then lie in memory.

        The projection comes first, so that the last convolution and the next block's are neighbours.
        """
        convs = [conv for conv in self.convs if isinstance(conv, WNConv2d)]
        return convs if self.project is None else [self.project, *convs]

    def inputs(self, weights: list[Tensor]) -> tuple[Any, ...]:
        """What `block_forward` takes between (x, a) and the next block's bias."""
        project, project_bias = None, None
        if self.project is not None:
            (project, *weights), project_bias = weights, self.project.bias
        norms = None if self.norms is None else tuple((norm.gain, norm.bias) for norm in self.norms)
        biases = tuple(conv.bias for conv in self.convs)
        return tuple(weights), biases, norms, self.gain, project, project_bias


class ResNetPP(nn.Module):
    """ResNet++. Input NCHW, normalised, any float precision; logits in float32.

    order: "pre" or "post", SELU before the branch or after the addition.
    bias: "inner" (after every convolution of a branch but the last), "after" (the last too), "before" (before every
        activation), "scalar" (all of these, one number each, as Fixup), "none".
    shortcut: "projection", "pool-projection" (average-pooled first) or "pool-pad" (pooled, new channels zero).
    branch_scale: how small a branch starts, or "depth" for 1/√blocks.
    gain: what makes it small: "fixed" (a constant), "scale" (where its last scales start), "scalar" (a learned number).
    norm: None or "frn": filter response normalisation in the branches.
    """

    def __init__(
        self,
        depth: int,
        width: int | None = None,
        classes: int = 10,
        in_channels: int = 3,
        norm: Literal["frn"] | None = None,
        small_input: bool | None = None,
        order: Order = "pre",
        bias: Bias = "inner",
        shortcut: Shortcut = "projection",
        branch_scale: float | Literal["depth"] = 0.1,
        gain: Gain = "scale",
    ) -> None:
        super().__init__()
        self.made_by = made_by("resnetpp", locals())
        for name, value, allowed in (
            ("norm", norm, (None, "frn")),
            ("order", order, ("pre", "post")),
            ("bias", bias, ("inner", "before", "after", "scalar", "none")),
            ("shortcut", shortcut, ("projection", "pool-projection", "pool-pad")),
            ("gain", gain, ("scale", "scalar", "fixed")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, not {value!r}")
        shape = layout(depth, width, small_input)
        small = len(shape.blocks) ** -0.5 if isinstance(branch_scale, str) else float(branch_scale)
        self.order: Order = order
        self.bias: Bias = bias
        self.fuse = True  # use the kernels of `stage` and `transition` where they apply
        self.small_input = shape.small_input
        stem_bias: BiasKind = "none" if bias in ("none", "before") else "feature"
        # Max-pooling raises the mean square 1.1 to 1.8 times on images of a natural spectrum (white noise: 2.5).
        size, stride, scale = (3, 1, 1.0) if shape.small_input else (7, 2, 0.8)
        self.stem = WNConv2d(in_channels, shape.stem, size, stride, size // 2, bias=stem_bias, scale=scale)
        self.blocks = nn.ModuleList(
            Block(
                block,
                bias,
                gain,
                small,
                norm,
                BlockKind(block.stride, order, shortcut if block.changes else None, small if gain == "fixed" else None),
            )
            for block in shape.blocks
        )
        last = {"before": shape.features, "scalar": 1}
        self.last_bias = nn.Parameter(torch.zeros(last[bias])) if bias in last and order == "pre" else None
        self.head = WNLinear(shape.features, classes)
        if order == "post":  # There the activation follows the addition: no block has one before its branch.
            for block in self._blocks():
                block.pre_bias = None
        self._stem: Callable[..., tuple[Tensor, Tensor | None]] = stem_forward
        self._block: Callable[..., tuple[Tensor, Tensor | None]] = block_forward
        self._entry: Callable[..., tuple[Tensor, Tensor]] = entry_forward

    def compile_blocks(self, **options: Any) -> None:
        """Compile one block per shape and reuse it for all its like; `options` go to `torch.compile`."""
        raise_recompile_limit()
        self._begin_compiling(self.head.direction.device)
        options = {"dynamic": False, "fullgraph": True, **options}
        self._stem = torch.compile(stem_forward, **options)
        self._block = torch.compile(block_forward, **options)
        self._entry = torch.compile(entry_forward, **options)

    def uncompile_blocks(self) -> None:
        """Undo `compile_blocks`."""
        self._stem, self._block, self._entry = stem_forward, block_forward, entry_forward

    def forward(self, x: Tensor, keep: list[Tensor] | None = None) -> Tensor:
        """Logits; the stream after the stem and after every block is appended to `keep`, for measurements."""
        blocks = self._blocks()
        x = channels_last_on_cuda(x)
        weights = iter(effective_weights([self.stem, *(layer for b in blocks for layer in b.layers())], x.dtype))
        stem = next(weights)
        inputs = [block.inputs([next(weights) for _ in block.layers()]) for block in blocks]
        next_biases = [*(block.pre_bias for block in blocks), self.last_bias]
        together = self._stages(inputs, x) if keep is None else {}
        # Stages that start from the stream itself. One that changes resolution starts from the activated stream.
        inactive = {at for at in together if blocks[at].kind.shortcut is None}
        x, active = self._stem(x, stem, self.stem.bias, next_biases[0], self.small_input, self.order, 0 not in inactive)
        at = 0
        while at < len(blocks):
            if keep is not None:
                keep.append(x)
            if at in together:
                x = active = self._stage(x if active is None else active, inputs[at : together[at]], blocks[at].kind)
                at = together[at]
                continue
            kind = replace(blocks[at].kind, activates=at + 1 not in inactive)
            x, active = self._block(x, x if active is None else active, *inputs[at], next_biases[at + 1], kind)
            at += 1
        if keep is not None:
            keep.append(x)
        features = (x if active is None else active).mean((2, 3), dtype=self.head.direction.dtype)
        logits: Tensor = self.head(features)
        return logits

    def _stage(self, x: Tensor, inputs: list[tuple[Any, ...]], kind: BlockKind) -> Tensor:
        """The activated stream after blocks that `stage` has kernels for, from the stream before them.

        Where the first of them changes resolution, from the activated stream: that block asks for no other.
        """
        weights = [weight for each in inputs for weight in each[0]]
        biases = [each[1][0] for each in inputs]
        if kind.shortcut is None:
            return stage.run(x, weights, biases)
        entry = x, weights[0], biases[0], inputs[0][4], inputs[0][5]
        h, x = transition.run(*entry) if transition.applies(*entry, kind) else self._entry(*entry, kind)
        return stage.run(x, weights[1:], biases[1:], h)

    def _stages(self, inputs: list[tuple[Any, ...]], x: Tensor) -> dict[int, int]:
        """Runs of blocks (first → behind the last) that `stage` has kernels for: of one shape, in the plain design.

        The first may be one that changes resolution by a projection, if another follows.
        """
        if not self._has_stages():
            return {}
        if stage.possible(x.dtype, x.device):
            self._begin_compiling(x.device)
        size = x.shape[-1]
        found: dict[int, int] = {}
        first: int | None = None
        for at, (block, (weights, biases, norms, gain, *_)) in enumerate(zip(self._blocks(), inputs, strict=True)):
            kind = block.kind
            size = -(-size // kind.stride)  # as a padded convolution rounds
            if kind.shortcut == "pool-pad":
                return {}  # it reads the stream itself, which a stage does not hand on
            plain = len(weights) == 2 and norms is None and gain is None and kind.gain is None
            changes = kind.shortcut is not None
            ours = weights[1:] if changes else weights
            if not (plain and stage.applies((x.dtype, x.device), size, ours, biases[:-1])):
                first = None
            elif changes:
                first = at
            else:
                first = at if first is None else first
                found[first] = at + 1
        if found and (x.shape[-2] != x.shape[-1] or not len(x)):
            return {}  # the kernels are for square images, and at least one
        return found

    def _has_stages(self) -> bool:
        return self.fuse and self.order == "pre" and self.bias == "inner" and self.small_input

    def _begin_compiling(self, device: torch.device) -> None:
        """Kernels of our own, where they may serve, in the background: the first pass needs them all."""
        if self._has_stages() and (self.head.direction.shape[1], 8) in stage.SHAPES and stage.is_hopper(device):
            _compile_ahead(device)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]


@cache
def _compile_ahead(device: torch.device) -> None:
    nvrtc.ahead([*stage.sources(), *transition.sources()], device)


def resnetpp(depth: int, width: int | None = None, classes: int = 10, in_channels: int = 3, **options: Any) -> ResNetPP:
    """`ResNetPP`: depth 6n+2 for small images, or 18, 34, 50, 101; see the class for the options."""
    return ResNetPP(depth, width, classes, in_channels, **options)
