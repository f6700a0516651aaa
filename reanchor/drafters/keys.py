"""A checkpoint's config keys, nested or not, and which of them were used; it knows no meaning of any key."""

from __future__ import annotations

from typing import Any

MISSING = object()


class ConfigKeys:
    """Looks in `nested` first, then at the top; remembers what was asked for."""

    def __init__(self, config: dict[str, Any], nested: str | None = None) -> None:
        inner = config.get(nested) if nested else None
        self.nested: dict[str, Any] = inner if isinstance(inner, dict) else {}
        self.top = {key: value for key, value in config.items() if key != nested}
        self.prefix = f"{nested}."
        self.used: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        value = self.nested.get(name, MISSING)
        if value is MISSING:
            value = self.top.get(name, MISSING)
        return default if value is MISSING or value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if value is None:
            raise ValueError(
                f"the drafter's config has no {name!r}: it is not a DFlash-family drafter, or damaged"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name!r} of the drafter's config must be a whole number, got {value!r}")
        return value

    def unused(self) -> list[str]:
        nested = [self.prefix + key for key in self.nested if key not in self.used]
        return sorted([key for key in self.top if key not in self.used] + nested)
