"""Remove local paths from the texts of a report, since pages are made to be shared."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atmc.report.report_data import OodScores, RunFacts, is_path, titled


def short_paths(paths: Sequence[Path]) -> list[str]:
    """Paths as typed; absolute ones by their last part, or by as much as tells them apart."""
    whole = {path for path in paths if path.is_absolute()}
    shared = ""
    if len({path.name for path in whole}) < len(whole):
        shared = os.path.commonpath([path.parent for path in whole])
    shorter = {path: str(path.relative_to(shared)) if shared else path.name or "/" for path in whole}
    return [shorter.get(path, str(path)) for path in paths]


class Hidden:
    """Replaces in texts the paths of runs and data, the working directory and the home directory."""

    def __init__(self, runs: Sequence[Path], data: Iterable[str]) -> None:
        named = [Path(name.partition(":")[2].partition("?")[0]) for name in data if is_path(name)]
        said = {str(path): path.name for path in named if path.is_absolute()}
        said |= {str(path): short for path, short in zip(runs, short_paths(runs), strict=True) if path.is_absolute()}
        for folder, short in ((Path.home(), "~/"), (Path.cwd(), "")):
            if folder != Path(folder.anchor):
                said[f"{folder}/"] = short
        longest = sorted(said, key=len, reverse=True)
        self._said = {form: said[path] for path in longest for form in _forms(path)}
        self._pattern = re.compile(rf"(?<![\w./~-])(?:{'|'.join(map(re.escape, self._said))})") if said else None

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._said[found[0]], text) if self._pattern is not None else text

    def texts(self, run: Any) -> dict[str, Any]:
        """The texts of a run of any kind, without paths."""
        return {
            "recipe": self.text(run.recipe),
            "notes": tuple(map(self.text, run.notes)),
            "facts": {key: self.text(value) for key, value in run.facts.items()},
            "findings": tuple(
                replace(f, title=self.text(f.title), evidence=self.text(f.evidence), action=self.text(f.action))
                for f in run.findings
            ),
        }

    def run(self, run: RunFacts) -> RunFacts:
        """A run without paths in its texts. `data` keeps its name, by which runs are compared."""
        return replace(run, **self.texts(run), path=self.text(run.path), ood=tuple(map(self._ood, run.ood)))

    def _ood(self, seen: OodScores) -> OodScores:
        short = titled(seen.name)
        return replace(seen, name=short, about=self.text(seen.about.replace(seen.name, short)))


def _forms(path: str) -> tuple[str, ...]:
    """A path as written in a sentence, in TOML and in shell quotes."""
    return path, json.dumps(path, ensure_ascii=False)[1:-1], path.replace("'", "'\"'\"'")
