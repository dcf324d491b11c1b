"""Who is let in: limits before authentication, tokens, origins; and who holds what."""

from __future__ import annotations

import pytest

from nearcast.core.model import tokens
from nearcast.core.model.tokens import Key
from nearcast.errors import UsageError
from nearcast.gateway.access import Admission, Proxies
from nearcast.gateway.settings import GatewaySettings
from nearcast.gateway.subscriptions import Sharing

KEYS = {1: Key(1, b"j" * 32, until_s=500.0), 2: Key(2, b"k" * 32)}


def test_sessions_are_bounded_in_all_and_unknown_ones_by_address() -> None:
    admission = Admission(GatewaySettings(connections=3, unknown_per_address=2))
    admission.opened("a")
    admission.opened("a")
    assert "have not logged in yet" in admission.problem("a", 0.0)
    assert admission.problem("b", 0.0) == ""
    admission.logged_in("a")
    assert admission.problem("a", 0.0) == ""
    admission.opened("a")
    assert "full" in admission.problem("b", 0.0)
    admission.closed("a", known=True)
    admission.closed("a", known=False)
    assert admission.problem("a", 0.0) == ""


def test_refused_logins_of_an_address_are_bounded_per_minute() -> None:
    admission = Admission(GatewaySettings(refused_logins_per_minute=2))
    admission.refused("a", 0.0)
    admission.refused("a", 10.0)
    assert "wait a minute" in admission.problem("a", 59.0)
    assert admission.problem("b", 59.0) == ""
    assert admission.problem("a", 61.0) == ""


def test_registrations_of_an_address_are_bounded_per_minute() -> None:
    admission = Admission(GatewaySettings(registrations_per_minute=2))
    assert [admission.may_register("a", at_s) for at_s in (0.0, 1.0, 2.0, 61.0)] == [True, True, False, True]


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),  # not a browser
        ("http://gateway.example.com:8080", True),
        ("https://city.example.com", True),
        ("https://evil.example.com", False),
        ("null", False),
        ("http://gateway.example.com", False),
    ],
)
def test_pages_of_the_same_host_and_of_listed_origins_may_connect(origin: str | None, allowed: bool) -> None:
    admission = Admission(GatewaySettings(origins=("https://city.example.com",)))
    assert admission.origin_allowed(origin, "gateway.example.com:8080") is allowed


def test_a_token_is_good_for_its_user_until_it_expires() -> None:
    token = tokens.issue(KEYS[2], "ann", "a1", 1000)
    assert problem(token, now_s=999.0) == ""
    assert "expired" in problem(token, now_s=1000.0)
    assert "not for this user" in problem(token, user="bob")
    assert "not for this user" in problem("9" + token)
    assert "not for this user" in problem(token.replace(".a1.", ".a2."), registration="a2")
    for rubbish in ("", ".", "x.y", "1", "1.2.a1.", "¹.2.a1." + "0" * 64, "1.2.a1." + "\udcff", token + "\n"):
        assert tokens.Token.read(rubbish) is None


def test_a_token_ends_with_its_key_and_with_its_registration() -> None:
    earlier = tokens.issue(KEYS[1], "ann", "a1", 1000)
    assert problem(earlier, now_s=499.0) == ""
    assert "key" in problem(earlier, now_s=500.0)
    assert "key" in problem(tokens.issue(Key(3, b"k" * 32), "ann", "a1", 1000))
    assert "not for this user" in problem(tokens.issue(Key(2, b"x" * 32), "ann", "a1", 1000))
    assert "reset or removed" in problem(earlier, registration="b2")
    assert "reset or removed" in problem(earlier, registration="")


def problem(token: str, *, user: str = "ann", registration: str = "a1", now_s: float = 0.0) -> str:
    read = tokens.Token.read(token)
    assert read is not None
    return read.problem(KEYS, user, registration, now_s)


@pytest.mark.parametrize("user", ["", "a b", "a:b", "x" * 129, "a\n"])
def test_a_users_name_has_rules(user: str) -> None:
    with pytest.raises(UsageError, match="user name"):
        tokens.checked_user(user)


@pytest.mark.parametrize(
    "user", ["ann\u200b", "ann\u202e", "\ufeffann", "ann\u00ad", "\u009b2Jann", "ae\u0301", "\ud800"]
)
def test_nobody_registers_a_name_that_looks_like_another(user: str) -> None:
    assert tokens.checked_user(user) == user  # who has such a name from before may log in
    with pytest.raises(UsageError, match="user name"):
        tokens.checked_new_user(user)


@pytest.mark.parametrize("user", ["ann", "Ann", "ada@example.com", "a\u00e9", "\u0632\u0647\u0631\u0627"])
def test_names_of_all_languages_may_be_registered(user: str) -> None:
    assert tokens.checked_new_user(user) == user


@pytest.mark.parametrize("wrong", [{"stall_s": 0}, {"origins": ("city.example.com",)}, {"origins": ("https://a/b",)}])
def test_settings_say_what_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"must be more than 0|bad origin"):
        GatewaySettings(**wrong)  # type: ignore[arg-type]


def test_the_last_one_out_lets_go() -> None:
    held = Sharing()
    for user in ("ann", "bob"):
        held.hold(user, "s")
        held.hold(user, "s")
    assert not held.let_go("ann", "s")
    assert not held.let_go("ann", "s")
    assert held.is_held("s")
    assert held.let_go("bob", "s")
    assert not held.is_held("s")
    assert (list(held.users), list(held.held_by("bob"))) == ([], [])


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.9", ["198.51.100.1"], "192.0.2.9"),  # not a proxy of ours: anybody can write a header
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.7, 198.51.100.1"], "198.51.100.1"),  # the first is what the user's program wrote
        ("10.0.0.1", ["203.0.113.7", "198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["2001:db8::1:2:3:4"], "2001:db8::/64"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_the_address_behind_trusted_proxies_counts(peer: str, forwarded: list[str], address: str) -> None:
    assert Proxies(["10.0.0.0/8"]).address(peer, forwarded) == address


def test_a_proxy_that_is_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match="bad proxy"):
        GatewaySettings(proxies=("proxy.example.com",))
