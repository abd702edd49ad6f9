"""`atmc sample`: runs, resumes, stops on time, stops by signal; and every mistake in one line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shell import atmc, fails, fingerprint
from tiny_recipes import RECIPE

LONG = RECIPE.replace("epochs = 4", "epochs = 4000").replace("cycle_epochs = 1\n", "cycle_epochs = 2000\n")


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return "tiny.toml"


def test_a_run_says_where_it_is_and_what_comes_next(recipe):
    result = atmc("sample", recipe, "--set", "schedule.epochs=2", "--set", "run.evaluate=[]")
    assert result.code == 0
    assert "Done: 1 sample in runs/tiny." in result.out
    assert "Next: atmc report runs/tiny" in result.out
    assert (Path("runs/tiny") / "recipe.toml").is_file()
    again = json.loads(atmc("sample", "runs/tiny", "--json").out)
    assert again == {"status": "done", "run": "runs/tiny", "samples": 1}


def test_a_time_budget_stops_with_3_and_the_next_call_goes_on(recipe):
    Path("long.toml").write_text(LONG)
    result = atmc("sample", "long.toml", "--out", "r", "--time-budget", "1")
    assert result.code == 3
    assert "nothing is lost" in result.out
    assert "Next: atmc sample r" in result.out
    steps = reached("r")
    assert steps > 0
    assert atmc("sample", "r", "--time-budget", "1", "--json").code == 3
    assert reached("r") > steps


def reached(run):
    """The step of the newest checkpoint."""
    return json.loads(Path(run, "manifest.json").read_text())["checkpoints"][-1]["step"]


def test_ctrl_c_leaves_a_run_that_goes_on(recipe, tmp_path):
    Path("long.toml").write_text(LONG)
    code = "from atmc.cli.main import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sample", "long.toml", "--out", "r"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    wait_for(Path("r/metrics.jsonl"), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
    assert "Next: atmc sample r" in out
    before = reached("r")
    assert atmc("sample", "r", "--time-budget", "1").code == 3
    assert reached("r") > before


def wait_for(path, process):
    end = time.monotonic() + 60
    while not (path.exists() and path.read_text().count("\n") >= 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the run did not start"
        time.sleep(0.05)


def test_mistakes_are_one_line_that_says_what_to_do(recipe, tiny):
    before = fingerprint(tiny)
    fails("sample", "nothing", match="no recipe nothing; name a TOML file, or one of ")
    assert "digits-atmc" in fails("sample", "nothing")
    fails("sample", recipe, "--set", "sampler.temprature=1", match="temperature")
    fails("sample", recipe, "--set", "sampler.lr=fast", match="sampler.lr")
    fails("sample", recipe, "--set", "nonsense", match="key=value")
    fails("sample", recipe, "--set", "data.batch_size=1250", match="batch_size")
    fails("sample", recipe, "--time-budget", "-1", match="--time-budget")
    fails("sample", recipe, "--time-budget", "nan", match="--time-budget")
    fails("sample", recipe, "--time-budget", "soon", match="atmc sample --help")
    fails("sample", recipe, "--out", tiny, "--set", "seed=5", match="seed")
    fails("sample", ".", match="recipe.toml")
    assert fingerprint(tiny) == before


def test_a_recipe_name_cannot_leave_the_runs_folder(recipe):
    text = RECIPE.replace('name = "tiny"', 'name = "../../outside"').replace("epochs = 4", "epochs = 1")
    Path("evil.toml").write_text(text.replace("burn_in_epochs = 1\n", ""))
    result = atmc("sample", "evil.toml", "--json")
    assert Path(json.loads(result.out)["run"]).parent == Path("runs")
    assert {p.name for p in Path().iterdir()} <= {"runs", "evil.toml", "tiny.toml", "data-root"}


def test_a_second_ctrl_c_says_how_to_go_on(recipe, monkeypatch):
    """The chain itself turns the first into a clean stop; what comes through is the second, or one in its preparations:
    then there is no run yet to resume."""

    def impatient(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("atmc.engine.runner.run", impatient)
    fails("sample", recipe, "--out", "r", code=130, match="stopped before r became a run: the same command begins it")
    Path("r").mkdir()
    Path("r/manifest.json").write_text("{}")
    fails("sample", recipe, "--out", "r", code=130, match="stopped at once; resume from the last checkpoint with")
    fails("demo", "--out", "d", "--seed", "5", code=130, match="with atmc demo --out d --seed 5")


def test_a_run_without_its_recipe_file_goes_on_and_has_it_again(recipe):
    few = ["--set", "schedule.epochs=2", "--set", "run.evaluate=[]"]
    assert atmc("sample", recipe, *few).code == 0
    own = Path("runs/tiny/recipe.toml")
    text = own.read_text()
    own.unlink()
    result = atmc("sample", "runs/tiny")
    assert result.code == 0, result
    assert "Done: 1 sample in runs/tiny." in result.out
    assert own.read_text() == text


def test_an_altered_or_torn_recipe_file_is_named_and_not_run(recipe):
    """It was said that the manifest's copy was used, and the altered file was; a torn one ended in an error."""
    assert atmc("sample", recipe, "--set", "schedule.epochs=2", "--set", "run.evaluate=[]").code == 0
    own = Path("runs/tiny/recipe.toml")
    text = own.read_text()
    for harmed in (text.replace("\nepochs = 2\n", "\nepochs = 3\n"), text[: len(text) // 2]):
        assert harmed != text
        own.write_text(harmed)
        result = atmc("sample", "runs/tiny")
        assert result.code == 0, result
        assert "damaged: runs/tiny/recipe.toml" in result.err
        assert "Done: 1 sample in runs/tiny." in result.out
        assert own.read_text() == text
    own.write_text(text.replace("\nepochs = 2\n", "\nepochs = 3\n"))
    assert "Done: 2 samples" in atmc("sample", own, "--out", "runs/tiny").out  # a file that is named is meant
