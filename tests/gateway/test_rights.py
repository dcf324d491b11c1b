"""Which topics users may use: what no rule names is refused, and no name reaches into what is another one's."""

from __future__ import annotations

import random
import re
import time

import pytest

from nearcast.errors import AccessDenied, UsageError
from nearcast.gateway.rights import Act, Rights


def may(rule: str, user: str, topic: str, act: Act = Act.PUBLISH) -> bool:
    try:
        Rights([rule]).check(act, user, topic)
    except AccessDenied:
        return False
    return True


def test_without_rules_nothing_is_allowed() -> None:
    for act in Act:
        with pytest.raises(AccessDenied, match=f"--allow {act}:PATTERN"):
            Rights().check(act, "ann", "news")
    assert not may("subscribe:*", "ann", "news")
    assert may("subscribe:*", "ann", "news", Act.SUBSCRIBE)


@pytest.mark.parametrize(
    ("pattern", "topic", "allowed"),
    [
        ("news", "news", True),
        ("news", "news.x", False),
        ("news", "NEWS", False),
        ("chat.*", "chat.a.b", True),
        ("chat.*", "chat", False),
        ("chat.?", "chat.a", True),
        ("chat.?", "chat.ab", False),
        ("a[bc]+(d)", "a[bc]+(d)", True),
        ("a[bc]", "ab", False),
        ("*", "any\nthing", True),
        ("inbox.{user}", "inbox.ann", True),
        ("inbox.{user}", "inbox.bob", False),
        ("{user}.*", "ann.x", True),
        ("{user}.*", "bob.x", False),
        ("*.{user}", "x.ann", True),
        ("*.{user}", "x.joann", False),
    ],
)
def test_a_pattern_is_for_what_it_says(pattern: str, topic: str, allowed: bool) -> None:
    assert may(f"publish:{pattern}", "ann", topic) is allowed


@pytest.mark.parametrize("user", ["*", "?", "a*", ".*", "[a-z]+", "a|b", "{user}", "\\w"])
def test_signs_in_a_name_stand_for_themselves(user: str) -> None:
    assert may("publish:inbox.{user}", user, f"inbox.{user}")
    assert not may("publish:inbox.{user}", user, "inbox.ann")
    assert not may("publish:inbox.{user}", user, "inbox.abc")


def test_a_name_does_not_reach_into_the_topics_of_another() -> None:
    assert may("publish:{user}.*", "ann", "ann.b.x")
    assert not may("publish:{user}.*", "ann.b", "ann.b.x")  # or the topics of ann.b would be ann's too
    assert not may("publish:*.{user}", "b.ann", "x.b.ann")
    assert may("publish:inbox.{user}", "ann.b", "inbox.ann.b")  # nobody else's


@pytest.mark.parametrize("rule", ["", "publish", "publish:", "read:news", "publish:{user}*", "subscribe:*{user}.x"])
def test_a_rule_that_makes_no_sense_is_refused(rule: str) -> None:
    with pytest.raises(UsageError):
        Rights([rule])


@pytest.mark.parametrize("pattern", ["*.*.*.*.temp", "*.{user}.*.*.temp", "home.*a*a*a*a*b", "?*?*?*?*?x"])
def test_a_topic_that_is_nearly_allowed_is_refused_at_once(pattern: str) -> None:
    """A user who tries it would hold up everybody else at the gateway."""
    began_s = time.monotonic()
    for topic in ("." * 512, "home." + "a" * 507, ".ann" * 128):
        assert not may(f"publish:{pattern}", "ann", topic)
    assert time.monotonic() - began_s < 1.0


def test_patterns_with_several_stars_are_for_what_they_say() -> None:
    """Compared with the plain expression, which may go back."""
    rng = random.Random(7)
    for _ in range(3000):
        pattern = "".join(rng.choice("ab*?.") for _ in range(rng.randint(1, 7)))
        topic = "".join(rng.choice("ab.") for _ in range(rng.randint(1, 9)))
        plain = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
        assert may(f"publish:{pattern}", "ann", topic) is bool(re.fullmatch(plain, topic)), (pattern, topic)
