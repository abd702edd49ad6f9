"""`benchmarks/network_table.py`: what counts as a jump, what is run again, and two small rows from run to table."""

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names

import network_pages  # noqa: E402
import network_rows as rows  # noqa: E402
import network_table as table  # noqa: E402


def test_jumps_are_counted_once_each() -> None:
    calm = [1.0] * 30
    assert rows.jumps(calm) == (1.0, 0)
    assert rows.jumps([1.0] * 5) == (None, 0)
    found, count = rows.jumps([*calm, 3.0, 4.0, *calm, 5.0, *calm])
    assert found == pytest.approx(5.0)
    assert count == 2
    assert rows.jumps([*calm, float("nan"), *calm])[1] >= 1


def test_the_recipes_are_valid_and_hold_images_out() -> None:
    from atmc.recipe.validation import check_recipe

    assert len({row.name for row in rows.ROWS}) == len(rows.ROWS)
    for row in rows.ROWS:
        recipe = check_recipe(rows.recipe_of(row))
        assert recipe.data.validation == 5000
        assert recipe.run.evaluate == ["validation"]
        for name in rows.needs(row):
            assert name in {other.name for other in rows.ROWS}


def test_the_prior_is_weight_decay_on_weights_alone() -> None:
    import torch
    from torch import nn

    model = nn.Linear(3, 2)
    grads = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    rows.decay_on_weights().assign(model).add_grad_(dict(model.named_parameters()), grads, 1 / rows.TRAIN)
    torch.testing.assert_close(grads["weight"], rows.DECAY * model.weight.detach())
    assert not grads["bias"].any()


def test_200_epochs_have_the_better_weight_decay() -> None:
    found = [{"row": "sgd60-bn", "accuracy": 0.95}, {"row": "sgd60w-bn", "accuracy": 0.94}]
    assert rows.is_worse(rows.Row("sgd200w", "bn", 200), found)
    assert not rows.is_worse(rows.Row("sgd200", "bn", 200), found)
    assert not rows.is_worse(rows.Row("sgd60w", "bn", 60), found)
    assert not rows.is_worse(rows.Row("sgd200w", "frn", 200), [])


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    late, early = rows.ROWS[5].name, rows.ROWS[0].name
    table.keep(path, {"row": late, "status": "budget"})
    table.keep(path, {"row": early, "status": "stopped: diverged"})
    table.keep(path, {"row": late, "status": "done"})
    found = table.load(path)
    assert [row["row"] for row in found] == [early, late]
    assert all(table.is_done(row) for row in found)
    assert not table.is_done({"row": late, "status": "budget"})


def test_small_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "TRAIN", 512)
    monkeypatch.setattr(rows, "SAMPLES", 3)
    tiny: dict[str, Any] = {"name": "wide-resnet", "depth": 10, "width": 1, "norm": "gn-ws"}
    monkeypatch.setitem(rows.NETWORKS, "gn-ws", ("small", tiny))
    data = "synthetic:3x8x8?classes=10&train=576&test=8"
    found = {}
    for row in (rows.Row("sgd60", "gn-ws", 3), rows.Row("sgd60w", "gn-ws", 3), rows.Row("drift", "gn-ws", 3, 1.0)):
        recipe = rows.recipe_of(row, data, held_out=64)
        found[row.kind] = rows.measure(row, recipe, tmp_path, tmp_path, None)
        assert found[row.kind]["status"] == "done"
        assert table.line(found[row.kind]).startswith(row.name)
    sgd, drift = found["sgd60"], found["drift"]
    stored = np.load(tmp_path / sgd["probabilities"][0])
    right = (stored["probs"][0].argmax(1) == stored["labels"]).mean()
    assert right == pytest.approx(sgd["accuracy"])
    assert len(stored["labels"]) == 64
    lengths = drift["lengths"]
    assert len(lengths) >= 3
    assert lengths[0]["step"] == 1.0
    assert lengths[-1]["epoch"] == 3.0
    # Filters start He-normal, with a squared length of 2, and a few steps do not change that much.
    assert lengths[0]["mean_square"] == pytest.approx(2.0, rel=0.2)
    assert drift["kinetic_temperature"] > 0


def test_the_page_shows_what_the_table_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json
    import shutil

    import network_pages as pages

    for name in ("norm_kernels.json", "cuda.json"):
        shutil.copy(ROOT / "results" / "networks" / name, tmp_path)
    sgd = {"status": "done", "accuracy": 0.9, "nll": 0.3, "jump": 1.5, "jumps": 0, "rollbacks": 0}
    found = [
        {"row": "sgd60-gn-ws", **sgd, "accuracy": 0.95},
        {"row": "sgd60-bn", **sgd},
        {"row": "atmc30-gn-ws", **sgd, "jumps": 2, "rollbacks": 1},
        {"row": "atmc30-frn", "status": "stopped: diverged"},
    ]
    (tmp_path / "table.json").write_text(json.dumps(found))
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    head, _, *lines = pages.networks().splitlines()
    assert "200 epochs" not in head
    by_network = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    assert "| **95.00** / **0.300** | 1.50 | 1.50, 2 jumps, 1 rollback |" in by_network["WRN-16-4, GroupNorm + WS"]
    assert "| 90.00 / **0.300** | 1.50 | cannot be sampled |" in by_network["WRN-16-4, BatchNorm"]
    assert by_network["WRN-16-4, FRN"].endswith("| – | – | diverged |")


def _error(values: Any) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def test_the_pages_sentences_are_those_of_results() -> None:
    import json

    folder, said = ROOT / "results" / "networks", " ".join((ROOT / "docs" / "networks.md").read_text().split())
    found = {row["row"]: row for row in json.loads((folder / "table.json").read_text())}
    evonorm, own, theirs = (100 * found[f"sgd60w-{norm}"]["accuracy"] for norm in ("evonorm-s0", "gn-ws", "bn"))
    best = 100 * found["sgd60-bn"]["accuracy"]
    words = (
        f"({theirs:.2f} against {best:.2f} %): best setting against best setting, EvoNorm-S0 is {best - evonorm:.2f} "
    )
    assert words + f"points behind it and GroupNorm + WS {best - own:.2f}" in said
    ours = ("gn-ws", "evonorm-s0", "frn", "resnetpp")
    gained = [100 * (found[f"sgd60w-{name}"]["accuracy"] - found[f"sgd60-{name}"]["accuracy"]) for name in ours]
    assert f"{min(gained):.1f} to {max(gained):.1f} points more accurate than with decay on all parameters" in said
    worse = [found[f"sgd60{w}-resnetpp"]["nll"] - found[f"sgd60{w}-bn"]["nll"] for w in ("", "w")]
    assert all(abs(more - 0.18) < 0.01 for more in worse)
    assert f"WRN-28-10 was cut at {found['atmc30-wrn28']['reached']} of its 30 epochs." in said
    deep = [found[name] for name in ("sgd30-wrn28", "sgd30-depth110", "atmc30-depth110")]
    assert all(row["jumps"] == 0 and row["reached"] == 30 for row in deep)
    words = "no jump in 30 epochs on WRN-28-10 ({:.2f} %) and ResNet-110 ({:.2f} %)"
    assert words.format(*(100 * row["accuracy"] for row in deep[:2])) in said
    long = {name: found[f"sgd200w-{name}"] for name in ours}
    best = 100 * found["sgd200-bn"]["accuracy"]
    behind = [best - 100 * long[name]["accuracy"] for name in ours]
    assert f"{min(behind[:3]):.2f} to {max(behind[:3]):.2f} points behind BatchNorm" in said
    assert f"ResNet++ is {behind[3]:.1f} points behind" in said
    words = "GroupNorm + weight standardisation has {:.2f} % and EvoNorm-S0 {:.2f} %, BatchNorm {:.2f} %"
    assert words.format(*(100 * long[name]["accuracy"] for name in ours[:2]), best) in said
    bn, *others = (network_pages._by_image(found[name]) for name in ("sgd200-bn", *(f"sgd200w-{n}" for n in ours)))
    assert bn is not None
    nll, calibrated = ([mine[at] - bn[at] for mine in others if mine is not None] for at in (1, 2))
    assert f"behind by {nll[0].mean():.3f} and {nll[1].mean():.3f} in NLL, and level in calibrated NLL" in said
    words = f"the difference is {_error(calibrated[0])} and {_error(calibrated[1])}"
    assert words in said
    assert {f"{more.mean():.3f}" for more in calibrated[2:]} == {"0.016"}
    assert "FRN and ResNet++ are behind by 0.016 in calibrated NLL too" in said
    words = (
        "{} with GroupNorm + WS, {} with FRN, {} with EvoNorm-S0, {} with ResNet++. Means over five epochs never rise."
    )
    assert words.format(*(long[name]["jumps"] for name in ("gn-ws", "frn", "evonorm-s0", "resnetpp"))) in said
    assert all(row["loss"] < 0.001 and row["curve"] == sorted(row["curve"], reverse=True) for row in long.values())
    for name, count in (("gn-ws", 1), ("resnetpp", 7)):
        curve = found[f"sgd60w-{name}"]["curve"]
        assert found[f"sgd60w-{name}"]["jumps"] == count
        assert all(after < before for before, after in itertools.pairwise(curve[: curve.index(min(curve)) + 1]))
        assert min(curve) < 0.002
    step = json.loads((folder / "frn_step.json").read_text())
    words = "takes {:.2f} ms by cuDNN's convolutions with our normalisation. Kernels of our own take {:.2f} ms"
    assert words.format(step["step"]["layer by layer"], step["step"]["our kernels"]) in said
    assert f"{step['sweep']['BACKWARD']['16']['microseconds']:.0f} µs each" in said
    split = json.loads((folder / "frn_rows.json").read_text())["step"]
    took = [split[name] for name in ("shared at 16", "shared at 16 and 32", "our kernels")]
    words = "took {:.3f} to {:.3f} ms with it and {:.3f} ms without"
    assert words.format(min(took), max(took), split["a program for each image"]) in said
    assert f"took another tenth off: {step['step']['our kernels']:.3f} ms" in said
    chains = {name: found[f"atmc30-{name}"] for name in ("gn-ws", "evonorm-s0", "resnetpp", "frn")}
    more = {name: found[f"atmc30-{name}"] for name in ("wrn28", "depth110")}
    losses = {name: f"{row['loss']:.2f}" for name, row in (chains | more).items()}
    words = "{depth110} (ResNet-110), {gn-ws} (GroupNorm + WS), {evonorm-s0} (EvoNorm-S0), {resnetpp} (ResNet++), "
    assert (words + "{frn} (FRN) and {wrn28} (WRN-28-10)").format(**losses) in said
    assert min(chains, key=lambda name: chains[name]["loss"]) == "gn-ws", "got furthest"
    sampled = [row for row in found.values() if row["temperature"] is not None and row["kind"] == "atmc30"]
    assert all(row["jumps"] == row["rollbacks"] == 0 for row in sampled)
    assert all(abs(row["kinetic_temperature"] / row["temperature"] - 1) < 0.002 for row in sampled)
    gaps = {name: row["nll"] - row["loss"] for name, row in chains.items()}
    assert (
        f"an NLL of {chains['frn']['nll']:.2f} on held-out images, {gaps.pop('frn'):.2f} above its training loss"
        in said
    )
    assert max(gaps.values()) < 0.06
    tuned = {each["epochs"]: each["accuracy"] for each in found["convert-bn"]["tuned"]}
    assert tuned[1] < tuned[0]
    assert 0 < found["convert-bn"]["before"]["accuracy"] - tuned[10] < 0.007
    times = json.loads((folder / "own_network_profile-wrn.json").read_text())["milliseconds"]
    parts = [times[f"engine: {part}"] for part in ("whole step", "loss", "sampler", "prior", "batch")]
    words = "of {:.3f} ms a step the loss and its gradient take {:.3f}, the sampler {:.3f}, the prior {:.3f}, "
    words += "the batch with crops and flips {:.3f}"
    assert words.format(*parts) in said
    assert f"In float32 the plain loop takes {times['plain, float32']:.3f} ms" in said

    one, low = json.loads((folder / "filter_lengths.json").read_text())["rows"]
    assert all(abs(point["step"] - 1) < 0.05 for point in one["lengths"])
    assert "the effective step stays within 5 %" in said
    assert f"over {one['lengths'][-1]['epoch']:.0f} epochs, at T = 0.1" in said
    end = low["lengths"][-1]
    late = [point["step"] / end["step"] for point in low["lengths"] if point["epoch"] > end["epoch"] - 800]
    assert all(abs(ratio - 1) < 0.05 for ratio in late)
    assert f"over the last 800 of {end['epoch']:.0f}" in said
    assert f"jumped {low['jumps']} times, by a factor of up to {low['jump']:.0f} and without a rollback" in said
    assert low["rollbacks"] == 0
