"""Numbers and their nouns as people write them."""

import math


def plural(count: int, noun: str) -> str:
    """“1 sample”, “2 samples”."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def percent(share: float | None) -> str:
    """A share in percent, kept on one line by a space that does not break."""
    return "–" if share is None else f"{100 * share:.1f}\u202f%"


def duration(seconds: float | None) -> str:
    """Seconds as people say them."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
