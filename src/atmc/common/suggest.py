"""What a person may have meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def close_matches(word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """At most `count` of the known names that are like `word`, in any case, most alike first; the same one alone."""
    spelt = {name.lower(): name for name in reversed(list(known))}
    if word.lower() in spelt:
        return [spelt[word.lower()]]
    found = difflib.get_close_matches(word.lower(), list(spelt), n=count, cutoff=cutoff)
    return [spelt[name] for name in found]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like `word`, if any is like it at all."""
    return next(iter(close_matches(word, known)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """How a line about an unknown `word` ends: with the name most like it, or with all there are."""
    known = list(known)
    near = nearest(word, known)
    return f"did you mean {near}?" if near else f"there are {', '.join(known) or 'none'}"
