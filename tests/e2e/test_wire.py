"""The wire contract, held against an independent client: every field of a request is understood and every field of an
answer is what Envoy's own message says it is."""

import contextlib
import itertools

import grpc
import pytest
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2  # noqa: F401 - fills the descriptor pool
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, json_format
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from gateway import write_rules
from processes import Redis, Tollgate
from wire import OK, OVER_LIMIT, ask, descriptor, raw_request, refused_with

RULES = """\
domain: wire
descriptors:
  - key: user
    rate_limit: { name: per_user, unit: hour, requests_per_unit: 10, algorithm: fixed_window }
  - key: bucket
    rate_limit: { unit: day, requests_per_unit: 10, algorithm: token_bucket }
  - key: blocked
    rate_limit: { unit: hour, requests_per_unit: 0 }
  - key: large
    rate_limit: { unit: year, requests_per_unit: 4294967295 }
  - key: unit
    descriptors:
      - { key: is, value: second, rate_limit: { unit: second, requests_per_unit: 1000 } }
      - { key: is, value: minute, rate_limit: { unit: minute, requests_per_unit: 1000 } }
      - { key: is, value: hour, rate_limit: { unit: hour, requests_per_unit: 1000 } }
      - { key: is, value: day, rate_limit: { unit: day, requests_per_unit: 1000 } }
      - { key: is, value: week, rate_limit: { unit: week, requests_per_unit: 1000 } }
      - { key: is, value: month, rate_limit: { unit: month, requests_per_unit: 1000 } }
      - { key: is, value: year, rate_limit: { unit: year, requests_per_unit: 1000 } }
"""

SECONDS = {
    "SECOND": 1,
    "MINUTE": 60,
    "HOUR": 3600,
    "DAY": 86_400,
    "WEEK": 7 * 86_400,
    "MONTH": 30 * 86_400,
    "YEAR": 365 * 86_400,
}
Unit = rls_pb2.RateLimitResponse.RateLimit.Unit


@pytest.fixture(scope="module", params=["memory", "redis"])
def tollgate(request, folder):
    with contextlib.ExitStack() as stack:
        settings = {}
        if request.param == "redis":
            settings = {"BACKEND_TYPE": "redis", "REDIS_URL": stack.enter_context(Redis(folder)).url}
        yield stack.enter_context(Tollgate(folder, write_rules(folder / request.param, RULES), **settings))


@pytest.fixture
def channel(tollgate):
    return tollgate.channel


NAMES = (f"name{n}" for n in itertools.count())


@pytest.fixture
def user():
    """A value that no other test has used."""
    return next(NAMES)


# === Answers ===


def test_each_status_says_its_limit_what_is_left_and_until_when(channel, user):
    answer = ask(channel, "wire", descriptor(user=user), descriptor(nobody="x"), descriptor(bucket=user))
    assert answer.overall_code == OK
    hourly, unmatched, bucket = answer.statuses

    assert hourly.code == OK and hourly.limit_remaining == 9
    limit = hourly.current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name) == (10, Unit.HOUR, "per_user")
    assert 0 < hourly.duration_until_reset.ToNanoseconds() <= 3600 * 10**9

    # No rule matches: it passes, and there is no limit to tell of.
    assert unmatched.code == OK and not unmatched.HasField("current_limit")

    assert bucket.limit_remaining == 9 and bucket.current_limit.unit == Unit.DAY
    # One of ten a day is missing: a tenth of a day until the bucket is full, less what passed since.
    assert 0.09 * 86_400 < bucket.duration_until_reset.ToSeconds() <= 0.1 * 86_400


@pytest.mark.parametrize("unit", SECONDS)
def test_every_unit_of_a_rule_is_named_in_the_answer(channel, unit):
    (status,) = ask(channel, "wire", descriptor(unit="", **{"is": unit.lower()})).statuses
    assert status.current_limit.unit == Unit.Value(unit) and status.current_limit.requests_per_unit == 1000
    assert 0 < status.duration_until_reset.ToNanoseconds() <= SECONDS[unit] * 10**9


def test_over_the_limit_says_which_and_when_to_come_back(channel, user):
    answers = [ask(channel, "wire", descriptor(nobody="x"), descriptor(user=user)) for _ in range(12)]
    assert [a.overall_code for a in answers] == [OK] * 10 + [OVER_LIMIT] * 2
    first, second = answers[-1].statuses
    assert first.code == OK and second.code == OVER_LIMIT and second.limit_remaining == 0
    headers = {h.key.lower(): h.value for h in answers[-1].response_headers_to_add}
    assert set(headers) == {"retry-after", "ratelimit-policy", "ratelimit"}
    assert headers["ratelimit-policy"] == '"per_user";q=10;w=3600'
    left = second.duration_until_reset.ToNanoseconds() / 10**9
    assert left <= int(headers["retry-after"]) <= left + 1, "whole seconds, rounded up"
    assert headers["ratelimit"] == f'"per_user";r=0;t={headers["retry-after"]}'


def test_a_limit_of_nothing_refuses_without_a_time_to_come_back(channel):
    answer = ask(channel, "wire", descriptor(blocked="x"))
    assert answer.overall_code == OVER_LIMIT and answer.statuses[0].limit_remaining == 0
    assert "retry-after" not in {h.key.lower() for h in answer.response_headers_to_add}


def test_what_is_refused_spends_nothing(channel, user):
    refused = ask(channel, "wire", descriptor(user=user), descriptor(blocked="x"))
    assert refused.overall_code == OVER_LIMIT
    assert [s.code for s in refused.statuses] == [OK, OVER_LIMIT]
    assert ask(channel, "wire", descriptor(user=user)).statuses[0].limit_remaining == 9


def test_dynamic_metadata_repeats_what_was_asked(folder):
    """`RESPONSE_DYNAMIC_METADATA`: Envoy's access log and filters see which descriptors were asked about."""
    rules = write_rules(folder / "metadata", RULES)
    with Tollgate(folder, rules, RESPONSE_DYNAMIC_METADATA="true") as tollgate:
        answer = ask(tollgate.channel, "wire", descriptor(user="ann", hits=3))
    assert json_format.MessageToDict(answer.dynamic_metadata) == {
        "domain": "wire",
        "descriptors": [{"entries": ["user=ann"], "hitsAddend": 3.0}],
    }


# === Hits ===


def test_the_requests_hits_are_counted_on_each_descriptor(channel, user):
    answer = ask(channel, "wire", descriptor(user=user), descriptor(bucket=user), hits=4)
    assert [s.limit_remaining for s in answer.statuses] == [6, 6]


def test_a_descriptors_own_hits_win(channel, user):
    answer = ask(channel, "wire", descriptor(user=user, hits=3), descriptor(bucket=user), hits=5)
    assert [s.limit_remaining for s in answer.statuses] == [7, 5]


def test_a_look_changes_nothing(channel, user):
    for _ in range(20):
        answer = ask(channel, "wire", descriptor(user=user, hits=0))
        assert answer.overall_code == OK and answer.statuses[0].limit_remaining == 10
    assert ask(channel, "wire", descriptor(user=user, hits=10)).overall_code == OK
    assert ask(channel, "wire", descriptor(user=user, hits=0)).overall_code == OVER_LIMIT


def test_a_refund_gives_back_and_stops_at_full(channel, user):
    for which in ("user", "bucket"):
        assert ask(channel, "wire", descriptor(hits=10, **{which: user})).overall_code == OK
        assert ask(channel, "wire", descriptor(**{which: user})).overall_code == OVER_LIMIT
        refund = ask(channel, "wire", descriptor(hits=4, refund=True, **{which: user}))
        assert refund.overall_code == OK and refund.statuses[0].limit_remaining == 4
        refund = ask(channel, "wire", descriptor(hits=2**64 - 1, refund=True, **{which: user}))
        assert refund.overall_code == OK and refund.statuses[0].limit_remaining == 10


@pytest.mark.parametrize("hits", [2**32 - 1, 2**32, 2**53 + 1, 2**63, 2**64 - 1])
def test_large_hits_neither_wrap_nor_fail(channel, user, hits):
    for which in ("user", "bucket"):
        answer = ask(channel, "wire", descriptor(hits=hits, **{which: user}))
        assert answer.overall_code == OVER_LIMIT
    answer = ask(channel, "wire", descriptor(large=user, hits=hits))
    assert answer.overall_code == (OK if hits <= 2**32 - 1 else OVER_LIMIT)
    assert ask(channel, "wire", descriptor(user=user), hits=2**32 - 1).overall_code == OVER_LIMIT


# === Overrides ===


@pytest.mark.parametrize("unit", SECONDS)
def test_an_override_brings_its_own_limit(channel, user, unit):
    number = Unit.Value(unit)  # the two enumerations agree
    # No rule for this one: the override is all there is.
    (status,) = ask(channel, "wire", descriptor(brought=user, limit=(7, number), hits=7)).statuses
    assert status.code == OK and status.limit_remaining == 0
    assert status.current_limit.requests_per_unit == 7 and status.current_limit.unit == Unit.Value(unit)
    assert 0 < status.duration_until_reset.ToNanoseconds() <= SECONDS[unit] * 10**9


def test_an_override_replaces_the_numbers_and_shares_the_counter(channel, user):
    hour = Unit.HOUR
    assert ask(channel, "wire", descriptor(user=user, hits=4)).statuses[0].limit_remaining == 6
    more = ask(channel, "wire", descriptor(user=user, limit=(20, hour)))
    assert more.statuses[0].limit_remaining == 15 and more.statuses[0].current_limit.requests_per_unit == 20
    assert ask(channel, "wire", descriptor(user=user, limit=(5, hour))).overall_code == OVER_LIMIT


@pytest.mark.parametrize("unit", [0, 8, 99, -1, 2**31 - 1])
def test_an_override_without_a_known_unit_is_the_callers_mistake(channel, user, unit):
    with pytest.raises(grpc.RpcError) as refused:
        ask(channel, "wire", descriptor(user=user, limit=(5, unit)))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "unit" in refused.value.details()


# === Mistakes of a caller ===


def test_no_domain_and_no_descriptors_are_the_callers_mistake(channel, user):
    for message in (
        rls_pb2.RateLimitRequest(domain="", descriptors=[descriptor(user=user)]),
        rls_pb2.RateLimitRequest(domain="wire"),
        rls_pb2.RateLimitRequest(),
    ):
        code, why = refused_with(channel, message.SerializeToString())
        assert code == grpc.StatusCode.INVALID_ARGUMENT and why


def test_a_domain_that_no_file_names_passes(channel, user):
    answer = ask(channel, "another", descriptor(user=user))
    assert answer.overall_code == OK and len(answer.statuses) == 1


def test_the_bounds_on_counts_hold_on_both_sides(channel, user):
    entry = (b"nobody", b"x")
    assert ask(channel, "wire", *[descriptor(nobody="x")] * 64).overall_code == OK
    too_many = rls_pb2.RateLimitRequest(domain="wire", descriptors=[descriptor(nobody="x")] * 65)
    assert refused_with(channel, too_many.SerializeToString())[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert refused_with(channel, raw_request("wire", *[entry] * 65))[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert refused_with(channel, raw_request("wire", *[entry] * 10_000))[0] == grpc.StatusCode.INVALID_ARGUMENT


# === Health and reflection ===


def test_health_knows_the_two_names(tollgate):
    assert tollgate.health("") == "SERVING"
    assert tollgate.health("ratelimit") == "SERVING"
    assert tollgate.health("nobody") == "NOT_FOUND"


OURS = [
    "envoy.service.ratelimit.v3.RateLimitRequest",
    "envoy.service.ratelimit.v3.RateLimitResponse",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
    "envoy.config.core.v3.HeaderValue",
]

# What the release of xds-protos does not know yet, though the Envoy of these tests does.
NEWER = {
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.is_negative_hits": 4,
    "envoy.type.v3.RateLimitUnit.WEEK": 7,
}


def test_reflection_lists_the_services(tollgate):
    services = ProtoReflectionDescriptorDatabase(v1_channel(tollgate.channel)).get_services()
    assert "envoy.service.ratelimit.v3.RateLimitService" in services
    assert "grpc.health.v1.Health" in services


@pytest.mark.parametrize("message", OURS)
def test_reflected_messages_agree_with_envoys_own(tollgate, message):
    database = ProtoReflectionDescriptorDatabase(v1_channel(tollgate.channel))
    ours = descriptor_pool.DescriptorPool(database).FindMessageTypeByName(message)
    envoys = descriptor_pool.Default().FindMessageTypeByName(message)
    assert compare(ours, envoys) > 0


def test_the_reflected_method_agrees_with_envoys_own(tollgate):
    database = ProtoReflectionDescriptorDatabase(v1_channel(tollgate.channel))
    name = "envoy.service.ratelimit.v3.RateLimitService"
    ours = descriptor_pool.DescriptorPool(database).FindServiceByName(name)
    envoys = descriptor_pool.Default().FindServiceByName(name)
    assert [as_proto(m) for m in ours.methods] == [as_proto(m) for m in envoys.methods]


def as_proto(method):
    proto = descriptor_pb2.MethodDescriptorProto()
    method.CopyToProto(proto)
    proto.ClearField("options")
    return proto


def compare(ours, envoys):
    """Each field of ours is Envoy's: name, number, label and type. Returns how many were compared."""
    compared = 0
    for field in ours.fields:
        if NEWER.get(field.full_name) == field.number:
            continue
        other = envoys.fields_by_number[field.number]
        assert (field.name, field.is_repeated) == (other.name, other.is_repeated), field.full_name
        # Keys and values are bytes in ours: the same on the wire, and nothing a client sends fails to decode.
        text = {field.TYPE_STRING, field.TYPE_BYTES}
        assert field.type == other.type or {field.type, other.type} == text, field.full_name
        if field.message_type:
            assert field.message_type.full_name == other.message_type.full_name
            if not field.message_type.full_name.startswith("google."):
                compared += compare(field.message_type, other.message_type)
        if field.enum_type:
            assert field.enum_type.full_name == other.enum_type.full_name
            assert values(field.enum_type) == values(other.enum_type)
        compared += 1
    return compared


def values(enum):
    return {v.name: v.number for v in enum.values if NEWER.get(f"{enum.full_name}.{v.name}") != v.number}


def v1_channel(channel):
    """grpcio's reflection client speaks v1alpha, whose messages are those of v1 under another name."""
    return V1Channel(channel)


class V1Channel:
    def __init__(self, channel):
        self.channel = channel

    def stream_stream(self, method, *args, **more):
        return self.channel.stream_stream(method.replace("v1alpha", "v1"), *args, **more)
