"""The grammar of a data set's name: `family:rest?key=value&key=value`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from atmc.common.errors import InputError
from atmc.common.suggest import did_you_mean

FAMILIES = {
    "digits": ("train",),
    "folder": ("size", "channels", "crop", "stream", "cache"),
    "shards": ("size", "channels", "crop", "classes", "window", "memory", "cache"),
    "synthetic": ("classes", "train", "test", "seed"),
    **dict.fromkeys(("imagenette", "imagewoof", "tiny-imagenet"), ("size", "stream", "cache")),
}
# A glob may hold question marks: options begin at one that is followed by a word and an equals sign.
_GRAMMAR = re.compile(r"(?P<family>[a-z]+(?:-[a-z]+)*)(?::(?P<rest>.*?))?(?:\?(?P<options>\w+=[^?]*))?", re.DOTALL)


@dataclass(frozen=True)
class Name:
    """A parsed name with checked options."""

    full: str
    family: str
    rest: str
    options: dict[str, str]

    @classmethod
    def parse(cls, name: str) -> Name | None:
        """The parts of `name`, or None if it belongs to no family."""
        match = _GRAMMAR.fullmatch(name)
        if match is None or match["family"] not in FAMILIES:
            return None
        options = {}
        for pair in (match["options"] or "").split("&"):
            key, _, value = pair.partition("=")
            if not pair:
                continue
            known = FAMILIES[match["family"]]
            if key not in known:
                raise InputError(f"{name}: unknown option {key!r}; {did_you_mean(key, known)}")
            options[key] = value
        return cls(name, match["family"], match["rest"] or "", options)

    def whole(self, key: str, default: int) -> int:
        """An option that is a whole number, not negative."""
        value = self.options.get(key)
        if value is None:
            return default
        if not value.isdecimal():
            raise InputError(f"{self.full}: {key} = {value!r} is no whole number")
        return int(value)

    def real(self, key: str, default: float) -> float:
        """An option that is a number."""
        try:
            return float(self.options.get(key, default))
        except ValueError:
            raise InputError(f"{self.full}: {key} = {self.options[key]!r} is no number") from None

    def sizes(self, text: str, what: str) -> tuple[int, ...]:
        """Sizes such as 64 or 3x32x32."""
        parts = text.split("x")
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise InputError(f"{self.full}: {what} {text!r} is no size such as 64 or 3x32x32")
        return tuple(int(part) for part in parts)
