"""Topic names, and the names nearcast itself uses on brokers' servers and on the store's server.

Everything of ours lives under one reserved prefix, so a server can be shared with other programs, and a pattern
subscriber can hide what is not its own. PROTOCOL "Names on a server" lists the channels and says what each is for;
`nc:m`, `nc:p`, `nc:s` and `nc:ready` are added here for membership, pattern subscribers, client counters and the ready
key.

On the store's server there are the channels of the bus, the controllers' journal, gateways and their users.
"""

from __future__ import annotations

import re

from nearcast.errors import InvalidTopic

RESERVED = b"nc:"

CONTROL = b"nc:c:"  # + topic: records, fences and repair requests of a topic
READINESS = b"nc:y:"  # + topic + ":" + epoch: subscribers that hold the next placement
INBOX = b"nc:i:"  # + client id: repairs for one client
MEMBERS = b"nc:m"  # channel and hash: the cluster's membership
PATTERNS = b"nc:p"  # held by every client with a pattern subscription on this server; see also `pattern_readiness`
COUNTERS = b"nc:s"  # clients' per-second counters, read by the agent
MEASURING = b"nc:x:"  # + a random name: messages of one calibration
RECORDS = b"nc:r"  # hash: topic -> record; only agents write it
FIRST_USES = b"nc:first"  # hash: topic -> version of the membership at its first use; clients write it
READY_KEY = b"nc:ready"  # broker and run id of the server whose records are complete
GRANTS = b"nc:b"  # published there: a beat was granted. Held by clients that have no proof of the lease yet
WANTED = b"nc:w"  # published there: a client is waiting for a grant; the agent listens
LOGS = b"nc:l:"  # + log + ":" + life: stream, what one life of a broker keeps of one log
NUMBERS = b"nc:n:"  # + life: hash: topic and publisher -> the last number kept
OLDER_NUMBERS = b"nc:o:"  # + life: the same, of publishers that were silent for a while
TOTALS = b"nc:t:"  # + life: hash: stream -> the messages ever kept in it, and the bytes
CURSORS = b"nc:j:"  # + log + ":" + life: hash: group -> how far it has read this part
REPORT_STREAM = b"nc:reports"  # stream: the agent's reports, for telemetry
CLAIM_KEY = b"nc:agent"  # hash: which agent works on this server, its beats, and which of them was granted
SEAL_KEY = b"nc:sealed"  # on a replica: the life that it had followed, and of which it keeps the parts


TOPIC_BYTES_MAX = 512  # a topic name is repeated in every frame's RESP prefix; longer ones are not worth their cost


def encode_topic(topic: str | bytes) -> bytes:
    """The topic's name as bytes, or `InvalidTopic` saying what is wrong with it."""
    if not isinstance(topic, (str, bytes)):
        raise InvalidTopic(f"a topic name must be str or bytes, not {type(topic).__name__}")
    name = topic.encode("utf-8", "surrogateescape") if isinstance(topic, str) else topic
    if not name:
        raise InvalidTopic("a topic name must not be empty: give it at least one character")
    if len(name) > TOPIC_BYTES_MAX:
        raise InvalidTopic(f"topic name of {len(name)} bytes: use at most {TOPIC_BYTES_MAX}")
    if not _is_utf8(name):
        raise InvalidTopic(f"topic name {name!r} is not UTF-8: encode it, for example in base64")
    if name.startswith(RESERVED):
        raise InvalidTopic(f"topic {decode_topic(name)!r}: the prefix 'nc:' is reserved, choose another name")
    return name


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_topic(name: bytes) -> bool:
    """Whether one of our clients may have used this as a topic name."""
    return 0 < len(name) <= TOPIC_BYTES_MAX and _is_utf8(name) and not name.startswith(RESERVED)


def decode_topic(name: bytes) -> str:
    """The inverse of `encode_topic`; also for names of foreign programs, which need not be UTF-8."""
    return name.decode("utf-8", "surrogateescape")


_USER_NAME = re.compile(r"[^\s:\x00-\x1f\x7f]{1,128}")  # it is part of keys in the store


def user_problem(user: str) -> str:
    """What is wrong with a user's name, in words for the person who chose it; empty if nothing is."""
    if _USER_NAME.fullmatch(user):
        return ""
    return f"bad user name {user[:40]!r}: use 1 to 128 characters without spaces and colons"


def readiness_channel(topic: bytes, epoch: int) -> bytes:
    return b"%b%b:%d" % (READINESS, topic, epoch)


def pattern_readiness(joined: int) -> bytes:
    """Held by clients whose pattern subscriptions are attached to the broker that joined with this membership."""
    return b"%b:%d" % (PATTERNS, joined)


def claim_channel(holder: str) -> bytes:
    """Held by the agent that has, or asks for, the claim on this server."""
    return b"%b:%b" % (CLAIM_KEY, holder.encode())


def inbox_channel(client: int) -> bytes:
    return b"%b%016x" % (INBOX, client)


# --- on the store's server


# Channels of the bus.
AGENT_CHANNEL = b"nc:a:"  # + broker + ":" + agent
GATEWAY_CHANNEL = b"nc:g:"  # + broker
CONTROLLER_CHANNEL = b"nc:k"
PROVIDER_CHANNEL = b"nc:rent"
ANSWER_CHANNEL = b"nc:q:"  # + the asker


def agent_channel(broker: str, agent: int) -> bytes:
    """To one agent, and not to another that uses the same broker name."""
    return b"%b%b:%016x" % (AGENT_CHANNEL, broker.encode(), agent)


# The controllers' journal.
ENTRIES_KEY = "nc:store"
VERSION_KEY = "nc:store:version"
LEADER_KEY = "nc:store:leader"
TERM_KEY = "nc:store:term"

# Gateways and their users, and the data cluster they ask.
GATEWAYS_KEY = b"nc:gateways"
USER_KEY = "nc:u:"  # + user
HOLDERS_KEY = "nc:f:"  # + broker: users with subscriptions there
KEYS_KEY = "nc:keys"  # keys that sign tokens
HOURS_KEY = "nc:hours"  # the count of hours, by which users are forgotten
DATA_KEY = "nc:data"  # where the data cluster answers
