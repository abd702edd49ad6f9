"""Values and files far beyond what anybody needs: one line, at once, and nothing left behind."""

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from shell import atmc, fails, fingerprint
from tiny_recipes import RECIPE

from atmc.storage.manifest import Manifest


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("run.threads=1000000", "must be from 1 to 256"),
        ("sampler.lr=1e300", "sampler.lr = 1e+300 is beyond"),
        ("sampler.max_speed=1e-300", "sampler.max_speed = 1e-300 is beyond"),
        ("model.depth=1000000", "must be from 1 to 2000"),
        ("model.width=10000000", "must be from 1 to 100,000"),
        ("chains=100000000", "must be from 1 to 10,000"),
        ("schedule.epochs=1000000000", "must be from 1 to 10,000,000"),
        ("data.workers=100000", "must be from 0 to 1024"),
        ("run.log_steps=1000000000000", "must be from 0 to 10,000,000"),
        ("run.worst_sample=0.5", "must be at least 1"),
        ("model.options=" + "{a=" * 3000 + "1" + "}" * 3000, "nested too deeply"),
        ("model.options.x=" + "[" * 900 + "]" * 900, "nested too deeply"),
    ],
)
def test_settings_that_no_machine_can_run(setting, said):
    Path("tiny.toml").write_text(RECIPE)
    began = time.monotonic()
    fails("sample", "tiny.toml", "--out", "run", "--set", setting, match=said)
    assert time.monotonic() - began < 10
    assert not Path("run").exists()


def test_a_run_of_more_steps_than_a_schedule_can_hold():
    Path("tiny.toml").write_text(RECIPE.replace("batch_size = 100", "batch_size = 1"))
    fails("sample", "tiny.toml", "--out", "run", "--set", "schedule.epochs=1000000", match="steps of 1 examples each")
    assert not Path("run").exists()


def test_infinity_keeps_all_samples():
    Path("tiny.toml").write_text(RECIPE)
    settings = ("--set", "run.worst_sample=inf", "--set", "schedule.epochs=2")
    assert atmc("sample", "tiny.toml", "--out", "run", *settings).code == 0
    assert atmc("sample", "run").code == 0  # as recipe.toml has it


def test_files_nested_without_end(tiny):
    Path("deep.toml").write_text("x = " + "[" * 5000 + "]" * 5000)
    fails("sample", "deep.toml", match="nested too deeply")
    shutil.copytree(tiny, "run")
    for name in ("manifest.json", "manifest.copy.json"):
        Path("run", name).write_text("[" * 100_000)
    fails("evaluate", "run", code=1, match="is not JSON")
    Path("saved").mkdir()
    Path("saved/posterior.json").write_text('{"a":' * 100_000)
    fails("predict", "saved", "x.png", match="posterior.json cannot be read")
    shutil.rmtree("run")
    shutil.copytree(tiny, "run")
    with Path("run/metrics.jsonl").open("a") as log:
        log.write("[" * 100_000 + "\n")
    assert atmc("doctor", "run").code == 0
    manifest = Manifest.load(Path("run"))
    manifest.values["recipe"] = "x = " + "[" * 5000 + "]" * 5000
    manifest.commit()
    fails("evaluate", "run", code=1, match="holds no recipe")


def test_a_backslash_in_the_name_of_a_run(tiny):
    shutil.copytree(tiny, "a\\q\\1")
    result = atmc("report", "a\\q\\1", "--out", "page.html")
    assert result.code == 0, result
    text = Path("tiny.toml")
    text.write_text(RECIPE.replace('"tiny"', "'b\\q\\g<0>'"))
    assert atmc("sample", "tiny.toml", "--out", "run", "--set", "schedule.epochs=2").code == 0
    result = atmc("report", "run", "a\\q\\1", "--out", "both.html")
    assert result.code == 0, result
    assert "viewBox" in Path("both.html").read_text()


def shard(name: str, entries: dict[str, bytes]) -> None:
    with tarfile.open(name, "w") as archive:
        for key, content in entries.items():
            member = tarfile.TarInfo(key)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_shards_that_are_no_shards():
    Path("tiny.toml").write_text(RECIPE)

    def said(pattern: str, match: str) -> None:
        began = time.monotonic()
        fails("sample", "tiny.toml", "--out", "run", "--set", f"data.name=shards:{pattern}", match=match)
        assert time.monotonic() - began < 10
        assert not Path("run").exists()

    said("x-{0..999999999}.tar", "names 1,000,000,000 files")
    said("x-{0..9999}-{0..9999}.tar", "names 100,000,000 files")
    shard("label.tar", {"0.png": b"x", "0.cls": b"1000000000000"})
    said("label.tar", "holds the label 1000000000000")
    shard("deep.tar", {"0.png": b"x", "0.json": b"[" * 100_000})
    said("deep.tar", "holds no label")
    for suffix in ("png", "cls"):
        member = tarfile.TarInfo(f"0.{suffix}")
        member.size = 6 << 30
        with Path("hole.tar").open("wb") as stream:
            stream.write(member.tobuf(tarfile.GNU_FORMAT))
            stream.truncate(512 + member.size + 1024)
        said("hole.tar", "claims 6,442,450,944 bytes")


def test_a_fifo_as_a_copy_of_a_data_set():
    os.mkfifo("fifo")
    fails("data", "get", "cifar10", "--from", "fifo", match="fifo is neither a file nor a folder")


def test_a_full_disk_leaves_no_folder_in_the_way(tiny):
    before = fingerprint(tiny)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for words in (("export", "out", "--no-onnx"), ("export", "out"), ("distill", "out", "--epochs", "1")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        try:
            result = atmc(words[0], tiny, *words[1:])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert result.code == 1, result
        assert len([line for line in result.err.splitlines() if line.startswith("atmc: ")]) == 1, result
        assert not Path("out").exists()
    assert atmc("export", tiny, "out", "--no-onnx").code == 0
    assert fingerprint(tiny) == before


def test_ctrl_c_while_the_doctor_works_is_one_line(tiny):
    """Whatever is being said at that moment, the line stands alone, and the exit code is that of Ctrl-C."""
    for wait in (1.6, 2.0):
        # A run that takes as long as the test wants: the examination is held up where it opens the run.
        program = (
            "import time, sys; import atmc.storage.run_directory as r; old = r.RunDir.open.__func__\n"
            "def slow(cls, path): time.sleep(30); return old(cls, path)\n"
            "r.RunDir.open = classmethod(slow); sys.argv = sys.argv[1:]\n"
            "print('ready', flush=True); from atmc.cli.main import main; main()"
        )
        words = [sys.executable, "-c", program, "atmc", "doctor", str(tiny)]
        # Tests that run in the background inherit SIGINT ignored; a person at a terminal does not.
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 130, said
        assert said.splitlines()[-1] == "atmc: stopped by Ctrl-C"


def test_a_run_without_memory_says_so(monkeypatch):
    from atmc.engine import runner

    def too_large(*_, **__):
        raise RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8e12 bytes"
        )

    monkeypatch.setattr(runner, "build_model", too_large)
    Path("tiny.toml").write_text(RECIPE)
    fails("sample", "tiny.toml", "--out", "run", code=1, match="out of memory")
    assert json.dumps(os.listdir()) == '["tiny.toml"]'
