"""The REST API without Spark: brokers, channels, subscriptions, results, notifications, and its refusals."""

from __future__ import annotations

import json
import threading
import time

import pytest
from fastapi.testclient import TestClient

from nearcast.pipeline.catalog.executions import Measures
from nearcast.pipeline.service.app import create_app
from nearcast.pipeline.service.state import RequestLimits, ServiceSettings

BY_KIND = (
    "CREATE CHANNEL by_kind(kind STRING) PERIOD 10 SECONDS AS SELECT id, message FROM NEW reports WHERE kind = :kind"
)


def test_brokers_are_registered_once_and_may_move(cluster):
    api = cluster.api
    assert api.put("/brokers/b1", json={"url": "http://one"}).status_code == 201
    assert api.put("/brokers/b1", json={"url": "http://two"}).status_code == 200
    cluster.subscribe("b2", "fire", "flood")
    assert api.get("/brokers").json()["brokers"] == [
        {"broker": "b1", "url": "http://two", "held": 0},
        {"broker": "b2", "url": "http://b2", "held": 2},
    ]
    assert api.put("/brokers/no name", json={"url": "x"}).status_code == 422
    assert api.delete("/brokers/b2").status_code == 204
    assert [broker["broker"] for broker in api.get("/brokers").json()["brokers"]] == ["b1"]
    assert api.get("/channels/by_kind").json()["subscriptions"] == 0


def test_a_channel_is_created_once(cluster):
    api = cluster.api
    again = api.post("/channels", json={"text": BY_KIND})
    assert again.status_code == 200
    shown = again.json()
    assert shown["name"] == "by_kind"
    assert shown["parameters"] == {"kind": "STRING"}
    assert (shown["period_s"], shown["continuous"]) == (10.0, False)
    assert (shown["columns"], shown["warnings"]) == (["id", "message"], [])
    assert api.post("/channels", json={"text": BY_KIND.replace("10", "20")}).status_code == 409
    assert [channel["name"] for channel in api.get("/channels").json()["channels"]] == ["by_kind"]


def test_a_channel_is_replaced_under_its_subscriptions(cluster):
    api = cluster.api
    (fire,) = cluster.subscribe("b1", "fire")
    cluster.execute("by_kind", {fire: [{"id": 1, "message": "m"}]})
    text = BY_KIND.replace("CREATE", "CREATE OR REPLACE").replace("id, message", "id")
    replaced = api.post("/channels", json={"text": text})
    assert replaced.status_code == 200
    assert replaced.json()["made"] == "replaced"
    shown = api.get("/channels/by_kind").json()
    assert (shown["text"], shown["columns"], shown["from_execution"]) == (text, ["id"], 2)
    assert (shown["subscriptions"], shown["committed"]) == (1, 1)
    cluster.execute("by_kind", {fire: [{"id": 2}]})
    for number, rows in ((1, [{"id": 1, "message": "m"}]), (2, [{"id": 2}])):
        assert api.get(f"/results/by_kind/{number}/{fire}").json()["rows"] == rows
    other = api.post("/channels", json={"text": text.replace("kind STRING", "kind STRING, n INT") + " AND id = :n"})
    assert other.status_code == 409
    assert "has parameters kind STRING, but the new text has kind STRING, n INT" in other.json()["problem"]
    assert api.post("/channels", json={"text": text}).json()["made"] == "unchanged"


def test_a_wrong_channel_is_refused_with_its_place(cluster):
    text = "CREATE CHANNEL wrong(kind STRING) PERIOD 10 SECONDS AS\nSELECT mesage FROM NEW reports WHERE kind = :kind"
    refused = cluster.api.post("/channels", json={"text": text})
    assert refused.status_code == 422
    assert (refused.json()["line"], refused.json()["column"]) == (2, 8)
    assert "mesage" in refused.json()["problem"]
    assert refused.json()["hint"]
    assert cluster.api.get("/channels/wrong").status_code == 404


def test_identical_subscriptions_of_several_brokers_are_one(cluster):
    api = cluster.api
    (one,) = cluster.subscribe("b1", "fire")
    (other,) = cluster.subscribe("b2", "fire")
    assert one == other
    assert one.startswith("by_kind-")
    assert len(one) == len("by_kind-") + 16
    assert api.get("/channels/by_kind").json()["subscriptions"] == 1
    assert api.delete(f"/subscriptions/{one}?broker=b1").status_code == 204
    assert api.get("/channels/by_kind").json()["subscriptions"] == 1
    assert api.delete(f"/subscriptions/{one}?broker=b2").status_code == 204
    assert api.delete(f"/subscriptions/{one}?broker=b2").status_code == 204
    assert api.get("/channels/by_kind").json()["subscriptions"] == 0


def test_wishes_are_answered_in_their_order(cluster):
    cluster.api.put("/brokers/b1", json={"url": "http://b1"})
    wanted = [
        {"channel": "by_kind", "parameters": {"kind": "fire"}},
        {"channel": "nowhere", "parameters": {}},
        {"channel": "by_kind", "parameters": {"knid": "fire"}},
        {"channel": "by_kind"},
        {"channel": "by_kind", "parameters": {"kind": 7}},
    ]
    answers = cluster.api.post("/subscriptions", json={"broker": "b1", "wanted": wanted}).json()["subscriptions"]
    assert answers[0]["from_execution"] == 1
    problems = [answer["problem"] for answer in answers[1:]]
    assert problems == [
        "unknown channel nowhere",
        "unknown parameter knid",
        "parameter kind is missing",
        "parameter kind is 7",
    ]
    assert all(answer["hint"] for answer in answers[1:])
    assert cluster.api.post("/subscriptions", json={"broker": "b9", "wanted": wanted}).status_code == 404


def test_a_user_is_bound_to_the_login(cluster):
    """Two who wish the same have two subscriptions, and neither can name the other."""
    api = cluster.api
    text = "CREATE CHANNEL mine(kind STRING, user STRING) PERIOD 1 SECOND AS SELECT id FROM NEW reports "
    assert api.post("/channels", json={"text": text + "WHERE kind = :kind AND message = :user"}).status_code == 201
    api.put("/brokers/b1", json={"url": "http://b1"})
    wish = {"channel": "mine", "parameters": {"kind": "fire"}}
    other = {"channel": "mine", "parameters": {"kind": "fire", "user": "bob"}}
    of_both = [{**asked, "user": user} for asked in (wish, other) for user in ("ann", "bob")]
    wanted = [*of_both, other]
    answers = api.post("/subscriptions", json={"broker": "b1", "wanted": wanted}).json()["subscriptions"]
    ann, bob, ann_as_bob, bob_again, nobody = answers
    assert ann["subscription"] != bob["subscription"] == bob_again["subscription"]
    assert ann_as_bob["problem"] == 'parameter user is "bob", but the login is "ann"'
    assert "is not logged in" in nobody["problem"]
    assert "gateway" in nobody["hint"]
    version = cluster.catalog.channels.numbers("mine").version
    held = {name: values["user"] for name, values in cluster.catalog.subscriptions.at("mine", version)}
    assert held == {ann["subscription"]: "ann", bob["subscription"]: "bob"}


def test_who_subscribes_later_starts_later(cluster):
    (fire,) = cluster.subscribe("b1", "fire")
    cluster.execute("by_kind", {fire: [{"id": 1, "message": "m"}]})
    wanted = [{"channel": "by_kind", "parameters": {"kind": "fire"}}]
    answer = cluster.api.post("/subscriptions", json={"broker": "b1", "wanted": wanted}).json()
    assert answer["subscriptions"] == [{"subscription": fire, "channel": "by_kind", "from_execution": 2}]


def test_results_are_listed_and_fetched(cluster):
    api = cluster.api
    fire, flood, storm = cluster.subscribe("b1", "fire", "flood", "storm")
    rows = {fire: [{"id": 1, "message": "one"}, {"id": 2, "message": None}], flood: [{"id": 3, "message": "three"}]}
    cluster.execute("by_kind", rows)
    cluster.execute("by_kind", {})
    cluster.execute("by_kind", {fire: [{"id": 4, "message": "four"}]})

    listed = api.get(f"/subscriptions/{fire}/executions?after=0").json()
    assert [(e["execution"], e["rows"]) for e in listed["executions"]] == [(1, 2), (3, 1)]
    assert listed["executions"][1]["bytes"] == len('{"id":4,"message":"four"}')
    assert (listed["upto"], listed["oldest"]) == (3, 1)
    assert [e["execution"] for e in api.get(f"/subscriptions/{fire}/executions?after=1").json()["executions"]] == [3]
    assert len(api.get(f"/subscriptions/{fire}/executions?limit=1").json()["executions"]) == 1

    assert api.get(f"/results/by_kind/1/{fire}").json() == {"rows": rows[fire]}
    body = {"channel": "by_kind", "execution": 1, "subscriptions": [fire, flood, storm]}
    assert api.post("/results", json=body).json() == {"results": rows}
    assert api.get(f"/results/by_kind/1/{storm}").status_code == 404
    assert api.get(f"/results/by_kind/4/{fire}").status_code == 404
    assert api.get(f"/results/nowhere/1/{fire}").status_code == 404


def test_a_subscription_that_was_set_aside_is_named_to_its_owner_and_to_the_operator(cluster):
    fire, flood = cluster.subscribe("b1", "fire", "flood")
    assert cluster.api.get("/channels/by_kind").json()["set_aside"] == {}
    version = cluster.catalog.channels.numbers("by_kind").version
    cluster.catalog.subscriptions.set_aside("by_kind", version, {fire: "division by zero"})
    assert [name for name, _ in cluster.catalog.subscriptions.at("by_kind", version)] == [flood]

    shown = cluster.api.get("/channels/by_kind").json()
    assert shown["set_aside"] == {fire: "division by zero"}
    assert shown["problem"] == f"1 set aside, {fire}: division by zero"
    problems = [cluster.api.get(f"/subscriptions/{one}/executions").json()["problem"] for one in (fire, flood)]
    assert problems == ["division by zero", ""]
    wanted = [{"channel": "by_kind", "parameters": {"kind": kind}} for kind in ("fire", "flood")]
    answer = cluster.api.post("/subscriptions", json={"broker": "b1", "wanted": wanted}).json()
    refused, granted = answer["subscriptions"]
    assert refused["problem"] == f"subscription {fire} is set aside: division by zero"
    assert granted["subscription"] == flood

    assert cluster.api.delete(f"/subscriptions/{fire}?broker=b1").status_code == 204
    assert cluster.subscribe("b1", "fire") == [fire]
    assert cluster.api.get("/channels/by_kind").json()["problem"] == ""


def test_an_execution_that_was_given_up_is_shown_to_the_operator(cluster):
    cluster.subscribe("b1", "fire")
    cluster.add_batch()
    execution = cluster.catalog.next_execution(cluster.catalog.channels.get("by_kind"))
    assert cluster.catalog.executions.commit(execution, {}, Measures(rows_in=1, problem="it fails for everybody"))
    assert cluster.api.get("/channels/by_kind").json()["problem"] == "it fails for everybody"
    (last,) = cluster.api.get("/channels/by_kind/executions").json()["executions"]
    assert last["problem"] == "it fails for everybody"


def test_what_is_no_longer_kept_is_gone(cluster):
    (fire,) = cluster.subscribe("b1", "fire")
    for number in range(3):
        cluster.execute("by_kind", {fire: [{"id": number, "message": ""}]})
    expired = cluster.catalog.outcomes.expire(keep_s=3600, keep_executions=2)
    assert expired == [("by_kind", 1)]
    assert cluster.api.get(f"/results/by_kind/1/{fire}").status_code == 410
    assert cluster.catalog.outcomes.expire(keep_s=3600, keep_executions=2) == expired, "until the files are removed"
    cluster.catalog.outcomes.forget(expired)
    assert cluster.catalog.outcomes.expire(keep_s=3600, keep_executions=2) == []
    listed = cluster.api.get(f"/subscriptions/{fire}/executions").json()
    assert ([e["execution"] for e in listed["executions"]], listed["oldest"]) == ([2, 3], 2)
    assert cluster.api.get(f"/results/by_kind/2/{fire}").status_code == 200
    assert len(cluster.api.get("/channels/by_kind/executions").json()["executions"]) == 2


def test_each_broker_is_told_of_what_it_holds(cluster):
    api = cluster.api
    fire, flood = cluster.subscribe("b1", "fire", "flood")
    cluster.subscribe("b2", "flood")
    start = api.get("/brokers/b1/notifications").json()
    assert start["notifications"] == []
    row = [{"id": 1, "message": "m"}]
    cluster.execute("by_kind", {fire: row, flood: row})
    cluster.execute("by_kind", {fire: row})

    def news(broker: str, after: int, wait_s: float = 0.0):
        answer = api.get(f"/brokers/{broker}/notifications?after={after}&wait_s={wait_s}").json()
        return answer["cursor"], [(n["execution"], n["subscriptions"]) for n in answer["notifications"]]

    newest, told = news("b1", start["cursor"])
    assert told == [(1, sorted([fire, flood])), (2, [fire])]
    assert news("b2", start["cursor"]) == (newest, [(1, [flood])])
    assert news("b1", newest) == (newest, [])
    api.post(f"/subscriptions/{fire}/move", json={"from": "b1", "to": "b2"})
    api.post(f"/subscriptions/{fire}/move", json={"from": "b1", "to": "b2"})
    assert news("b1", start["cursor"])[1] == [(1, [flood])]
    assert news("b2", start["cursor"])[1] == [(1, sorted([fire, flood])), (2, [fire])]
    assert api.get("/brokers/b9/notifications").status_code == 404
    assert api.post("/subscriptions/by_kind-00/move", json={"from": "b1", "to": "b2"}).status_code == 404


def test_a_long_poll_is_woken_by_a_commit(cluster):
    (fire,) = cluster.subscribe("b1", "fire")
    timer = threading.Timer(0.3, cluster.execute, ("by_kind", {fire: [{"id": 1, "message": "m"}]}))
    timer.start()
    began_s = time.monotonic()
    told = cluster.api.get("/brokers/b1/notifications?after=0&wait_s=50").json()
    timer.join()
    assert [n["subscriptions"] for n in told["notifications"]] == [[fire]]
    assert 0.2 < time.monotonic() - began_s < 40


def test_cursors_and_numbers_go_on_after_drops_and_restarts(cluster, tmp_path):
    (fire,) = cluster.subscribe("b1", "fire")
    cluster.execute("by_kind", {fire: [{"id": 1, "message": "m"}]})
    cursor = cluster.api.get("/brokers/b1/notifications").json()["cursor"]
    assert cluster.api.delete("/channels/by_kind").status_code == 204
    assert cluster.api.delete("/channels/by_kind").status_code == 404
    cluster.api.post("/channels", json={"text": BY_KIND})
    with TestClient(create_app(type(cluster.catalog)(tmp_path))) as api:
        assert api.get("/brokers/b1/notifications").json()["cursor"] == cursor
    cluster.subscribe("b1", "fire")
    assert cluster.execute("by_kind", {fire: [{"id": 2, "message": "m"}]}).number == 2
    assert cluster.api.get(f"/results/by_kind/1/{fire}").status_code == 410
    assert cluster.api.get("/brokers/b1/notifications").json()["cursor"] == cursor + 1


def test_rates_are_bytes_per_second_over_ten_periods(cluster):
    (fire,) = cluster.subscribe("b1", "fire")
    cluster.execute("by_kind", {fire: [{"id": 1, "message": "x" * 979}]})
    assert cluster.api.get("/rates").json() == {"rates": {fire: pytest.approx(10.0)}}


def test_datasets_are_shown_and_dropped_when_nobody_needs_them(cluster):
    api = cluster.api
    cluster.catalog.datasets.create("positions", "user STRING, lat DOUBLE", "user")
    shown = api.get("/datasets").json()["datasets"]
    assert [(dataset["name"], dataset["key"], dataset["rows"]) for dataset in shown] == [
        ("positions", "user", 0),
        ("reports", "", 0),
    ]
    assert shown[0]["columns"]["lat"] == "DOUBLE"
    assert api.delete("/datasets/reports").status_code == 409
    assert api.delete("/datasets/positions").status_code == 204
    assert api.delete("/datasets/positions").status_code == 422


def test_without_spark_what_needs_it_is_refused(cluster):
    feed = {"name": "f", "topic": "t", "schema": "id INT"}
    for answer in (
        cluster.api.post("/feeds", json=feed),
        cluster.api.post("/datasets/shelters", content=b"name\nhall\n", headers={"content-type": "text/csv"}),
    ):
        assert answer.status_code == 503
        assert "retry-after" not in answer.headers, "asking again would not help"
    assert cluster.api.get("/feeds").json() == {"feeds": []}


def test_a_token_and_limits_at_the_door(cluster):
    limits = RequestLimits(json_bytes=200, wanted=1, long_polls=1)
    api = TestClient(create_app(cluster.catalog, ServiceSettings(token="secret", limits=limits)))
    assert api.get("/channels").status_code == 401
    assert api.get("/channels", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert api.get("/health").json() == {"spark": "none", "open": 0, "damaged": [], "feeds": "", "problem": ""}
    api.headers["authorization"] = "Bearer secret"
    assert api.get("/channels").status_code == 200
    large = '{"url": "' + "x" * 200 + '"}'
    of_json = {"content-type": "application/json; charset=utf-8"}
    assert api.put("/brokers/b1", content=large, headers=of_json).status_code == 413
    assert api.put("/brokers/b1", content=iter([large.encode()]), headers=of_json).status_code == 413
    assert api.put("/brokers/b1", json={"url": "http://b1"}).status_code == 201
    wanted = [{"channel": "by_kind", "parameters": {"kind": kind}} for kind in ("a", "b")]
    assert api.post("/subscriptions", json={"broker": "b1", "wanted": wanted}).status_code == 429


def test_the_token_of_gateways_opens_what_they_need(cluster):
    settings = ServiceSettings(token="operator", gateway_token="gateway")
    api = TestClient(create_app(cluster.catalog, settings), headers={"authorization": "Bearer gateway"})
    assert api.put("/brokers/b1", json={"url": "http://b1"}).status_code == 201
    wanted = [{"channel": "by_kind", "parameters": {"kind": "fire"}}]
    (fire,) = api.post("/subscriptions", json={"broker": "b1", "wanted": wanted}).json()["subscriptions"]
    execution = cluster.execute("by_kind", {fire["subscription"]: [{"id": 1, "message": "m"}]})
    asked = {"channel": "by_kind", "execution": execution.number, "subscriptions": [fire["subscription"]]}
    assert api.post("/results", json=asked).json()["results"]
    for path in ("/brokers/b1/notifications", f"/subscriptions/{fire['subscription']}/executions", "/rates", "/health"):
        assert api.get(path).status_code == 200, path
    for method, path in [
        *(("GET", path) for path in ("/channels", "/feeds", "/datasets", "/docs", "/openapi.json", "/brokersx", "/")),
        *(("POST", path) for path in ("/channels", "/channels/check", "/feeds", "/datasets/x", "//channels")),
        *(("DELETE", path) for path in ("/channels/by_kind", "/feeds/reports", "/datasets/reports")),
    ]:
        refused = api.request(method, path)
        assert refused.status_code == 403, (method, path)
        assert "NEARCAST_DATA_TOKEN" in refused.json()["hint"]
    for wrong in ("", "Bearer", "Bearer ", "Bearer gatewa", "Bearer gatewayy", "Basic gateway"):
        assert api.get("/rates", headers={"authorization": wrong}).status_code == 401, wrong
    assert api.get("/channels", headers={"authorization": "Bearer operator"}).status_code == 200


def test_without_a_token_of_gateways_nothing_opens_by_an_empty_one(cluster):
    api = TestClient(create_app(cluster.catalog, ServiceSettings(token="operator")))
    for wrong in ("", "Bearer", "Bearer ", "bearer  "):
        assert api.get("/rates", headers={"authorization": wrong}).status_code == 401, wrong


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_what_a_page_may_send_unasked_is_refused(cluster, kind):
    headers = {"content-type": kind} if kind else {}
    for path in ("/channels", "/datasets/shelters", "/feeds"):
        refused = cluster.api.post(path, content=b'{"text": ""}', headers=headers)
        assert refused.status_code == 415
        assert "application/octet-stream" in refused.json()["hint"]


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30, -1])
def test_numbers_that_the_catalogue_cannot_hold_are_refused(cluster, number):
    (fire,) = cluster.subscribe("b1", "fire")
    assert cluster.api.get(f"/brokers/b1/notifications?after={number}&wait_s=0").status_code == 422
    assert cluster.api.get(f"/subscriptions/{fire}/executions?after={number}").status_code == 422
    assert cluster.api.get(f"/results/by_kind/{number}/{fire}").status_code == 422
    body = {"channel": "by_kind", "execution": number, "subscriptions": [fire]}
    assert cluster.api.post("/results", json=body).status_code == 422


def test_a_wish_that_is_no_text_or_nested_is_refused_alone(cluster):
    cluster.api.put("/brokers/b1", json={"url": "http://b1"})
    nested: object = 1
    for _ in range(300):
        nested = {"a": nested}
    odd = [
        {"channel": "by\ud800kind", "parameters": {"kind": "fire"}},
        {"channel": "by_kind", "parameters": {"\udfff": "fire"}},
        {"channel": "by_kind", "parameters": {"kind": "\ud800"}},
        {"channel": "by_kind", "parameters": {"kind": nested}},
        {"channel": "by_kind", "parameters": {"kind": "fire"}},
    ]
    content = json.dumps({"broker": "b1", "wanted": odd})
    answer = cluster.api.post("/subscriptions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert ["problem" in one for one in answer.json()["subscriptions"]] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BY_KIND.partition("SELECT")[0], "the SELECT is missing"),
        (BY_KIND + " AND " + "(" * 100 + "1 = 1" + ")" * 100, "nested too deeply"),
        (BY_KIND + " AND 1 = 1" * 1000, "too many conditions"),
        (BY_KIND + " AND r.kind = " + " || ".join(["'a'"] * 1000), "nested too deeply"),
        (BY_KIND + " AND 1 = " + "abs(" * 30 + "1" + ")" * 30, "nested too deeply"),
        (BY_KIND + " AND " + "NOT " * 3000 + "true", "nested too deeply"),
        (BY_KIND.replace("by_kind", "x" * 300), "the channel's name is missing"),
        (BY_KIND.replace("id", "1 + " * 4000 + "1 AS n"), "the text is too long"),
    ],
)
def test_a_text_that_would_exhaust_a_parser_is_refused(cluster, text, problem):
    refused = cluster.api.post("/channels", json={"text": text})
    assert refused.status_code == 422
    assert refused.json()["problem"] == problem


def test_the_api_describes_itself(cluster):
    described = cluster.api.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), f"{method} {path}"


def test_a_wish_of_wrong_form_spoils_no_other_of_the_same_call(cluster):
    cluster.api.put("/brokers/b1", json={"url": "http://b1"})
    deep = []
    for _ in range(300):
        deep = [deep]
    good = {"channel": "by_kind", "parameters": {"kind": "fire"}}
    wrong = [
        7,
        {"channel": 7},
        {"channel": "by_kind", "parameters": []},
        {"channel": "by_kind", "parameters": {"kind": deep}},
        {"channel": "by_kind", "parameters": {"kind": {"a": 1}}},
        {"channel": "\ud800", "parameters": {}},
        {"channel": "by_kind", "parameters": {"\ud800": "\ud800"}},
    ]
    body = json.dumps({"broker": "b1", "wanted": [*wrong, good]})  # httpx would not encode the halves of pairs
    answer = cluster.api.post("/subscriptions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    *refused, granted = answer.json()["subscriptions"]
    assert all(one["problem"] and one["hint"] for one in refused)
    assert granted["subscription"].startswith("by_kind-")
