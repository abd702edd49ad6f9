"""A newcomer's path: their own folder of images, each step typed as the step before has printed it."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shell import atmc, fails
from tiny_recipes import RECIPE

from atmc.data import load
from atmc.engine.schedule import make_schedule


def pictures_of(folder, count=40):
    """Two kinds of picture, of several sizes: even ones, and ones with a bright frame."""
    rng = np.random.default_rng(0)
    for kind in ("even", "framed"):
        place = folder / kind
        place.mkdir(parents=True)
        for i in range(count):
            size = int(rng.integers(12, 40))
            pixels = rng.integers(0, 80, (size, size, 3), dtype=np.uint8)
            if kind == "framed":
                edge = size // 5
                pixels[:edge] += 150
                pixels[-edge:] += 150
            Image.fromarray(pixels).save(place / f"{i}.{'png' if i % 2 else 'jpg'}")


def next_commands(result):
    lines = re.findall(r"^(?:Next:|     ) atmc (.*)$", result.out, re.M)
    assert lines, result
    return [shlex.split(line) for line in lines]


def test_from_a_folder_of_images_to_a_prediction(tmp_path):
    pictures_of(tmp_path / "my images")
    shorter = [f"schedule.{key}" for key in ("epochs=30", "cycle_epochs=10", "burn_in_epochs=10")]
    typed = [word for change in shorter for word in ("--set", change)]
    result = atmc("sample", "folder:my images?size=8", "--out", "runs/mine", *typed)
    assert result.code == 0, result.err
    assert re.search(r"epoch \d+/\d+ .* left", result.err), "what takes seconds says how many are left"
    said = r"Found (\d+) pictures of 2 classes \(even, framed\): (\d+) to learn from, .* and (\d+) to test on"
    found = re.search(said, result.err)
    total, learned, held = map(int, found.groups())
    assert total == learned + held == len([file for file in Path("my images").rglob("*") if file.is_file()])
    assert held == len(load("folder:my images?size=8", "test"))
    assert re.search(r"Network: ResNet\+\+ of depth 8 and width 8, [\d,]+ parameters: small, so that", result.err)
    (report,) = next_commands(result)
    scores = [atmc("evaluate", "runs/mine", *on) for on in ((), ("--on", "folder:my images"))]
    assert scores[0].out == scores[1].out, "the same pictures, brought to the same size"
    result = atmc(*report)
    assert result.code == 0, result.err
    assert Path("runs/mine/report.html").is_file()
    predict, doctor = next_commands(result)
    assert predict[-1] == "IMAGE.png"
    result = atmc(*predict[:-1], "my images/even/1.png", "my images/framed/3.png")
    assert result.code == 0, result.err
    assert "my images/even/1.png: even" in result.out
    assert "my images/framed/3.png: framed" in result.out
    assert atmc(*doctor).code == 0
    for further in next_commands(result):
        assert atmc(*further).code == 0


def test_settings_for_pictures_follow_their_number(tmp_path):
    from atmc.cli.folder_recipe import recipe_for

    pictures_of(Path('few "quoted"'), 20)
    pictures_of(Path("many"), 200)
    few, many = recipe_for('folder:few "quoted"'), recipe_for("folder:many?size=16", ["schedule.epochs=400", "name=x"])
    whole = Path('few "quoted"').resolve()  # to be found again from any folder
    assert few.data.name == f"folder:{whole}?size=32"
    assert few.name == "few--quoted-"
    counts = [len(load(recipe.data.name)) for recipe in (few, many)]
    rates = [recipe.sampler.speed**2 * count for recipe, count in zip((few, many), counts, strict=True)]
    assert rates[0] == pytest.approx(rates[1], rel=0.01)
    assert few.schedule.warm_start_epochs * counts[0] / few.data.batch_size >= 400
    assert (many.schedule.epochs, many.name) == (400, "x"), "what a person sets goes before what is chosen for them"
    fails("sample", "many", match="for a folder of pictures, folder:many")
    fails("sample", "folder:nowhere", match="no folder")
    assert atmc("sample", "folder:nowhere").err.count("\n") == 1, (
        "what is said of pictures is said where there are some"
    )
    pictures_of(Path("three"), 3)
    fails("sample", "folder:three", match="at least 16")


def test_mistakes_in_settings_are_said_of_what_was_typed(tmp_path):
    """Nobody who names a folder has heard of the recipe behind it, or of the lengths that were chosen for them."""
    from atmc.cli.folder_recipe import recipe_for

    pictures_of(Path("pics"))

    def told(*settings):
        words = [word for setting in settings for word in ("--set", setting)]
        line = fails("sample", "folder:pics", *words)
        assert "digits" not in line
        assert line.startswith("atmc: --set "), line
        return line

    line = told("schedule.epochs=2")
    assert "--set schedule.epochs=2: 2 epochs of" in line
    fewest = int(re.search(r"set schedule.epochs=(\d+) or more", line)[1])
    for epochs in (fewest - 1, 1):
        told(f"schedule.epochs={epochs}")
    for enough in ([f"schedule.epochs={fewest}"], ["schedule.epochs=2", *re.findall(r"--set (\S+_epochs=\d+)", line)]):
        made = make_schedule(recipe_for("folder:pics", enough), len(load("folder:pics?size=32")))
        assert made.sample_after
    line = told("schedule.epochs=20", "schedule.cycle_epochs=2")
    assert line.endswith("or shorten what is not set: --set schedule.burn_in_epochs=5")
    assert "shorten" not in told("schedule.epochs=2", "schedule.cycle_epochs=3")
    told("schedule.burn_in_epochs=9000")
    assert "unknown key sampler.temprature; did you mean sampler.temperature" in told("sampler.temprature=1")
    assert told("sampler.lr=-1").startswith("atmc: --set sampler.lr=-1: sampler.lr = -1")
    assert told("schedule.epochs=many").startswith("atmc: --set schedule.epochs=many: schedule.epochs")
    assert told("nothing").count("--set") == 1


def test_the_tutorial_says_what_is_done_with_a_folder_of_pictures(tmp_path):
    """Its four commands, the first of them shortened, and what it says of the settings."""
    from atmc.cli.folder_recipe import CYCLES, SIDE, recipe_for

    page = (Path(__file__).parents[2] / "docs/tutorials/classify.md").read_text(encoding="utf-8")
    section = page.partition("## A folder of pictures\n")[2].partition("\n## ")[0]
    said = " ".join(section.split())
    pictures_of(Path("pictures"))
    shutil.copy("pictures/even/1.png", "new.jpg")  # what a file is goes by what is in it
    sample, *others = [shlex.split(line)[1:] for line in re.findall(r"^atmc .*$", section, re.M)]
    assert [sample[0], *(words[0] for words in others)] == ["sample", "doctor", "report", "predict"]
    recipe = recipe_for(sample[1])
    assert f"{SIDE} × {SIDE} pixels" in said
    assert recipe.data.name.endswith(f"?size={SIDE}")
    model, plan = recipe.model, recipe.schedule
    assert f"depth {model.depth} and width {model.width}" in said
    assert (model.name, recipe.target.likelihood) == ("resnetpp", "noisy-dirichlet")
    assert (recipe.sampler.temperature, recipe.data.augment) == (1.0, "none")
    count = len(load(recipe.data.name))
    samples = len(make_schedule(recipe, count).sample_after)
    assert f"then {CYCLES} cycles, the first five of them burn-in, so {samples} samples" in said
    assert plan.burn_in_epochs == 5 * plan.cycle_epochs
    plain = re.findall(r"--set (target\.\S+?)`? ", said)
    assert recipe_for(sample[1], plain).target.likelihood == "categorical"
    short = ("schedule.epochs=2", "schedule.cycle_epochs=1", "schedule.burn_in_epochs=0")
    made = atmc(*sample, *(word for change in short for word in ("--set", change)))
    assert made.code == 0, made.err
    for words in others:
        assert atmc(*words).code == 0, words


def test_a_run_that_was_stopped_is_reported_as_such(tmp_path):
    text = RECIPE.replace("epochs = 4\n", "epochs = 4000\n")
    Path("long.toml").write_text(text)
    result = atmc("sample", "long.toml", "--out", "r", "--time-budget", "3")
    assert result.code == 3
    (go_on,) = next_commands(result)
    assert go_on == ["sample", "r"]
    result = atmc("report", "r")
    if result.code == 0:  # on a slow machine three seconds may not be enough for a first sample
        assert "has not finished" in Path("r/report.html").read_text()
    else:
        assert "has no samples yet; resume it with atmc sample r" in result.err


def test_pictures_without_classes_are_explained(tmp_path):
    pictures_of(tmp_path / "pics")
    line = fails("sample", "folder:pics/even", match="has pictures but no sub-folders")
    assert "pics/even/cats/1.jpg" in line
    shutil.rmtree(tmp_path / "pics" / "framed")
    fails("sample", "folder:pics", match="of one class only")
    pictures_of(tmp_path / "my pics")
    said = atmc("sample", "folder:my pics", "--set", "seed=none").err
    assert "'folder:my pics?size=64'" in said, "to be pasted into a shell"
