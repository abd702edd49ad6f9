"""The tables of speed in docs/imagenet.md: the input, and the exchange of gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from imagenet_pages import NONE, NOT_RUN, RESULTS
from pages import markdown

WAYS = {
    "full": "Pillow, whole image",
    "tv": "torchvision on the CPU",
    "draft": "Pillow, scaled decoding (`shards:`)",
    "kept": "decoded cache (`&cache=`)",
    "nvjpeg": "torchvision on the GPU (nvJPEG)",
    "device": "decoded, on the device (`&memory=1`)",
}


def _records(folder: str, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / folder).glob(pattern))]


def input_speed(records: list[dict[str, Any]]) -> str:
    """Images per second by way, size and number of workers; one table for each machine and kind of images."""
    return "\n\n".join(_one(record) for record in records) or NOT_RUN


def _one(record: dict[str, Any]) -> str:
    found = {(row["way"], row["size"], row["workers"]): row["rate"] for row in record["rows"]}
    sizes = sorted({size for _, size, _ in found})
    workers = sorted({count for _, _, count in found if count})
    columns = [(size, count) for size in sizes for count in workers]
    lines = []
    for way, said in WAYS.items():
        if not any(key[0] == way for key in found):
            continue
        rates = [found.get((way, size, count)) for size, count in columns]
        if all(rate is None for rate in rates):  # no workers at all
            rates = [found.get((way, size, 0)) for size, _ in columns]
        lines.append([said, *(NONE if rate is None else f"{rate:,}" for rate in rates)])
    if record.get("network"):
        needed = [f"{record['network'] * (224 / size) ** 2:,.0f}" for size, _ in columns]
        lines.append(["*what the network takes*", *needed])
    heads = [f"{size} px, {count} {'worker' if count == 1 else 'workers'}" for size, count in columns]
    where = f"{record['device']}, {record['cores']} cores, {record['images']}"
    return markdown([f"images/s ({where})", *heads], lines)


def exchange(records: list[dict[str, Any]]) -> str:
    """A data-parallel step against plain DDP."""
    lines = []
    for record in records:
        took, ratio = record["milliseconds"], record["against_ddp"]
        many = f"{record['processes']} process{'es' if record['processes'] > 1 else ''}"
        where = f"{record['device']}, {many}, {record.get('backend', 'gloo')}"
        cells = [f"{took[key]:,.1f} ms" for key in ("alone", "ddp")]
        lines.append([f"{record['network']}; {where}", *cells, *(f"{ratio[key]:.2f}" for key in ("atmc", "flat"))])
    heads = ["network", "no exchange", "DDP", "atmc / DDP", "one all-reduce / DDP"]
    return markdown(heads, lines) if lines else NOT_RUN


def networks(record: dict[str, Any]) -> str:
    """ResNet-50 by normaliser: images per second in training."""
    names = {"gn-ws": "GroupNorm + WS", "resnetpp": "ResNet++", "resnet": "BatchNorm"}
    lines = []
    for row in record["rows"]:
        if row["depth"] == 50:
            rates = [row["images_per_second"].get(name) for name in names]
            lines.append(
                [f"{row['size']} px, batch {row['batch']}", *(NONE if r is None else f"{r:,.0f}" for r in rates)]
            )
    return markdown([f"ResNet-50, images/s on {record['device']}", *names.values()], lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "imagenet input": lambda: input_speed(_records("input", "c*.json")),
    "imagenet exchange": lambda: exchange(_records("data_parallel", "*.json")),
    "imagenet networks": lambda: networks(_records("networks", "cuda.json")[0]),
}
