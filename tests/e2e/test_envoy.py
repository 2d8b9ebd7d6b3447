"""A stock Envoy limits real HTTP traffic through Tollgate.

Envoy, Tollgate and Redis are real processes; the rate limit service is asked because a route's `rate_limits` say so, and
what it answers is judged by what an HTTP client sees. Envoy lets a request pass when its rate limit service fails
(`failure_mode_deny: false`), so a service that errs looks like one that allows: every test ends by counting Envoy's
`ratelimit.error`, which must be nothing.
"""

import contextlib
import itertools
import time

import pytest

import envoy_config as ec
from gateway import assert_no_errors, gateway, write_rules
from http_client import Client, get, raw_status
from processes import Redis, Tollgate, wait_until

# Long windows, so that no window ends while a test runs; a bucket where a test waits for its refill.
RULES = """\
domain: e2e
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 5 }
  - key: refilling
    rate_limit: { unit: minute, requests_per_unit: 20, burst: 5, algorithm: token_bucket }
  - key: tokens
    rate_limit: { unit: year, requests_per_unit: 100 }
  - key: remote_address
    descriptors:
      - key: generic_key
        value: per_address
        rate_limit: { unit: year, requests_per_unit: 7 }
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit: { unit: year, requests_per_unit: 3 }
"""

ROUTES = [
    ("/user", [ec.limit(ec.header("x-user", "user"))]),
    ("/refilling", [ec.limit(ec.header("x-user", "refilling"))]),
    ("/address", [ec.limit(ec.REMOTE_ADDRESS, ec.generic_key("per_address"))]),
    ("/plan", [ec.limit(ec.header_match("x-plan", "free", "free", key="plan"), ec.header("x-user", "user"))]),
    # A chat costs nothing when it begins (a look) and what the upstream reports when it is done.
    (
        "/chat",
        [
            ec.limit(ec.header("x-user", "tokens"), hits_addend={"number": 0}),
            ec.limit(
                ec.header("x-user", "tokens"),
                hits_addend={"format": "%RESP(x-cost)%"},
                apply_on_stream_done=True,
            ),
        ],
    ),
    # A job takes the most that it may cost when it begins and gives back the rest when it is done.
    (
        "/job",
        [
            ec.limit(ec.header("x-user", "tokens"), hits_addend={"number": 40}),
            ec.limit(
                ec.header("x-user", "tokens"),
                hits_addend={"format": "%RESP(x-refund)%", "is_negative_hits": True},
                apply_on_stream_done=True,
            ),
        ],
    ),
    ("/", []),
]


@pytest.fixture(scope="module", params=["memory", "redis"])
def envoy(request, folder):
    """One Tollgate and one Envoy for the tests that need no more, on each store. Each test has users of its own."""
    with contextlib.ExitStack() as stack:
        settings = {}
        if request.param == "redis":
            settings = {"REDIS_URL": stack.enter_context(Redis(folder)).url, "BACKEND_TYPE": "redis"}
        tollgate = stack.enter_context(Tollgate(folder, write_rules(folder / request.param, RULES), **settings))
        yield stack.enter_context(gateway(folder, [tollgate], ROUTES))


USERS = (f"user{n}" for n in itertools.count())


@pytest.fixture
def user():
    """A user whom no other test has met."""
    return next(USERS)


# === One Envoy ===


def test_a_stock_envoy_refuses_at_the_limit_and_allows_after_retry_after(envoy, user, say):
    client = Client(envoy.port)
    answers = [client.get("/refilling", x_user=user) for _ in range(8)]
    began = time.monotonic()
    statuses = [status for status, _ in answers]
    assert statuses == [200] * 5 + [429] * 3

    headers = answers[5][1]
    say(f"{statuses.count(200)} x 200, then {statuses.count(429)} x 429; the headers of one 429:")
    for name in ("retry-after", "ratelimit-policy", "ratelimit"):
        say(f"    {name}: {headers[name]}")
    # 20 a minute: one every three seconds, and the whole bucket of 5 is spent.
    assert headers["ratelimit-policy"] == '"refilling";q=20;w=60;burst=5'
    retry_after = int(headers["retry-after"])
    assert 1 <= retry_after <= 3
    assert headers["ratelimit"] == f'"refilling";r=0;t={retry_after}'

    # Whoever does as Retry-After says is served, at the first attempt.
    wait_until("Retry-After has passed", lambda: time.monotonic() - began >= retry_after)
    assert client.get("/refilling", x_user=user)[0] == 200
    say(f"allowed again {time.monotonic() - began:.2f} s later")


def test_an_allowed_answer_says_how_much_is_left(envoy, user):
    _, headers = get(envoy.port, "/user", x_user=user)
    assert headers["ratelimit-policy"] == '"user";q=5;w=31536000'
    assert headers["ratelimit"].startswith('"user";r=4;t=')
    assert "retry-after" not in headers


def test_users_do_not_share_a_limit(envoy, user):
    client = Client(envoy.port)
    assert [client.get("/user", x_user=user)[0] for _ in range(6)] == [200] * 5 + [429]
    assert client.get("/user", x_user=f"{user}-another")[0] == 200


def test_remote_address_and_generic_key(envoy):
    client = Client(envoy.port)
    assert [client.get("/address")[0] for _ in range(9)] == [200] * 7 + [429] * 2


def test_header_value_match_chooses_the_plan(envoy, user):
    client = Client(envoy.port)
    free = [client.get("/plan", x_user=user, x_plan="free")[0] for _ in range(5)]
    assert free == [200] * 3 + [429] * 2
    # Without a match Envoy makes no descriptor and asks nobody.
    assert [client.get("/plan", x_user=user, x_plan="paid")[0] for _ in range(5)] == [200] * 5


# === Costs and refunds ===


def test_costs_of_a_response_arrive_when_the_stream_is_done(envoy, user, say):
    """Route `rate_limits` with `apply_on_stream_done` and a `hits_addend` from the response's header."""
    client = Client(envoy.port)
    assert client.get("/chat", x_user=user, x_cost="60")[0] == 200
    # Envoy sends the charge after the answer; a look changes nothing, so it may be asked until it has arrived.
    left = wait_until("60 of 100 are spent", lambda: remaining(client, "/chat", user) == 40)
    assert left
    # This one costs more than is left, but it is done already: it uses up what there was.
    assert client.get("/chat", x_user=user, x_cost="60")[0] == 200
    wait_until("the budget is spent", lambda: client.get("/chat", x_user=user, x_cost="0")[0] == 429)
    say("budget of 100: two chats of 60 passed and were charged when done, the next was refused")


def test_refunds_of_a_response_arrive(envoy, user, say):
    """`hits_addend` with `is_negative_hits` (RateLimit.HitsAddend of Envoy 1.38 and later)."""
    client = Client(envoy.port)
    assert client.get("/job", x_user=user, x_refund="35")[0] == 200
    wait_until("35 of 40 came back", lambda: remaining(client, "/chat", user) == 95)
    # Without the refund the third job would not fit into 100.
    for spent in (90, 85):
        assert client.get("/job", x_user=user, x_refund="35")[0] == 200
        wait_until(f"{spent} are left", lambda: remaining(client, "/chat", user) == spent)
    say("three jobs took 40 of 100 each and gave back 35 each: 85 left")


def remaining(client, path, user):
    """`r` of the RateLimit header, asked with a look: a chat that costs nothing."""
    _, headers = client.get(path, x_user=user, x_cost="0")
    return int(headers["ratelimit"].split(";")[1].removeprefix("r="))


# === Hostile values ===

HOSTILE = {
    "invalid UTF-8": b"bob\xff",
    "other invalid UTF-8": b"bob\xfe",
    "overlong UTF-8": b"bob\xc0\x80",
    "a lone surrogate": b"bob\xed\xa0\x80",
    "50 kB": b"b" * 50_000,
    "50 kB and one": b"b" * 50_001,
    "braces": b"{bob}",
    "format": b"%s%n%00%ff",
    "separators": b"bob|user_bob:1",
    "escapes": b"bob\\x00\\n",
    "a tab": b"bob\tbob",
    "nearly another": b"bob\xff|",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_header_is_limited_like_any_other(envoy, what, say):
    """Envoy copies a header's bytes into the descriptor as they are. A service that cannot decode them answers with an
    error, and Envoy lets that request pass, for ever."""
    line = b"x-user: " + HOSTILE[what]
    statuses = [raw_status(envoy.port, "/user", line) for _ in range(8)]
    say(f"{what} ({HOSTILE[what][:24]!r}): {statuses.count(200)} x 200, then {statuses.count(429)} x 429")
    assert statuses == [200] * 5 + [429] * 3
    assert_no_errors(envoy)
