"""The demo's whole story, with recipes of the same names that take seconds (a folder `recipes` here comes first)."""

import dataclasses
import json
from pathlib import Path

import pytest
from shell import atmc, fails
from tiny_recipes import RECIPE, SGD


@pytest.fixture
def short(tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "digits-atmc.toml").write_text(RECIPE.replace('"tiny"', '"digits-atmc"'))
    (folder / "digits-sgd.toml").write_text(SGD.replace('"tiny-sgd"', '"digits-sgd"'))


def test_the_demo_tells_its_story_once_and_again(short):
    result = atmc("demo")
    assert result.code == 0, result.err
    for word in ("ATMC (posterior predictive)", "SGD", "letters", "scrambled", "noise", "all but certain", "AUROC"):
        assert word in result.out, word
    assert "stranger" not in result.out
    verdict = json.loads(atmc("doctor", "atmc-demo/atmc", "--json").out)[0]
    (line,) = [line for line in result.out.splitlines() if line.startswith("atmc doctor: ")]
    assert line.startswith(f"atmc doctor: t{verdict['title'][1:]}.")
    assert verdict["level"] in ("warning", "problem"), "so short a run is not well"
    assert verdict["evidence"] in line
    assert line.endswith("More: atmc doctor atmc-demo/atmc")
    page = Path("atmc-demo/report.html")
    assert str(page.resolve()) in result.out
    text = page.read_text()
    assert "digits-atmc" in text
    assert "Out-of-distribution inputs" in text
    assert "Next: atmc predict atmc-demo/atmc atmc-demo/least-sure.png" in result.out
    predicted = json.loads(atmc("predict", "atmc-demo/atmc", "atmc-demo/least-sure.png", "--json").out)["images"][0]
    assert predicted["notes"] == [], "the very pixels of a test image"
    assert predicted["entropy"] > 1
    assert "folder:YOUR_IMAGES" in result.out
    samples = [p.stat().st_mtime_ns for p in sorted(Path("atmc-demo").rglob("samples/*"))]
    again = json.loads(atmc("demo", "--json").out)
    assert samples == [p.stat().st_mtime_ns for p in sorted(Path("atmc-demo").rglob("samples/*"))]
    assert [run["doctor"] for run in again["runs"]] == [verdict["title"], None]
    assert [run["name"] for run in again["runs"]] == ["digits-atmc", "digits-sgd"]
    assert set(again["runs"][0]["ood"]) == {"letters", "scrambled", "noise"}
    _the_verdict_is_what_was_measured(result.out, again["runs"])
    _no_more_is_claimed_than_the_images_show()
    line = fails("demo", "--seed", "5", match="seed")
    assert "atmc-demo holds another demo" in line  # of another version too, whose settings nobody can set
    assert line.endswith("name another folder with --out")
    assert atmc("sample", "atmc-demo/atmc", "--set", "schedule.epochs=6").code == 0  # as the doctor may advise
    assert fails("demo", match="is set to schedule.epochs = 6").endswith("name another folder with --out")


def _the_verdict_is_what_was_measured(told, runs):
    lines = told.splitlines()
    (verdict,) = [line for line in lines if " networks sampled by ATMC against one trained by SGD" in line]
    assert lines.index(verdict) < next(i for i, line in enumerate(lines) if "Acc. %" in line), "the result comes first"
    sampled, trained = (run["predictive"] for run in runs)
    for name in ("nll", "ece"):
        assert f"{name.upper()} {sampled[name]:.3f} against {trained[name]:.3f}" in verdict
    aurocs = [100 * sum(run["ood"].values()) / 3 for run in runs]
    assert f"OOD AUROC {aurocs[0]:.1f} % against {aurocs[1]:.1f} %" in verdict
    (refusal,) = [line for line in lines if "refusing the least certain 10 %" in line]
    errors = [f"instead of {100 * (1 - scores['accuracy']):.1f} %" for scores in (sampled, trained)]
    assert refusal.startswith("ATMC: ")
    assert all(error in refusal.split("; SGD")[i] for i, error in enumerate(errors))


def _no_more_is_claimed_than_the_images_show():
    from atmc.cli.demo import OOD, _verdict
    from atmc.report.collect import gather

    sampled, trained = gather([Path("atmc-demo/atmc"), Path("atmc-demo/sgd")], ood=OOD).runs
    for leads, words in (
        ([0.1, 0.2, 0.3, 0.2], "(better by 0.200 ± 0.035)"),
        ([-0.1, -0.2, -0.3, -0.2], "(worse by 0.200 ± 0.035)"),
        ([0.3, -0.3, 0.2, -0.1], "(within the error, 0.119)"),
    ):
        each = sampled.nll_each[:4]
        one = dataclasses.replace(sampled, nll_each=each)
        assert words in _verdict(one, dataclasses.replace(trained, nll_each=each + leads))


def test_a_file_in_the_way_is_named(short):
    Path("taken").write_text("mine")
    fails("demo", "--out", "taken", match="taken is a file")
    assert Path("taken").read_text() == "mine"


def test_the_recipes_of_the_demo_are_there():
    """Without a folder of one's own, those that ship are found and are what the demo says they are."""
    from atmc.cli.demo import RECIPES
    from atmc.recipe.toml_files import load_recipe

    loaded = {name: load_recipe(source) for name, source in RECIPES}
    assert loaded["atmc"].sampler.name == "atmc"
    assert loaded["sgd"].sampler.name == "sgd"
    assert loaded["atmc"].data == loaded["sgd"].data
    assert loaded["atmc"].data.name == "digits?train=200", "as the demo says"
    assert loaded["atmc"].model == loaded["sgd"].model, "the comparison is of one network"


def test_an_interrupted_demo_names_the_seed_that_goes_on(monkeypatch):
    from atmc.engine.runner import RunResult

    stopped = RunResult.__new__(RunResult)
    object.__setattr__(stopped, "status", "interrupted")
    monkeypatch.setattr("atmc.engine.runner.run", lambda *a, **k: stopped)
    result = atmc("demo", "--seed", "5")
    assert result.code == 130
    assert "Next: atmc demo --out atmc-demo --seed 5" in result.out


def test_what_the_demo_shows_holds_over_seeds():
    """results/demo, measured by benchmarks/demo.py with the recipes that ship."""
    from atmc.recipe.settings import recipe_from_dict
    from atmc.recipe.toml_files import load_recipe

    kept = json.loads((Path(__file__).parents[2] / "results" / "demo" / "table.json").read_text(encoding="utf-8"))
    for row, name in {"ATMC": "digits-atmc", "SGD": "digits-sgd"}.items():
        assert recipe_from_dict(kept["recipes"][row]) == load_recipe(name)  # newer keys have their defaults
    of = {name: [row for row in kept["rows"] if row["row"] == name] for name in kept["recipes"]}
    assert all(len(rows) >= 5 for rows in of.values())
    for sampled, *others in zip(*of.values(), strict=True):
        assert all(sampled["seed"] == other["seed"] for other in others)
        assert all(sampled["auroc"] > other["auroc"] for other in others)
        assert all(sampled["error_at_90"] < other["error_at_90"] for other in others)
        assert all(sampled["ece"] < other["ece"] for other in others)
    assert all(lead["nll"] > 2 * lead["error"] for lead in kept["lead of ATMC"])
