"""Runs: stop and go on bit for bit, warm starts, several chains, networks with buffers, streamed data."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.common.errors import InputError, RunError
from atmc.engine.progress import PlainProgress, Progress
from atmc.engine.run_data import RunData, load_data
from atmc.engine.runner import run
from atmc.storage.run_directory import RunDir


class StopAt(Progress):
    """Sends this process a signal once a step is reached: what a scheduler does to a job."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def row(self, row: Any, samples: int) -> None:
        if row["step"] >= self.step:
            self.step = 10**9
            os.kill(os.getpid(), self.number)


def test_layout_and_resolved_recipe(tiny: Any, tmp_path: Path) -> None:
    result = run(tiny, tmp_path / "run", progress=None)
    assert (result.status, result.samples) == ("done", 5)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    files = {".lock", "recipe.toml", "manifest.json", "manifest.copy.json", "metrics.jsonl"}
    assert names == files | {"checkpoint", "samples", "predictions", "labels"}
    found = RunDir.open(tmp_path / "run")
    assert found.recipe == tiny
    assert found.status == "done"
    assert found.manifest["data"]["digests"].keys() == {"train", "test"}
    assert len(list((tmp_path / "run" / "checkpoint").iterdir())) == 2
    assert b"pickle" not in b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    events = [row["event"] for row in found.metrics()]
    assert events.count("sample") == 5
    assert events[-1] == "end"
    log = next(row for row in found.metrics() if row["event"] == "log")
    assert {"step", "epoch", "loss", "lr", "temperature", "kinetic_temperature", "thermostat_q50"} <= log.keys()


def test_a_recipe_that_is_not_compiled_here_says_so(tiny: Any, change: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"run\.compile is for CUDA: on a CPU the network runs uncompiled"):
        run(change(tiny, run={"compile": True, "device": "cpu"}), tmp_path / "run", progress=None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_with_a_checkpoint_and_the_run_goes_on_exactly(
    tiny: Any, tmp_path: Path, fingerprint: Any, number: int
) -> None:
    run(tiny, tmp_path / "whole", progress=None)
    first = run(tiny, tmp_path / "parts", progress=StopAt(20, number))
    assert first.status == "interrupted"
    assert 20 <= first.steps < 40
    assert run(tiny, tmp_path / "parts", progress=None).status == "done"
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_time_budgets_add_up_to_the_same_run(tiny: Any, change: Any, tmp_path: Path, fingerprint: Any) -> None:
    recipe = change(
        tiny,
        schedule={"epochs": 40, "cycle_epochs": 10, "warm_start_epochs": 4},
        model={"name": "resnetpp", "depth": 8, "width": 4},
        target={"prior": "resnetpp"},
    )
    run(recipe, tmp_path / "whole", progress=None)
    statuses = []
    while not statuses or statuses[-1] != "done":
        statuses.append(run(recipe, tmp_path / "parts", time_budget=0.5, progress=None).status)
        assert len(statuses) < 60
    assert statuses.count("budget") >= 1
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


def test_a_finished_run_is_left_alone(tiny: Any, tmp_path: Path) -> None:
    run(tiny, tmp_path / "run", progress=None)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*.safetensors")}
    assert run(tiny, tmp_path / "run", progress=None).status == "done"
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*.safetensors")}


def test_another_recipe_in_the_same_folder_is_refused_by_key(tiny: Any, change: Any, tmp_path: Path) -> None:
    run(tiny, tmp_path / "run", progress=None)
    with pytest.raises(InputError, match=r"begun with sampler.lr = 0.01, not 0.02"):
        run(change(tiny, sampler={"lr": 0.02}), tmp_path / "run", progress=None)
    run(change(tiny, run={"checkpoint_minutes": 1.0}), tmp_path / "run", progress=None)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="not empty and not a run"):
        run(tiny, tmp_path / "other", progress=None)


def test_a_cyclic_run_can_be_made_longer(tiny: Any, change: Any, tmp_path: Path, fingerprint: Any) -> None:
    longer = change(tiny, schedule={"epochs": 14})
    run(longer, tmp_path / "long", progress=None)
    run(tiny, tmp_path / "run", progress=None)
    assert run(longer, tmp_path / "run", progress=None).samples == 7
    mine, whole = fingerprint(tmp_path / "run"), fingerprint(tmp_path / "long")
    assert mine["samples"] == whole["samples"]
    cosine = change(tiny, schedule={"kind": "cosine", "cycle_epochs": None})
    run(cosine, tmp_path / "cosine", progress=None)
    with pytest.raises(
        InputError, match=r"set to schedule\.epochs = 10, not 14, .*cyclic or constant schedules can be"
    ):
        run(change(cosine, schedule={"epochs": 14}), tmp_path / "cosine", progress=None)


def test_a_run_that_was_made_longer_is_not_said_to_have_been_begun_so(tiny: Any, change: Any, tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    run(tiny, folder, progress=None)
    run(change(tiny, schedule={"epochs": 14}), folder, progress=None)
    with pytest.raises(InputError) as refused:
        run(tiny, folder, progress=None)
    said = str(refused.value)
    assert "my run is set to schedule.epochs = 14, not 10, which would change what it has done: go on with" in said
    assert f": go on with atmc sample '{folder}', or use another folder for a new run" in said
    assert "begun" not in said
    assert "longer" not in said, "that is not what was asked for"


def test_other_training_data_are_refused_with_what_to_do(tiny: Any, change: Any, tmp_path: Path) -> None:
    run(tiny, tmp_path / "run", time_budget=1e-3, progress=None)
    data = load_data(tiny)
    fewer = RunData(data.train.subset(torch.arange(80), "train"), data.evaluate)
    words = r"other training data .* changed; give the same to go on with it, or use another folder for a new run"
    with pytest.raises(InputError, match=words):
        run(tiny, tmp_path / "run", progress=None, data=fewer)


def test_several_chains_are_independent_and_resume(tiny: Any, change: Any, tmp_path: Path, fingerprint: Any) -> None:
    recipe = change(tiny, chains=3)
    run(recipe, tmp_path / "whole", progress=None)
    assert run(recipe, tmp_path / "parts", progress=StopAt(20)).status == "interrupted"
    run(recipe, tmp_path / "parts", progress=None)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
    found = RunDir.open(tmp_path / "whole")
    assert len(found.bank) == 15
    assert [found.bank.chain_of(i) for i in range(6)] == [0, 1, 2, 0, 1, 2]
    assert len(set(found.bank.hashes())) == 15
    assert found.predictions("test").shape == (15, 30, 3)
    assert {row["chain"] for row in found.metrics()} == {0, 1, 2}
    run(tiny, tmp_path / "one", progress=None)
    alone = [found.bank.hashes()[i] for i in range(15) if found.bank.chain_of(i) == 0]
    assert alone == RunDir.open(tmp_path / "one").bank.hashes()  # chain 0 does not know that it has company


def test_batchnorm_under_sgd_saves_its_statistics(tiny: Any, change: Any, tmp_path: Path) -> None:
    recipe = change(
        tiny,
        model={"name": "resnet", "depth": 8, "width": 4, "norm": "bn"},
        target={"prior": "none"},
        sampler={
            "name": "sgd",
            "lr": 0.05,
            "momentum": 0.9,
            "nesterov": True,
            "mass": None,
            "friction": None,
            "inertia": None,
        },
        schedule={"kind": "step", "cycle_epochs": None, "epochs": 6, "milestones": [3, 5]},
    )
    run(recipe, tmp_path / "run", progress=None)
    found = RunDir.open(tmp_path / "run")
    sample = found.bank[0]
    statistics = [t for name, t in sample.items() if "running_mean" in name]
    assert statistics
    assert any(t.abs().max() > 0.01 for t in statistics)
    assert found.predictions("test")[0].argmax(1).eq(_labels(recipe)).double().mean() > 0.6


def _labels(recipe: Any) -> torch.Tensor:
    from atmc import data

    return data.load(recipe.data.name, "test").labels


def test_warm_start_descends_before_the_sampler_takes_over(tiny: Any, change: Any, tmp_path: Path) -> None:
    recipe = change(tiny, schedule={"warm_start_epochs": 6, "epochs": 2, "cycle_epochs": 2}, run={"log_steps": 5})
    run(recipe, tmp_path / "run", progress=None)
    logs = [row for row in RunDir.open(tmp_path / "run").metrics() if row["event"] == "log"]
    warm = [row for row in logs if row["phase"] == "warm"]
    assert warm[-1]["loss"] < 0.5 * warm[0]["loss"]
    assert "kinetic_temperature" not in warm[0]
    assert logs[-1]["phase"] == "main"
    assert "kinetic_temperature" in logs[-1]


def test_validation_is_held_out_and_evaluated(tiny: Any, change: Any, tmp_path: Path) -> None:
    recipe = change(tiny, data={"validation": 20}, run={"evaluate": ["validation", "test"]})
    run(recipe, tmp_path / "run", progress=None)
    found = RunDir.open(tmp_path / "run")
    assert found.manifest["data"]["examples"] == 70
    assert found.predictions("validation").shape == (5, 20, 3)
    with pytest.raises(InputError, match="no predictions for 'train'"):
        found.predictions("train")


def test_a_split_named_later_is_evaluated_for_all_samples(tiny: Any, change: Any, tmp_path: Path) -> None:
    run(tiny, tmp_path / "run", progress=None)
    run(change(tiny, run={"evaluate": ["test", "train"]}), tmp_path / "run", progress=None)
    found = RunDir.open(tmp_path / "run")
    assert found.predictions("train").shape == (5, 90, 3)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"data": {"batch_size": 91}}, r"data\.batch_size = 91 is larger than the 90"),
        ({"data": {"validation": 90}}, r"data\.validation = 90"),
        ({"model": {"name": "resnetpq"}}, "resnetpp"),
        ({"run": {"device": "cuda:7"}}, r"run\.device"),
    ],
)
def test_what_depends_on_data_or_machine_is_one_line_too(
    tiny: Any, change: Any, tmp_path: Path, sections: Any, words: str
) -> None:
    if "run" in sections and torch.cuda.device_count() > 7:
        pytest.skip("this machine has that device")
    with pytest.raises(InputError, match=words) as caught:
        run(change(tiny, **sections), tmp_path / "run", progress=None)
    assert "\n" not in str(caught.value)


def test_two_processes_on_one_run(tiny: Any, tmp_path: Path) -> None:
    from atmc.storage.lock import RunLock

    run(tiny, tmp_path / "run", progress=None)
    with RunLock(tmp_path / "run"), pytest.raises(RunError, match="in use by process"):
        run(tiny, tmp_path / "run", progress=None)


def test_a_thread_can_run_too(tiny: Any, tmp_path: Path) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(run(tiny, tmp_path / "run", progress=None)))
    thread.start()
    thread.join()
    assert found[0].status == "done"


def test_plain_progress_says_where_it_is(tiny: Any, change: Any, tmp_path: Path) -> None:
    import io

    said = io.StringIO()
    run(change(tiny, chains=2), tmp_path / "run", progress=PlainProgress(said, every=0.0))
    lines = said.getvalue().splitlines()
    assert any("cycle 2/5" in line and "chain 1" in line and "loss" in line and "left" in line for line in lines)
    assert any("sample 5" in line and "averaged" in line for line in lines)


def test_rich_progress_draws(tiny: Any, tmp_path: Path) -> None:
    from atmc.engine.progress import RichProgress

    progress = RichProgress()
    run(tiny, tmp_path / "run", progress=progress)
    assert progress._bars.tasks[0].completed == RunDir.open(tmp_path / "run").metrics()[-1]["step"]


def test_metrics_are_json_lines_for_machines(tiny: Any, tmp_path: Path) -> None:
    run(tiny, tmp_path / "run", progress=None)
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
        assert isinstance(row["step"], int)


def test_tensorboard_draws_every_number_of_a_row(tiny: Any, change: Any, tmp_path: Path) -> None:
    from atmc.engine.tensorboard import curves

    row = {"event": "sample", "step": 3, "chain": 0, "scores": {"test": {"single": {"nll": 0.5}}}, "lr": 0.1, "x": None}
    assert dict(curves(row)) == {"scores/test/single/nll": 0.5, "lr": 0.1}
    recipe = change(tiny, run={"tensorboard": True})
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="pip install tensorboard"):
            run(recipe, tmp_path / "run", progress=None)
    else:
        run(recipe, tmp_path / "run", progress=None)
        assert list((tmp_path / "run" / "tensorboard").rglob("events*"))


def test_streamed_shards_are_run_and_resumed_exactly(tiny: Any, change: Any, tmp_path: Path, fingerprint: Any) -> None:
    import io
    import tarfile

    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for split, shards in (("train", 2), ("test", 1)):
        for shard in range(shards):
            with tarfile.open(tmp_path / f"{split}-{shard:03d}.tar", "w") as tar:
                for k in range(24):
                    pixels = torch.randint(0, 256, (6, 6), generator=generator, dtype=torch.uint8)
                    picture = io.BytesIO()
                    Image.fromarray(pixels.numpy(), "L").save(picture, "PNG")
                    for name, payload in ((f"{k:04d}.png", picture.getvalue()), (f"{k:04d}.cls", str(k % 3).encode())):
                        info = tarfile.TarInfo(name)
                        info.size = len(payload)
                        tar.addfile(info, io.BytesIO(payload))
    name = f"shards:{tmp_path}/{{split}}-*.tar?size=6&channels=1&classes=3"
    recipe = change(
        tiny,
        data={"name": name, "batch_size": 10, "workers": 0, "root": str(tmp_path / "cache")},
        schedule={"epochs": 4, "cycle_epochs": 2},
        run={"log_steps": 3},
    )
    run(recipe, tmp_path / "whole", progress=None)
    assert run(recipe, tmp_path / "parts", progress=StopAt(7)).status == "interrupted"
    run(recipe, tmp_path / "parts", progress=None)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
    assert RunDir.open(tmp_path / "whole").predictions("test").shape == (2, 24, 3)


def test_the_engine_needs_neither_pydantic_nor_rich_nor_typer(tmp_path: Path) -> None:
    """A machine with a GPU often has torch and little else."""
    import subprocess
    import sys

    program = f"""
import sys
for name in ("pydantic", "rich", "typer", "matplotlib", "jinja2", "sklearn", "PIL"):
    sys.modules[name] = None
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from conftest import TINY
from atmc.engine import run
from atmc.storage import RunDir
assert run(TINY, {str(tmp_path / "run")!r}).status == "done"
assert run(TINY, {str(tmp_path / "run")!r}).status == "done"
assert len(RunDir.open({str(tmp_path / "run")!r}).bank) == 5
from atmc.recipe.toml_files import load_recipe
from atmc.common.errors import InputError
try:
    load_recipe("digits-atmc")
except InputError as error:
    print(error)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "recipe files need pydantic: pip install 'atmc[cli]'" in done.stdout
    assert "sample 5" in done.stderr  # plain lines where there is no terminal
