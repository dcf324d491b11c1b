"""The keywords and URLs of redis-py: what is kept, ignored and refused."""

from __future__ import annotations

import ssl

import pytest

from nearcast.asyncio import DataError, Redis, StrictRedis, from_url
from nearcast.asyncio.options import CALL_TIMEOUT_S, url_keywords
from nearcast.errors import UsageError


def url_of(client):
    return client._options.with_credentials(client._options.url)


@pytest.mark.parametrize(
    ("keywords", "url"),
    [
        ({}, "redis://localhost:6379"),
        ({"host": "h", "port": "7"}, "redis://h:7"),
        ({"host": "::1", "ssl": True}, "rediss://[::1]:6379"),
        ({"unix_socket_path": "/run/valkey.sock"}, "unix:///run/valkey.sock"),
        ({"password": "p@ss/w:rd"}, "redis://:p%40ss%2Fw%3Ard@localhost:6379"),
        ({"username": "ann", "password": "x"}, "redis://ann:x@localhost:6379"),
        ({"unix_socket_path": "/s", "username": "ann", "password": "x"}, "unix://ann:x@/s"),
    ],
)
def test_addresses(keywords, url):
    assert url_of(Redis(**keywords)) == url


@pytest.mark.parametrize(
    "url",
    ["redis://h:7", "rediss://ann:p%40ss@h:7", "unix:///run/valkey.sock", "unix://ann:x@/run/valkey.sock"],
)
def test_urls_are_understood_and_built_again(url):
    assert url_of(from_url(url)) == url
    assert url_of(Redis.from_url(url)) == url


def test_a_url_brings_options_which_win():
    url = "redis://h:7/3?decode_responses=yes&socket_timeout=2.5&encoding=latin-1&health_check_interval=30"
    options = from_url(url, socket_timeout=9, port=8, encoding_errors="replace")._options
    assert options.url == "redis://h:7"
    assert options.call_timeout_s == 2.5
    assert options.encoder.decode(b"\xe9") == "é"
    assert options.encoder.encoding_errors == "replace"
    assert url_keywords("unix:///s?password=x")["password"] == "x"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://h", "use redis://host:port"),
        ("redis://h:seven", "use redis://host:port"),
        ("redis://h?socket_timeout=soon", "bad value 'soon' for socket_timeout"),
        ("redis://h?decode_responses=maybe", "bad value 'maybe'"),
        ("redis://h?colour=red", "unknown keyword 'colour'"),
    ],
)
def test_a_bad_url_is_refused(url, hint):
    with pytest.raises(UsageError, match=hint):
        from_url(url)


def test_timeouts():
    assert Redis()._options.call_timeout_s == CALL_TIMEOUT_S
    options = Redis(socket_timeout=None, socket_connect_timeout=None)._options
    assert options.call_timeout_s is None
    assert options.connect_timeout_s > 0


def test_harmless_keywords_are_ignored():
    StrictRedis(
        db=3,
        client_name="me",
        protocol=2,
        max_connections=10,
        retry_on_timeout=True,
        health_check_interval=30,
        socket_keepalive=True,
        single_connection_client=True,
        ssl_cert_reqs="required",
        ssl_check_hostname=True,
        ssl_ca_certs=None,
        connection_pool=None,
    )
    Redis(ssl=True, ssl_cert_reqs=ssl.CERT_REQUIRED).pubsub(shard_hint=None)


@pytest.mark.parametrize(
    ("keywords", "hint"),
    [
        ({"connection_pool": object()}, "must be a ConnectionPool, not object"),
        ({"credential_provider": object()}, "give username and password"),
        ({"ssl_ca_certs": "/ca.pem"}, "SSL_CERT_FILE"),
        ({"ssl_cert_reqs": "none"}, "ssl_cert_reqs='none' is not supported"),
        ({"ssl_check_hostname": False}, "ssl_check_hostname=False is not supported"),
        ({"colour": "red"}, "unknown keyword 'colour'"),
    ],
)
def test_keywords_that_matter_are_refused(keywords, hint):
    with pytest.raises(DataError, match=hint):
        Redis(**keywords)


def test_pubsub_has_keywords_of_its_own():
    with pytest.raises(UsageError, match="push_handler_func"):
        Redis().pubsub(push_handler_func=print)


def test_other_commands_say_where_they_are():
    with pytest.raises(AttributeError, match=r"'hset'.*use redis\.asyncio"):
        Redis().hset("key", "field", "value")
    assert not hasattr(Redis(), "get")
