"""The simulated server's commands about the connection and the server itself: HELLO, AUTH, CLIENT, PING, ..."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.sim.valkey.replies import (
    OK,
    SYNTAX,
    CommandError,
    bulk,
    bulk_or_null,
    integer,
    mapping,
    parse_integer,
    verbatim,
)

if TYPE_CHECKING:
    from nearcast.sim.valkey.server import Session, SimServer


VERSION = "9.1.2"  # the server the conformance test was written against

_WRONG_PASSWORD = "WRONGPASS invalid username-password pair or user is disabled."
_NO_PASSWORD = (
    "ERR AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?"
)
_HELLO_FIRST = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> "
    "option can be used to authenticate the client and select the RESP protocol version at the same time"
)


def hello(session: Session, arguments: list[bytes]) -> bytes:
    """HELLO [3 [AUTH user password] [SETNAME name]]: all of it takes effect, or nothing."""
    if arguments:
        _check_protocol(arguments[0])
    credentials, name = _hello_options(arguments[1:])
    if credentials is not None:
        _authenticate(session, *credentials)
    if not session.authenticated:
        raise CommandError(_HELLO_FIRST)
    if name is not None:
        session.name = name
    session.resp3 = session.resp3 or bool(arguments)
    return _greeting(session)


def _check_protocol(version: bytes) -> None:
    try:
        number = parse_integer(version)
    except CommandError:
        raise CommandError("ERR Protocol version is not an integer or out of range") from None
    if number != 3:
        raise CommandError("NOPROTO unsupported protocol version")


def _hello_options(options: list[bytes]) -> tuple[tuple[bytes, bytes] | None, str | None]:
    credentials, name = None, None
    at = 0
    while at < len(options):
        kind, values = options[at].upper(), options[at + 1 :]
        if kind == b"AUTH" and len(values) >= 2:
            credentials = values[0], values[1]
            at += 3
        elif kind == b"SETNAME" and values:
            name = _checked_name(values[0])
            at += 2
        else:
            text = options[at].decode("utf-8", "surrogateescape")
            raise CommandError(f"ERR Syntax error in HELLO option '{text}'")
    return credentials, name


def _greeting(session: Session) -> bytes:
    fields = (
        (b"server", bulk(b"valkey")),
        (b"version", bulk(VERSION.encode())),
        (b"proto", integer(3 if session.resp3 else 2)),
        (b"id", integer(session.id)),
        (b"mode", bulk(b"standalone")),
        (b"role", bulk(b"master")),
        (b"modules", b"*0\r\n"),
    )
    return mapping(fields, session.resp3)


def auth(session: Session, arguments: list[bytes]) -> bytes:
    if len(arguments) > 2:
        raise CommandError(SYNTAX)
    if len(arguments) == 1 and not session.server.password:
        raise CommandError(_NO_PASSWORD)
    user = arguments[0] if len(arguments) == 2 else b"default"
    _authenticate(session, user, arguments[-1])
    return OK


def _authenticate(session: Session, user: bytes, password: bytes) -> None:
    known = session.server.users.get(user)
    expected = known.password if known is not None else session.server.password
    if (known is None and user != b"default") or (expected and password != expected):
        raise CommandError(_WRONG_PASSWORD)
    session.authenticated, session.user = True, known


def client_setname(session: Session, arguments: list[bytes]) -> bytes:
    session.name = _checked_name(arguments[0])
    return OK


def client_getname(session: Session, arguments: list[bytes]) -> bytes:
    return bulk_or_null(session.name.encode() or None, session.resp3)


def client_list(session: Session, arguments: list[bytes]) -> bytes:
    """One line per connection, with the fields that nearcast reads."""
    lines = [f"id={other.id} name={other.name}\n" for other in session.server.sessions]
    return verbatim("".join(lines).encode(), session.resp3)


def client_kill(session: Session, arguments: list[bytes]) -> bytes:
    """CLIENT KILL ID number, or CLIENT KILL TYPE replica. Returns how many connections were ended."""
    if [argument.lower() for argument in arguments] == [b"type", b"replica"]:
        return integer(session.server.replication.cut_off())
    if len(arguments) != 2 or arguments[0].upper() != b"ID":
        raise CommandError(SYNTAX)
    number = parse_integer(arguments[1])
    found = [other for other in session.server.sessions if other.id == number]
    for other in found:
        other.close()
        session.server.killed.append(other)
    return integer(len(found))


def _checked_name(name: bytes) -> str:
    if not all(0x21 <= char <= 0x7E for char in name):
        raise CommandError("ERR Client names cannot contain spaces, newlines or special characters.")
    return name.decode()


def ping(session: Session, arguments: list[bytes]) -> bytes:
    return bulk(arguments[0]) if arguments else b"+PONG\r\n"


def echo(session: Session, arguments: list[bytes]) -> bytes:
    return bulk(arguments[0])


def quit_session(session: Session, arguments: list[bytes]) -> bytes:
    session.leave()
    return OK


def info(session: Session, arguments: list[bytes]) -> bytes:
    """What nearcast reads: all sections, or those named. Unknown names give nothing."""
    wanted = {name.lower().decode("utf-8", "surrogateescape") for name in arguments}
    if not wanted or wanted & {"default", "all", "everything"}:
        wanted = {title.lower() for title, _ in _sections(session.server)}
    texts = [
        f"# {title}\r\n" + "".join(f"{name}:{value}\r\n" for name, value in fields.items())
        for title, fields in _sections(session.server)
        if title.lower() in wanted
    ]
    return verbatim("\r\n".join(texts).encode(), session.resp3)


def _sections(server: SimServer) -> list[tuple[str, dict[str, object]]]:
    traffic = server.traffic
    stats = {
        "total_connections_received": server.connections,
        "total_net_input_bytes": traffic.input_bytes,
        "total_net_output_bytes": traffic.output_bytes,
        "instantaneous_output_kbps": f"{traffic.output_kbps():.2f}",
    }
    return [
        ("Server", {"redis_version": "7.2.4", "valkey_version": VERSION, "run_id": server.run_id}),
        ("Clients", {"connected_clients": len(server.sessions)}),
        ("Memory", {"used_memory": server.keys.size_bytes}),
        ("Stats", stats),
        ("Replication", server.following.info(server.replication.offset)),
        # Virtual time passes between commands, never during them.
        ("CPU", {"used_cpu_sys": "0.000000", "used_cpu_user": "0.000000"}),
    ]
