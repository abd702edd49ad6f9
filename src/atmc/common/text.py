"""Small pieces of text that several messages share."""


def plural(count: int, noun: str) -> str:
    """“1 sample”, “2 samples”."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
