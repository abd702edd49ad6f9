"""The device's own clock: which step it is, and this step's size and temperature, without a word from the host."""

import torch
from torch import Tensor

from atmc.engine.schedule import Schedule


class DeviceSchedule:
    """Counts steps on the device and looks the schedule up by the count.

    `lr` and `temperature` are 0-dim tensors that a sampler is given once; `tick` refreshes them. They never move, so
    a captured step reads the current values.
    """

    def __init__(self, schedule: Schedule, device: torch.device) -> None:
        self.schedule = schedule
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._lr_table = _beyond(schedule.lr).to(device)
        self._lr = torch.zeros(1, device=device)
        constant = bool((schedule.temperature[schedule.warm_steps :] == schedule.temperature[-1]).all())
        self._temperature_table = None if constant else _beyond(schedule.temperature).to(device)
        self._temperature = schedule.temperature[-1:].to(device).clone()
        self.scale = 1.0

    @property
    def step(self) -> Tensor:
        """The number of the step about to be made: 0-dim, int64, on the device."""
        return self._step[0]

    @property
    def lr(self) -> Tensor:
        return self._lr[0]

    @property
    def temperature(self) -> Tensor:
        return self._temperature[0]

    def look_up(self) -> None:
        """Bring step size and temperature up to this step. One launch each; none for a constant temperature."""
        torch.index_select(self._lr_table, 0, self._step, out=self._lr)
        if self._temperature_table is not None:
            torch.index_select(self._temperature_table, 0, self._step, out=self._temperature)

    def tick(self) -> None:
        """One step is done."""
        self._step.add_(1)

    def set(self, step: int, scale: float) -> None:
        """Go to a step (resume, rollback), with all step sizes multiplied by `scale` from now on."""
        self._step.fill_(step)
        self.scale = scale
        self._lr_table.copy_(_beyond(self.schedule.lr * scale))

    def host_lr(self, step: int) -> float:
        """The size of a step, as the host knows it."""
        return float(self.schedule.lr[min(step, self.schedule.steps - 1)]) * self.scale

    def host_temperature(self, step: int) -> float:
        return float(self.schedule.temperature[min(step, self.schedule.steps - 1)])


def _beyond(table: Tensor) -> Tensor:
    """A table with a few entries to spare: a step that is warmed up at the very end of a run looks past it."""
    return torch.cat([table, table[-1:].expand(8)])
