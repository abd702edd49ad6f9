"""Memory of sampling a transformer's low-rank adapters beside sampling all of it (`python benchmarks/lora.py`).

Each is measured in a process of its own: peak resident memory over that before the run, bytes of one sample, of the
sampler's state and of the run's folder. Writes results/lora/cpu.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import atmc

CONFIG = {"vocabulary": 2000, "width": 256, "heads": 4, "layers": 4, "length": 32, "classes": 2}
RANK, EXAMPLES, EPOCHS, BATCH = 4, 64, 3, 16


class Block(nn.Module):
    """Attention and a two-layer network, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        parts = (part(h).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        seen = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        out: Tensor = x + self.inner(self.norms[1](x))
        return out


class Transformer(nn.Module):
    """A classifier of token sequences, built from a config."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        width = config["width"]
        self.tokens = nn.Embedding(config["vocabulary"], width)
        self.places = nn.Embedding(config["length"], width)
        self.blocks = nn.Sequential(*(Block(width, config["heads"]) for _ in range(config["layers"])))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, config["classes"])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        out: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return out


class LoRA(nn.Module):
    """A linear layer plus a low-rank change: W x + B A x, where B begins at 0."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        self.lora_a = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + x @ self.lora_a.T @ self.lora_b.T
        return out


def add_lora(model: Transformer, rank: int) -> Transformer:
    """Adapters on the queries and values of every block."""
    for block in model.blocks:
        block.query, block.value = LoRA(block.query, rank), LoRA(block.value, rank)
    return model


def measure(which: str, config: dict[str, int]) -> dict[str, Any]:
    """One run in this process."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = add_lora(Transformer(config), RANK)
    tokens = torch.randint(0, config["vocabulary"], (EXAMPLES, config["length"]))
    labels = (tokens[:, 0] % 2).long()
    with torch.no_grad():
        model(tokens[:BATCH])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    only: Any = ["*lora*", "head"] if which == "adapters" else None
    with tempfile.TemporaryDirectory() as folder:
        posterior = atmc.sample(
            model, (tokens, labels), only=only, epochs=EPOCHS, batch_size=BATCH, out=f"{folder}/run", progress=None
        )
        bank = sum(path.stat().st_size for path in Path(folder, "run", "samples").iterdir())
        saved = sum(path.stat().st_size for path in Path(folder, "run").rglob("*") if path.is_file())
        sampled = sum(tensor.numel() for tensor in posterior.state(0).values())
        count = len(posterior)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "sampled": sampled,
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak_mib": (after - before) / 1024,
        "sample_mib": bank / count / 2**20,
        "folder_mib": saved / 2**20,
        "samples": count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/lora/cpu.json"))
    parser.add_argument("--config", type=json.loads, default=CONFIG)
    parser.add_argument("--one", choices=("adapters", "all"), help="measure this one here and print it")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.config)))
        return
    rows = {}
    for which in ("adapters", "all"):
        words = [sys.executable, __file__, "--one", which, "--config", json.dumps(args.config)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        rows[which] = json.loads(done.stdout.splitlines()[-1])
    args.results.parent.mkdir(parents=True, exist_ok=True)
    about = {"config": args.config, "rank": RANK, "examples": EXAMPLES, "epochs": EPOCHS, "batch": BATCH}
    args.results.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
