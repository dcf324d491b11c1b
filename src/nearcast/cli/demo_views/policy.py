"""Act 2, policy: brokers with their load ratios, replicated topics, and what the policy decided."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from nearcast.cli.brokers import load_ratio
from nearcast.cli.demo_views.look import Look, figures, plain_table
from nearcast.cli.shared import printable
from nearcast.core.model.journal import BrokerState
from nearcast.core.model.placement import Mode
from nearcast.core.wire.views import BrokerView
from nearcast.demo.act import Kind
from nearcast.demo.policy import BROKERS_MAX, LR_HIGH, LR_SAFE, PolicyAct
from nearcast.testing.load import WatchedTopic

BAR = 20  # characters of a load ratio of 1
BROKER_COLUMNS = ("broker", "state", "load ratio", "", "out kB/s", "topics")
TOPIC_COLUMNS = ("topic", "mode", "brokers", "msg/s", "subs", "p99 ms")
WIDTHS = {
    "broker": len("rented-1"),
    "state": len("leaving"),
    "load ratio": BAR,
    "": len("1.23"),
    "mode": len("all_subscribers"),
    "brokers": len("> b1+rented-1+rented-2+rented-3"),
}


class PolicyLook(Look):
    """Brokers with their load ratios, replicated topics, and what the policy decided."""

    name = "act 2, policy"
    explanation = (
        f"People come and go. A load ratio above {LR_HIGH:g} is too much for a server: the policy adds",
        "servers and replicates hot topics, and later undoes both. Subscribers must not notice.",
    )
    drawn = frozenset({Kind.KILL, Kind.DECISION, Kind.SERVER})
    printed = drawn | {Kind.SCENE}

    def __init__(self, act: PolicyAct) -> None:
        super().__init__(act)
        self._policy = act

    def clock(self) -> str:
        return f"{self._act.elapsed_s:.0f} s"

    def totals(self) -> str:
        act = self._policy
        return (
            f"messages {act.messages:,}, deliveries {act.deliveries:,}, servers +{act.servers_added} "
            f"-{act.servers_removed}, replicated {act.topics_replicated}, collapsed {act.topics_collapsed}"
        )

    def remarks(self) -> list[Text]:
        explanation = f"Above a load ratio of {LR_HIGH:g} the policy acts. Subscribers must not notice."
        return [Text(explanation, style="dim"), Text(self._policy.scene.title, style="bold")]

    def tables(self, gap: int) -> list[Table]:
        return [self._brokers(gap), self._topics(gap)]

    def lines(self) -> list[str]:
        loads = [f"{printable(name)} {ratio}" for name, view in self._shown() if (ratio := _ratio(view))]
        places = [f"{printable(topic)} {_place(watched)}" for topic, watched in self._act.topics.items()]
        return [f"        load ratios: {', '.join(loads)}", f"        topics: {', '.join(places)}"]

    # --- brokers

    def _shown(self) -> list[tuple[str, BrokerView]]:
        """All brokers, including those that have left."""
        return sorted(self._act.brokers.items())[:BROKERS_MAX]

    def _brokers(self, gap: int) -> Table:
        table = plain_table(BROKER_COLUMNS, gap, left=3, widths=WIDTHS)
        shown = self._shown()
        for name, view in shown:
            left = view.state == BrokerState.LEFT
            report = view.report if not left else None
            load = f"{report.output_bytes_per_s / 1e3:.0f}" if report is not None else ""
            topics = "" if left else str(self._act.carried(name))
            table.add_row(
                printable(name), view.state, _bar(view), _ratio(view), load, topics, style="dim" if left else ""
            )
        for _ in range(BROKERS_MAX - len(shown)):  # room for more brokers, so that nothing below jumps
            table.add_row("")
        return table

    # --- topics

    def _topics(self, gap: int) -> Table:
        table = plain_table(TOPIC_COLUMNS, gap, left=3, widths=WIDTHS)
        for topic, watched in self._act.topics.items():
            per_s, _, p99_ms = figures(self._act, [watched])
            subscribers = str(self._policy.subscribers(topic))
            row = (Text(printable(topic)), _mode(watched), _place(watched), per_s, subscribers, p99_ms)
            table.add_row(*row, style=_topic_style(watched))
        return table


def _bar(view: BrokerView) -> Text:
    ratio = None if view.state == BrokerState.LEFT else load_ratio(view)
    if ratio is None:
        return Text("")
    filled = min(BAR, round(ratio * BAR))
    style = "red" if ratio >= LR_HIGH else "yellow" if ratio >= LR_SAFE else "green"
    return Text.assemble(("█" * filled, style), ("░" * (BAR - filled), "dim"))


def _ratio(view: BrokerView) -> str:
    ratio = load_ratio(view)
    return "" if ratio is None or view.state == BrokerState.LEFT else f"{ratio:.2f}"


def _mode(watched: WatchedTopic) -> str:
    return watched.placement.mode if watched.placement is not None else ""


def _place(watched: WatchedTopic) -> str:
    """Where it is or, while it moves, where it is going."""
    if watched.target is not None:
        return f"> {'+'.join(watched.target.brokers)}"
    return "+".join(watched.placement.brokers) if watched.placement is not None else ""


def _topic_style(watched: WatchedTopic) -> str:
    if watched.target is not None:
        return "yellow"
    return "bold" if watched.placement is not None and watched.placement.mode is not Mode.SINGLE else ""
