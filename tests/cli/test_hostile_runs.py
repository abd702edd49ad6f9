"""Run directories made to do harm: nothing is written outside, nothing hangs, and nothing is "unexpected".

Links, FIFOs and folders in the place of files, chains in each other's place, manifests that lie about anything with a
right checksum, and nesting without end.
"""

import contextlib
import copy
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from shell import atmc, fingerprint
from tiny_recipes import RECIPE

from atmc.common.errors import InputError, RunError
from atmc.storage.manifest import Manifest

LONGEST = 10  # seconds that a command may take
NETWORK = 'name = "resnetpp"\ndepth = 8\nwidth = 2'
SMALL = RECIPE.replace(NETWORK, 'name = "mlp"\ndepth = 2\nwidth = 8').replace("epochs = 4", "epochs = 3")
SMALL = SMALL.replace("seed = 1", "seed = 1\nchains = 2").replace(
    "[sampler]", '[target]\nprior = "gaussian"\n[sampler]'
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 10**6, 10**18, 2**63, -(2**70), 0.5, -1e300, 1e300, "", "x", "é\u2028", "\udc80"]),
    st.sampled_from(
        ["../outside/file", "/etc/hostname", "samples/../../outside/file", "recipe.toml", ".", "..", "a\0b"]
    ),
    st.sampled_from([[], {}, [[]], [None], {"file": "x"}, {"a": {"b": []}}, [{}], "9" * 50]),
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """A run of one chain and one of two, both halfway."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "small.toml").write_text(SMALL)
    for chains in (1, 2):
        place = folder / str(chains)
        words = ("--out", place, "--set", f"chains={chains}", "--set", "schedule.epochs=2")
        result = atmc("sample", folder / "small.toml", *words)
        assert result.code == 0, result
    return folder


def paths_in(value, here=()):
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*here, key)
        yield from paths_in(item, (*here, key))


def lie(folder, which, value):
    """Put `value` somewhere into a manifest, and make its checksum right."""
    try:
        manifest = Manifest.load(folder)
    except (InputError, RunError):  # it has been harmed before
        return
    places = [place for place in paths_in(manifest.values) if place[0] != "checksum"]
    *way, last = places[which % len(places)]
    inside = manifest.values
    for key in way:
        inside = inside[key]
    inside[last] = copy.deepcopy(value)
    try:
        manifest.commit()
    except (UnicodeError, ValueError, OSError):  # what JSON cannot hold, or where no file can be
        return


def harm(folder, outside, kind, which, value):
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_symlink())
    victim = folder / names[which % len(names)]
    manifests = sorted({p.parent for p in folder.rglob("manifest.json") if p.is_file() and not p.is_symlink()})
    if kind == "lie":
        if manifests:
            lie(manifests[which % len(manifests)], which // 7, value)
    elif kind == "link":
        goal = outside / ("folder" if victim.is_dir() else "file")
        shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
        victim.symlink_to(goal)
    elif kind == "moved":  # the thing itself, outside, with a link in its place
        goal = outside / f"moved-{len(list(outside.iterdir()))}"
        shutil.move(victim, goal)
        victim.symlink_to(goal)
    elif kind == "fifo":
        shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
        os.mkfifo(victim)
    elif kind == "folder" and victim.is_file():
        victim.unlink()
        victim.mkdir()
    elif kind == "deep" and victim.is_file():
        victim.write_text('{"a":' * 50_000)
    elif kind == "left":
        left = folder / f".{victim.name}.tmp"
        left.unlink(missing_ok=True)
        left.symlink_to(outside / "file")
    elif kind == "swap" and (folder / "chains" / "1").is_dir():
        shutil.rmtree(folder / "chains" / "1")
        with contextlib.suppress(OSError):  # what cannot be copied stays away
            shutil.copytree(folder / "chains" / "0", folder / "chains" / "1", symlinks=True)


def too_long(*_):
    raise AssertionError(f"more than {LONGEST} s")


@settings(
    max_examples=70,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    chains=st.sampled_from([1, 2]),
    harms=st.lists(
        st.tuples(
            st.sampled_from(["lie", "lie", "lie", "lie", "link", "moved", "fifo", "folder", "deep", "left", "swap"]),
            st.integers(0, 10_000),
            ODD,
        ),
        min_size=1,
        max_size=2,
    ),
    verb=st.sampled_from(["sample", "sample", "evaluate", "doctor", "export"]),
)
def test_hostile_runs(bases, tmp_path, chains, harms, verb):
    folder, outside, out = tmp_path / "run", tmp_path / "outside", tmp_path / "out"
    for place in (folder, outside, out):
        shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(bases / str(chains), folder)
    (outside / "folder").mkdir(parents=True)
    (outside / "folder" / ".x.tmp").write_text("precious")
    (outside / "folder" / "0000.safetensors").write_text("precious")
    (outside / "file").write_text("precious")
    for kind, which, value in harms:
        harm(folder, outside, kind, which, value)
    before = fingerprint(outside)
    words = {"sample": ("sample", folder, "--set", "schedule.epochs=3"), "export": ("export", folder, out, "--no-onnx")}
    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        result = atmc(*words.get(verb, (verb, folder)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert fingerprint(outside) == before, (harms, "something outside was changed")
    assert "ATMC_DEBUG" not in result.err, (verb, harms, result.err)
    assert not Path(tmp_path, "etc").exists()
    if result.code in (1, 2):
        assert len([line for line in result.err.splitlines() if line.startswith("atmc: ")]) == 1, result


def test_the_bases_are_as_they_should_be(bases):
    """Otherwise the test above would only see runs that are refused for another reason."""
    for chains in (1, 2):
        found = json.loads(atmc("evaluate", bases / str(chains), "--json").out)
        assert found["samples"] == chains
        assert "damaged" not in found
