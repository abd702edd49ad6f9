"""Pages are made to be shared: what they say of files is their names, and not where on somebody's disk they lie."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from atmc.report.report_data import RunFacts, Strangers, is_place, titled


def short_paths(paths: Sequence[Path]) -> list[str]:
    """Paths as they were typed, but whole ones by their last part; by more, if it takes more to tell them apart."""
    whole = {path for path in paths if path.is_absolute()}
    shared = ""
    if len({path.name for path in whole}) < len(whole):
        shared = os.path.commonpath([path.parent for path in whole])
    shorter = {path: str(path.relative_to(shared)) if shared else path.name or "/" for path in whole}
    return [shorter.get(path, str(path)) for path in paths]


class Hidden:
    """Takes places out of texts: where runs and data lie, where one stands, and a person's own folder."""

    def __init__(self, runs: Sequence[Path], data: Iterable[str]) -> None:
        named = [Path(name.partition(":")[2].partition("?")[0]) for name in data if is_place(name)]
        said = {str(path): path.name for path in named if path.is_absolute()}
        said |= {str(path): short for path, short in zip(runs, short_paths(runs), strict=True) if path.is_absolute()}
        for folder, short in ((Path.home(), "~/"), (Path.cwd(), "")):
            if folder != Path(folder.anchor):
                said[f"{folder}/"] = short
        longest = sorted(said, key=len, reverse=True)
        self._said = {form: said[place] for place in longest for form in _forms(place)}
        self._pattern = re.compile(rf"(?<![\w./~-])(?:{'|'.join(map(re.escape, self._said))})") if said else None

    def text(self, text: str) -> str:
        """`text` without them."""
        return self._pattern.sub(lambda found: self._said[found[0]], text) if self._pattern is not None else text

    def run(self, run: RunFacts) -> RunFacts:
        """A run's texts without them. Its data keep their name, by which runs are compared, and have a title."""
        return replace(
            run,
            recipe=self.text(run.recipe),
            notes=tuple(map(self.text, run.notes)),
            facts={key: self.text(value) for key, value in run.facts.items()},
            findings=tuple(
                replace(f, title=self.text(f.title), evidence=self.text(f.evidence), action=self.text(f.action))
                for f in run.findings
            ),
            strangers=tuple(map(self._stranger, run.strangers)),
        )

    def _stranger(self, seen: Strangers) -> Strangers:
        short = titled(seen.name)
        return replace(seen, name=short, about=self.text(seen.about.replace(seen.name, short)))


def _forms(place: str) -> tuple[str, ...]:
    """A path as it stands in a sentence, in TOML and in a shell's quotes."""
    return place, json.dumps(place, ensure_ascii=False)[1:-1], place.replace("'", "'\"'\"'")
