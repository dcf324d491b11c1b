"""Publish/subscribe over ordinary Valkey and Redis servers, placed near the people who use it.

Each name is loaded with its first use: a program that only handles messages does not wait for the client, and the
client of gateways, which needs the extra `gateway`, costs nobody else anything.
"""

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than this file
if TYPE_CHECKING:
    from nearcast.core.client.mailbox import Overflow
    from nearcast.core.client.news import State, StateChange
    from nearcast.core.model.message import Event, Gap, Interrupted, Lost, Message
    from nearcast.core.model.placement import Mode, Placement
    from nearcast.core.model.settings import Limits, Timing
    from nearcast.runtime.client import Client
    from nearcast.runtime.connect import connect
    from nearcast.runtime.reader import Reader
    from nearcast.runtime.subscription import Subscription
    from nearcast.subscriber.client import Subscriber

__all__ = [
    "Client",
    "Event",
    "Gap",
    "Interrupted",
    "Limits",
    "Lost",
    "Message",
    "Mode",
    "Overflow",
    "Placement",
    "Reader",
    "State",
    "StateChange",
    "Subscriber",
    "Subscription",
    "Timing",
    "connect",
]

_HOMES = {
    "nearcast.core.client.mailbox": ("Overflow",),
    "nearcast.core.client.news": ("State", "StateChange"),
    "nearcast.core.model.message": ("Event", "Gap", "Interrupted", "Lost", "Message"),
    "nearcast.core.model.placement": ("Mode", "Placement"),
    "nearcast.core.model.settings": ("Limits", "Timing"),
    "nearcast.runtime.client": ("Client",),
    "nearcast.runtime.connect": ("connect",),
    "nearcast.runtime.reader": ("Reader",),
    "nearcast.runtime.subscription": ("Subscription",),
    "nearcast.subscriber.client": ("Subscriber",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(__import__(home, fromlist=[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
