"""The tables of speed in docs/networks.md, from results/networks/: custom networks, chains together, ResNet-20-FRN."""

from __future__ import annotations

import json

from network_pages import NONE, _json
from pages import ROOT, markdown


def custom() -> str:
    """Custom networks through `atmc.sample` beside the plain loop."""
    record = _json("own_network.json")
    heads = ["network", "plain loop, images/s, twice", "`atmc.sample`", "ratios", "peak MB, plain / sampled"]
    rows = record["rows"] if record else []
    timed = [row for row in rows if row.get("start_up")]
    heads += ["first step, s"] if timed else []
    lines = []
    for row in rows:
        ours, plain = row["sampled"], [row[key]["rate"] for key in ("plain", "plain_again")]
        ratios = [f"{ours['rate'] / rate:.3f}" for rate in plain]
        memory = f"{row['plain']['peak_mb']:,.0f} / {ours['peak_mb']:,.0f}"
        cells = [", ".join(f"{rate:,.0f}" for rate in plain), f"{ours['rate']:,.0f}", ", ".join(ratios), memory]
        if timed:
            began = row.get("start_up")
            cells.append(f"{began['cold']:.0f} cold, {began['warm']:.0f} warm" if began else NONE)
        lines.append([row["network"], *cells])
    return markdown(heads, lines or [[NONE] * len(heads)])


def chains() -> str:
    """Images per second of several chains on one GPU, and the factor over one."""
    record = _json("chains.json")
    heads = ["network", "one chain, images/s", "two", "four", "factor of two", "factor of four"]
    rates = {row["network"]: row["images_per_second"] for row in (record["rows"] if record else [])}
    if "ResNet++-56×32" not in rates:
        speed = json.loads((ROOT / "results" / "train" / "cuda-56x32-b128.json").read_text(encoding="utf-8"))["speed"]
        rates["ResNet++-56×32"] = {"1": speed["atmc"], **speed["together"]}
    lines = []
    for network, found in rates.items():
        one, *more = (found[count] for count in ("1", "2", "4"))
        lines.append([network, *(f"{rate:,.0f}" for rate in (one, *more)), *(f"{rate / one:.2f}" for rate in more)])
    return markdown(heads, lines or [[NONE] * len(heads)])


def frn_step() -> str:
    """Milliseconds of a training step of ResNet-20-FRN, with and without its own kernels."""
    record = _json("frn_step.json")
    found = record["step"] if record else {}
    lines = [[name, f"{took:.3f}"] for name, took in found.items()]
    return markdown(["ResNet-20-FRN, batch 256", "ms a step"], lines or [[NONE] * 2])


BLOCKS = {"networks custom": custom, "networks chains": chains, "networks frn": frn_step}
