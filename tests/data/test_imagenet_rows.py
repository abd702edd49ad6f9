"""`benchmarks/imagenet_rows.py`: valid recipes, and a small set from shards to the table, stopped and resumed."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names

import imagenet_recipes as recipes  # noqa: E402
import imagenet_rows as rows  # noqa: E402
from atmc.common.errors import InputError  # noqa: E402
from atmc.data.shard_writer import Item, write_shards  # noqa: E402
from imagenet_scores import scores  # noqa: E402


def test_every_row_is_a_valid_recipe_and_all_have_the_same_epochs() -> None:
    from atmc.recipe.validation import check_recipe

    options = rows.parse([])
    for name, settings in recipes.SETS.items():
        found = [check_recipe(recipes.recipe_of(name, kind, options)) for kind in recipes.KINDS]
        for length, long in ((settings.epochs, False), (2 * settings.epochs, True)):
            equal = [r for r in found if r.name.endswith(recipes.LONG) == long]
            assert {(r.chains, r.schedule.epochs, r.data.name, r.data.crop_size, r.data.batch_size) for r in equal} == {
                (settings.chains, length, settings.data, settings.crop, settings.batch)
            }
        assert {r.sampler.temperature for r in found if r.name.endswith(("zero", "zero-pp"))} == {0.0}


def test_one_epoch_is_a_valid_recipe_too() -> None:
    from atmc.recipe.validation import check_recipe

    options = rows.parse(["--epochs", "1"])
    for kind in recipes.KINDS:
        check_recipe(recipes.recipe_of("imagenette", kind, options))


def test_another_momentum_moves_the_weights_of_chains_as_far() -> None:
    usual, other = (
        recipes.recipe_of("imagenette", "atmc", rows.parse(words)).sampler for words in ([], ["--momentum", "0.8"])
    )
    assert usual.speed
    assert other.speed
    assert (usual.momentum, other.momentum) == (0.9, 0.8)
    assert other.speed**2 / (1 - 0.8) == pytest.approx(usual.speed**2 / (1 - 0.9))


def test_a_row_is_predicted_to_take_longer_with_more_pixels_epochs_and_batchnorm() -> None:
    def seconds(name: str, kind: str, *words: str) -> float:
        return recipes.predicted(recipes.recipe_of(name, kind, rows.parse([*words])), recipes.SETS[name].train)

    usual = seconds("imagenette", "atmc") - recipes.BESIDES[False]
    assert seconds("imagenette", "atmc", "--crop", "88") - recipes.BESIDES[False] == pytest.approx(usual / 4)
    assert seconds("imagenette", "atmc-long") - recipes.BESIDES[False] == pytest.approx(2 * usual)
    assert seconds("imagenette", "ensemble-bn") > usual + recipes.BESIDES[True]
    assert usual == pytest.approx(4 * 56 * 9_469 / (6_500 * (224 / 176) ** 2))


def test_rows_are_listed_with_their_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    rows.main(["--list", "--rows", "imagewoof-*"])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(recipes.KINDS)
    assert said[0].startswith("imagewoof-atmc ")
    assert said[0].endswith(" s on an H200")


def small_set(folder: Path, seed: int) -> str:
    """Ten classes of 16-pixel images that differ in colour and brightness; two sets of other colours."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(0, 256, (10, 1, 1, 3))
    splits = {}
    for split, count in (("train", 80), ("val", 40)):
        items = []
        for i in range(count):
            pixels = (colours[i % 10] + rng.integers(-40, 40, (16, 16, 3))).clip(0, 255).astype(np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "PNG")
            data = buffer.getvalue()
            items.append(Item(f"{i}.png", i % 10, len(data), lambda data=data: data))  # type: ignore[misc]
        splits[split] = items
    write_shards(folder, splits, [str(c) for c in range(10)], 1.0)
    return f"shards:{folder}/{{split}}-*.tar?size=16&memory=1&classes=10"


def test_small_rows_from_shards_to_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = [f"{name}={small_set(tmp_path / name, seed)}" for seed, name in enumerate(("imagenette", "imagewoof"))]
    words = [
        "--runs",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "out"),
        "--root",
        str(tmp_path),
        "--spare",
        "0.2",
    ]
    words += ["--epochs", "4", "--chains", "2", "--depth", "8", "--width", "4", "--batch", "16", "--crop", "12"]
    words += ["--data", *data, "--rows", "imagenette-atmc", "imagenette-ensemble-bn", "--time-budget"]
    rows.main([*words, "0.3"])  # stopped, and not in the table
    assert not (tmp_path / "out" / "table.json").exists()
    rows.main([*words, "200"])
    table = {row["row"]: row for row in json.loads((tmp_path / "out" / "table.json").read_text())}
    assert set(table) == {"imagenette-atmc", "imagenette-ensemble-bn"}
    sampled, ensemble = table["imagenette-atmc"], table["imagenette-ensemble-bn"]
    assert (sampled["samples"], ensemble["samples"]) == (2, 2)
    assert sampled["epochs"] == ensemble["epochs"] == 8
    for row in table.values():
        assert row["status"] == "done"
        assert 0 <= row["accuracy"] <= row["top5"] <= 1
        assert row["nll"] <= row["single"]["nll"] + 1e-9  # averaging can only help
        assert row["ood"]["set"] == "imagewoof"
        assert str(tmp_path) not in json.dumps(row)
        stored = np.load(tmp_path / "out" / row["probabilities"][0])
        assert stored["probs"].shape == (2, 40, 10)
        again = scores(stored["probs"].astype(float).mean(0), stored["labels"])
        assert again["accuracy"] == pytest.approx(row["accuracy"])
        assert again["nll"] == pytest.approx(row["nll"], abs=1e-3)
    capsys.readouterr()
    rows.main([*words, "200"])
    assert capsys.readouterr().out == ""  # nothing is run again


def test_rows_can_be_scored_on_held_out_training_images(tmp_path: Path) -> None:
    data = [f"{name}={small_set(tmp_path / name, seed)}" for seed, name in enumerate(("imagenette", "imagewoof"))]
    words = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--root", str(tmp_path), "--data", *data]
    words += ["--epochs", "2", "--chains", "1", "--depth", "8", "--width", "4", "--batch", "16", "--crop", "12"]
    rows.main([*words, "--rows", "imagenette-ensemble-bn", "--validation", "30", "--rate", "0.02"])
    (row,) = json.loads((tmp_path / "out" / "table.json").read_text())
    assert row["split"] == "validation"
    assert row["ood"] is None
    stored = np.load(tmp_path / "out" / row["probabilities"][0])
    assert stored["probs"].shape == (1, 30, 10)
    assert "lr = 0.02" in (tmp_path / "out" / row["recipe"]).read_text()


def test_a_set_that_the_scores_need_is_missed_before_the_run_and_not_after_it(tmp_path: Path) -> None:
    data = f"imagenette={small_set(tmp_path / 'imagenette', 0)}"
    words = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--root", str(tmp_path), "--data", data]
    with pytest.raises(InputError, match="run `atmc data get imagewoof --from PATH`"):
        rows.main([*words, "--rows", "imagenette-atmc", "--depth", "8", "--width", "4"])
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("name", "kind", "path"),
    [
        ("imagenette", "atmc", "imagenette/atmc"),
        ("imagenette", "ensemble-bn", "imagenette/ensemble-sgd-batchnorm"),
        ("tiny-imagenet", "atmc", "tiny-imagenet/atmc"),
        ("imagenet-mini", "atmc", "imagenet-mini/atmc"),
    ],
)
def test_the_shipped_recipes_are_the_rows(name: str, kind: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from atmc.recipe import load_recipe
    from atmc.recipe.settings import flat

    monkeypatch.setattr(recipes.torch.cuda, "is_available", lambda: True)
    row, shipped = (
        flat(recipes.recipe_of(name, kind, rows.parse([]))),
        flat(load_recipe(ROOT / "recipes" / f"{path}.toml")),
    )
    for key in set(row) - {"name"}:
        assert shipped[key] == (pytest.approx(row[key], rel=2e-3) if isinstance(row[key], float) else row[key]), key
