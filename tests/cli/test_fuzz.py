"""Thousands of command lines, recipes and damaged runs: never a traceback, never a hang, never a changed run."""

import json
import shutil
import time

import pictures
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from shell import atmc, fingerprint
from tiny_recipes import RECIPE

# Shrinking is for people at a desk; here a failing example is enough, and the budget is seconds.
QUICK = {
    "deadline": None,
    "derandomize": True,
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
BUG = "ATMC_DEBUG=1"  # what the line about an error that nobody foresaw ends with
PATIENCE = 20.0  # seconds; anything longer counts as a hang

# No word here starts real work: there is no recipe's name, no data set that would be fetched, and no `demo`.
VERBS = ["sample", "evaluate", "report", "predict", "doctor", "export", "distill", "data", "nonsense", "", "-", "--"]
OPTIONS = ["--out", "--set", "--time-budget", "--on", "--split", "--device", "--json", "--figures", "--ood", "--top"]
OPTIONS += [
    "--size",
    "--invert",
    "--no-onnx",
    "--epochs",
    "--from",
    "--root",
    "--help",
    "--version",
    "-h",
    "-x",
    "--jsn",
]
WORDS = [
    "list",
    "get",
    "none",
    "run",
    "0",
    "-1",
    "1e999",
    "nan",
    "cpu",
    "cuda:77",
    "folder:",
    "shards:",
    "synthetic:0x0",
]
WORDS += ["a=b", "sampler.lr=0", "=", ".", "..", "/dev/null", "/nonexistent/x", "é\u200b", "\udc80", "a\0b", "x" * 5000]
anything = st.one_of(st.sampled_from(VERBS + OPTIONS + WORDS), st.text(max_size=20))


def timed(*arguments):
    began = time.monotonic()
    result = atmc(*arguments)
    assert time.monotonic() - began < PATIENCE, arguments
    return result


@settings(max_examples=1200, **QUICK)
@given(verb=st.sampled_from(VERBS), rest=st.lists(anything, max_size=6))
@example(verb="predict", rest=["{\x88È", "a\0b"])
def test_command_lines(tmp_path, verb, rest):
    before = fingerprint(tmp_path)
    result = timed(verb, *rest)
    assert result.code != 3
    assert BUG not in result.err, (verb, rest)
    assert fingerprint(tmp_path) == before, "a command line that made no sense must leave nothing behind"


LINES = RECIPE.strip().splitlines()
junk = st.one_of(
    st.sampled_from(["true", "-1", "0", "1e400", "nan", '""', "[]", "{}", '"x"', "1979-05-27", "9" * 400, "'''", "[["]),
    st.text(max_size=12),
)


@st.composite
def recipes(draw):
    """A good recipe with some of its lines dropped, doubled, re-valued or replaced by anything."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["drop", "double", "value", "key", "text"]))
        if kind == "drop":
            lines.pop(place)
        elif kind == "double":
            lines.insert(place, lines[draw(st.integers(0, len(lines) - 1))])
        elif kind == "value":
            lines[place] = f"{lines[place].partition('=')[0]}= {draw(junk)}"
        elif kind == "key":
            lines[place] = f"{draw(st.text(max_size=10))} = {lines[place].partition('=')[2]}"
        else:
            lines[place] = draw(st.text(max_size=30))
        lines = lines or [""]
    return "\n".join(lines)


@settings(max_examples=500, **QUICK)
@given(text=recipes(), override=st.one_of(st.none(), st.tuples(st.text(max_size=12), junk)))
def test_recipes(tmp_path, text, override):
    """The run directory is a file, so that a recipe that survives does not start a run."""
    path, blocked = tmp_path / "fuzzed.toml", tmp_path / "blocked"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    blocked.write_text("in the way")
    extra = () if override is None else ("--set", f"{override[0]}={override[1]}")
    result = timed("sample", path, "--out", blocked, *extra)
    assert result.code in (1, 2), result
    assert BUG not in result.err, (text, override, result)
    assert result.err.count("\n") == 1, result
    assert blocked.read_text() == "in the way"


@settings(max_examples=200, **QUICK)
@given(content=st.binary(max_size=200))
def test_bytes_as_recipes(tmp_path, content):
    path, blocked = tmp_path / "fuzzed.toml", tmp_path / "blocked"
    path.write_bytes(content)
    blocked.write_text("in the way")
    assert timed("sample", path, "--out", blocked).code in (1, 2)


@pytest.fixture(scope="module")
def victim(runs, tmp_path_factory):
    """A copy of a run that may be damaged, and the whole one to mend it from."""
    folder = tmp_path_factory.mktemp("victim") / "run"
    shutil.copytree(runs[0], folder)
    return folder, runs[0]


def damage(path, kind, where, value):
    content = bytearray(path.read_bytes())
    if kind == "delete":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(content[: where % (len(content) + 1)])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "grow":
        path.write_bytes(bytes(content) + bytes([value]) * 100)
    elif content:
        content[where % len(content)] ^= value or 1
        path.write_bytes(content)


@settings(max_examples=150, **QUICK)
@given(
    which=st.integers(0, 1000),
    kind=st.sampled_from(["flip", "flip", "flip", "cut", "delete", "empty", "grow"]),
    where=st.integers(0, 1 << 20),
    value=st.integers(0, 255),
    verb=st.sampled_from(["evaluate", "doctor", "predict", "predict", "evaluate"]),
)
def test_damaged_runs(victim, tmp_path, which, kind, where, value, verb):
    folder, whole = victim
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    target = files[which % len(files)]
    (tmp_path / "x.png").write_bytes(pictures.good()["grey.png"])
    damage(folder / target, kind, where, value)
    before = fingerprint(folder)
    try:
        result = timed(verb, folder, *(["x.png"] if verb == "predict" else []), "--json")
        assert BUG not in result.err, (target, kind, result.err)
        assert result.code in (0, 1, 2)
        assert fingerprint(folder) == before, "looking at a damaged run must not change it"
        if result.code:
            assert result.err.count("atmc: ") == 1, result
    finally:
        shutil.copy2(whole / target, folder / target)


@pytest.mark.parametrize("kind", ["flip", "cut", "delete"])
def test_damage_to_a_sample_is_noticed_and_named(victim, tmp_path, kind):
    folder, whole = victim
    sample = next(p.relative_to(whole) for p in sorted(whole.glob("samples/*")))
    (tmp_path / "x.png").write_bytes(pictures.good()["grey.png"])
    damage(folder / sample, kind, 900, 1)
    try:
        result = timed("predict", folder, "x.png")
        assert result.code in (1, 2)
        assert sample.name in result.err
    finally:
        shutil.copy2(whole / sample, folder / sample)


@settings(max_examples=100, **QUICK)
@given(
    values=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    ),
    key=st.sampled_from(["samples", "files", "data", "format", "sessions", "checkpoints", "versions", "status"]),
    verb=st.sampled_from(["evaluate", "doctor"]),
)
def test_manifests_that_are_whole_but_wrong(victim, values, key, verb):
    """A manifest with a right checksum and wrong values: somebody's own tool, or somebody's malice."""
    from atmc.storage.manifest import _checksum

    folder, whole = victim
    listed = json.loads((whole / "manifest.json").read_text())
    try:
        listed[key] = values
        listed["checksum"] = _checksum({k: v for k, v in listed.items() if k != "checksum"})
        for name in ("manifest.json", "manifest.copy.json"):
            (folder / name).write_text(json.dumps(listed))
        result = timed(verb, folder, "--json")
        assert result.code in (0, 1, 2)
        assert BUG not in result.err, (key, values, result.err)
    finally:
        for name in ("manifest.json", "manifest.copy.json"):
            shutil.copy2(whole / name, folder / name)
