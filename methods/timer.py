"""Splits a step's wall time by phase without making the device wait."""

import time
from collections import defaultdict

import torch


class StepTimer:
    """`lap(phase)` books the time since the last lap; `read()` returns seconds per phase and starts anew.

    On CUDA a lap records an event on the stream and the host goes on; `read` is called where the host has waited for
    the device anyway (it holds the verified tokens), so it costs no synchronisation of its own.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._device = device
        self._laps: list[tuple[str, object]] = []
        self._start = self._now()

    def _now(self):
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def lap(self, phase: str) -> None:
        self._laps.append((phase, self._now()))

    def read(self) -> dict[str, float]:
        """Seconds booked per phase since the last call."""
        if self._cuda and self._laps:
            self._laps[-1][1].synchronize()
        seconds: dict[str, float] = defaultdict(float)
        for phase, now in self._laps:
            seconds[phase] += self._start.elapsed_time(now) / 1e3 if self._cuda else now - self._start
            self._start = now
        self._laps.clear()
        return seconds


def synchronised_clock(*devices: torch.device) -> float:
    """`time.perf_counter()` once the devices have finished all work given to them."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()
