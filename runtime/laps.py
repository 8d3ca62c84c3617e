"""How long the parts of something take."""

from __future__ import annotations

import time


class Laps:
    """Seconds by part, from when it was made: each part ends where it is marked."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, part: str) -> None:
        """``part`` ends here. One that is marked twice is added up."""
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
