"""The book of gateways: the newest report of each, and what it says about load.

It is soft state. A gateway is known from its first report on, which is what the paper calls registerbroker, and
forgotten when it has been silent for a while; nothing is written down.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from functools import cached_property

from nearcast.core import bus
from nearcast.core.audience import Audience, mean_rates

RATE_REPORTS = 15  # rates are means over so many: thirty seconds, against instant peaks (BAD, section 6.1.2)


class Gateway:
    """One gateway as its newest report shows it."""

    def __init__(self, report: bus.GatewayReport, heard_s: float, rates: deque[dict[str, float]]) -> None:
        self.report = report
        self.heard_s = heard_s
        self.rates = rates  # of the newest reports, this one included

    @cached_property
    def load(self) -> tuple[int, float, float]:
        """Backend subscriptions, I_j and O_j (equations 1-4), from its own rates. Only made if somebody asks."""
        rates = mean_rates(self.rates)
        counts = Counter(subscription for wanted in self.report.online.values() for subscription in wanted)  # n_jk
        incoming = sum(rates.get(subscription, 0.0) for subscription in counts)
        outgoing = sum(rates.get(subscription, 0.0) * count for subscription, count in counts.items())
        return len(counts), incoming, outgoing

    @property
    def load_bytes_per_s(self) -> float:
        """F_j (equation 5)."""
        _, incoming, outgoing = self.load
        return incoming + outgoing


class Gateways:
    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._known: dict[str, Gateway] = {}  # the one that was heard last is last

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, broker: str) -> bool:
        return broker in self._known

    def __getitem__(self, broker: str) -> Gateway:
        return self._known[broker]

    def names(self) -> list[str]:
        return sorted(self._known)

    def add(self, report: bus.GatewayReport, now_s: float) -> None:
        before = self._known.pop(report.broker, None)
        rates: deque[dict[str, float]] = before.rates if before is not None else deque(maxlen=RATE_REPORTS)
        rates.append(report.rates)
        self._known[report.broker] = Gateway(report, now_s, rates)

    def forget_silent(self, now_s: float) -> list[str]:
        """Forget those that have not been heard for too long."""
        silent = [name for name, one in self._known.items() if now_s - one.heard_s > self._silence_s]
        for name in silent:
            del self._known[name]
        return silent

    def where(self, user: str) -> str | None:
        """The gateway at which a user is online; of two, the one heard last. None if it is offline."""
        for name, one in reversed(self._known.items()):
            if user in one.report.online:
                return name
        return None

    def online_at(self, user: str, broker: str) -> bool:
        return broker in self._known and user in self._known[broker].report.online

    def audience(self, brokers: Iterable[str], *, shuffle: bool = False) -> Audience:
        chosen = {name: self._known[name] for name in sorted(brokers)}
        return Audience(
            {name: one.report.online for name, one in chosen.items()},
            {name: tuple(one.rates) for name, one in chosen.items()},
            shuffle,
        )
