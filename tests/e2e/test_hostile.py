"""What bad or hostile clients send: it is limited or refused, the server lives, and its memory stays bounded."""

import contextlib
import random

import grpc
import pytest

from gateway import write_rules
from processes import Redis, Tollgate
from wire import OK, OVER_LIMIT, ask, ask_bytes, descriptor, field, raw_request, refused_with

RULES = """\
domain: hostile
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 5 }
"""

@pytest.fixture(scope="module", params=["memory", "redis"])
def tollgate(request, folder):
    with contextlib.ExitStack() as stack:
        settings = {}
        if request.param == "redis":
            settings = {"BACKEND_TYPE": "redis", "REDIS_URL": stack.enter_context(Redis(folder)).url}
        yield stack.enter_context(Tollgate(folder, write_rules(folder / request.param, RULES), **settings))


@pytest.fixture(autouse=True)
def the_server_lives(tollgate):
    """After every test the same process answers, and nothing in it panicked."""
    yield
    assert tollgate.alive(), tollgate.output()[-4000:]
    assert ask(tollgate.channel, "hostile", descriptor(nobody="x")).overall_code == OK
    assert "a defect" not in tollgate.output(), "the log's word for a panic"


VALUES = [
    b"",
    b"\xff",
    b"\xfe",
    b"\xc0\x80",
    b"\x00",
    b"\x00\x00",
    b"a\x00b",
    b"a",
    b"a_user_a",
    b"a|user|a",
    b"{a}",
    b"{",
    b"}",
    b"a}b{c",
    b"a\nb",
    b"a\r\nb",
    b"a:b",
    b"a=b,c=d",
    b"%s%n",
    b"$1",
    b"\\",
    b"'; return 1 --",
    b"ARGV[1]",
    b"1e309",
    b"nan",
    "ä".encode(),
    "a\u0308".encode(),
    "\U0001f6a7".encode(),
    b"x" * 50_000,
    b"x" * 50_001,
    b"x" * (1 << 20),
    b"x" * (1 << 20) + b"\xff",
]


def test_each_value_has_a_counter_of_its_own(tollgate):
    """All at once in turns, so that two values that share a counter would run out early."""
    for turn in range(7):
        for value in VALUES:
            answer = ask_bytes(tollgate.channel, raw_request("hostile", (b"user", value)))
            expected = OK if turn < 5 else OVER_LIMIT
            assert answer.overall_code == expected, f"turn {turn}, {value[:40]!r} of {len(value)} bytes"


def test_entries_that_spell_the_same_are_not_the_same(tollgate):
    """(user, a)(b, c) and (user, ab)(, c) and the like: no rule has two entries, so an override counts them."""
    split = [
        [("a", "b"), ("c", "d")],
        [("a", "b_c_d")],
        [("a_b", "c_d")],
        [("a", "b"), ("c_d", "")],
        [("", "a"), ("b", "cd")],
        [("ab", ""), ("cd", "")],
        [("a", ""), ("b", ""), ("c", "d")],
        [("a", "b\0c\0d")],
        [("c", "d"), ("a", "b")],
    ]
    for hits in (3, 1):
        for entries in split:
            asked = descriptor(limit=(3, 6), hits=hits)
            for key, value in entries:
                asked.entries.add(key=key, value=value)
            answer = ask(tollgate.channel, "hostile", asked)
            assert answer.overall_code == (OK if hits == 3 else OVER_LIMIT), entries


GARBAGE = {
    "no message": b"\xff\xff\xff\xff",
    "cut off": raw_request("hostile", (b"user", b"ann"))[:-3],
    "a length beyond the end": b"\x12\xff\xff\xff\x7f",
    "a varint that never ends": b"\x18" + b"\xff" * 20,
    "a group": b"\x0b\x0b\x0b",
    "field 0": b"\x00\x01",
    "a wrong wire type": b"\x08\x01\x10\x01",
    "deep nesting": b"\x12\x7f" * 200,
    "a domain that is no UTF-8": field(1, b"\xff\xfe") + field(2, field(1, field(1, b"user") + field(2, b"ann"))),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_refused_in_words(tollgate, what):
    code, why = refused_with(tollgate.channel, GARBAGE[what])
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL), (code, why)
    assert why


def test_random_bytes_never_end_the_server(tollgate):
    chance = random.Random(7)
    good = raw_request("hostile", (b"user", b"random"), (b"b", b"c"))
    for _ in range(500):
        message = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            message[chance.randrange(len(message))] = chance.randrange(256)
        with contextlib.suppress(grpc.RpcError):
            ask_bytes(tollgate.channel, bytes(message))


def test_a_message_beyond_the_bound_is_refused(tollgate):
    code, why = refused_with(tollgate.channel, raw_request("hostile", (b"user", b"x" * (5 << 20))))
    assert code in (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.RESOURCE_EXHAUSTED), (code, why)
