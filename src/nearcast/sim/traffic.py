"""What a simulated server has read and written, as its INFO tells it."""

from __future__ import annotations

from collections.abc import Callable

_SAMPLE_S = 1.0  # a rate is taken over at least so long; the real server averages 16 samples of 100 ms


class Traffic:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.input_bytes = 0
        self.output_bytes = 0
        self._sampled_s = clock()
        self._sampled_bytes = 0
        self._output_kbps = 0.0

    def output_kbps(self) -> float:
        """KiB a second, despite the name, which is the server's."""
        elapsed_s = self._clock() - self._sampled_s
        if elapsed_s >= _SAMPLE_S:
            self._output_kbps = (self.output_bytes - self._sampled_bytes) / 1024 / elapsed_s
            self._sampled_s += elapsed_s
            self._sampled_bytes = self.output_bytes
        return self._output_kbps
