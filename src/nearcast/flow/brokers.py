"""The queues of the brokers: how long messages wait, and what is lost when a server cannot keep up.

A server's CPU copies a publication to every subscriber; what it has copied goes out over its bandwidth. Each of the
two holds a backlog, in seconds of work. In one step of length dt

    backlog' = backlog + (rho - 1) dt          between 0 and `backlog_max_s`; what exceeds that is lost
    wait     = mean backlog + lambda E[S^2] / (2 (1 - rho))      (Pollaczek-Khinchine; S: time of a whole fan-out)

rho is the work asked for per second. The second term is the wait behind other publications that happen to come at the
same time; a publisher's messages do not come together with its own, hence the factor 1 - 1 / publishers. CPU and
bandwidth work on one message at the same time, so of their second terms only the longer one counts. Below capacity
waits are short; above it they grow by rho - 1 seconds per second until the server holds all it can. Then it has
failed, and goes on losing messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearcast.flow.demand import FloatArray
from nearcast.flow.settings import FlowSettings
from nearcast.flow.traffic import Work

# Nearer to 1 a queue needs minutes to reach the mean that the formula gives; there the backlog tells the delay.
RHO_MAX = 0.99


@dataclass(frozen=True, slots=True)
class Service:
    """What became of a step's work, per broker."""

    backlog_s: FloatArray  # wait behind the backlog
    crowd_s: FloatArray  # mean wait behind publications that come at the same time
    busy: FloatArray  # probability of such a wait
    sent_share: FloatArray  # messages sent / messages asked for; above 1 while a backlog shrinks
    lost_share: FloatArray

    @property
    def wait_s(self) -> FloatArray:
        return self.backlog_s + self.crowd_s

    def then(self, following: Service) -> Service:
        """This one's output is the following one's input."""
        longer = self.crowd_s >= following.crowd_s
        return Service(
            backlog_s=self.backlog_s + following.backlog_s,
            crowd_s=np.where(longer, self.crowd_s, following.crowd_s),
            busy=np.where(longer, self.busy, following.busy),
            sent_share=self.sent_share * following.sent_share,
            lost_share=self.lost_share + self.sent_share * following.lost_share,
        )


class Queues:
    """In each step first `compute`, then `send`."""

    def __init__(self, settings: FlowSettings) -> None:
        self._settings = settings
        self._cpu_s = np.zeros(0)
        self._egress_s = np.zeros(0)

    def compute(self, work: Work) -> Service:
        """The CPUs' part."""
        self._cpu_s, service = self._served(_grown(self._cpu_s, len(work.cpu)), work.cpu, work.cpu_square, work)
        return service

    def send(self, work: Work, computed: Service, extra_bytes_per_s: FloatArray) -> Service:
        """Both parts. `extra_bytes_per_s`: sent besides deliveries; negative where deliveries are held back."""
        extra = extra_bytes_per_s / self._settings.limit_bytes_per_s
        rho = np.maximum(work.egress * computed.sent_share + extra, 0.0)
        self._egress_s, service = self._served(_grown(self._egress_s, len(rho)), rho, work.egress_square, work)
        return computed.then(service)

    def _served(
        self, before_s: FloatArray, rho: FloatArray, square: FloatArray, work: Work
    ) -> tuple[FloatArray, Service]:
        step_s = self._settings.step_s
        unlimited_s = np.maximum(before_s + (rho - 1) * step_s, 0.0)
        left_s = np.minimum(unlimited_s, self._settings.backlog_max_s)
        asked_s = np.maximum(rho * step_s, 1e-12)
        others = 1 - 1 / np.maximum(work.publishers, 1.0)
        service = Service(
            backlog_s=(before_s + left_s) / 2,
            crowd_s=square * others / (2 * (1 - np.minimum(rho, RHO_MAX))),
            busy=np.minimum(rho, 1.0),
            sent_share=np.where(rho > 0, (before_s + rho * step_s - unlimited_s) / asked_s, 1.0),
            lost_share=(unlimited_s - left_s) / asked_s,
        )
        return left_s, service


def _grown(values: FloatArray, rows: int) -> FloatArray:
    return np.concatenate([values, np.zeros(rows - len(values))])
