"""The rate limit service as an independent client sees it: Envoy's own messages, compiled by others.

`xds-protos` declares keys and values as `string`, so its classes can neither build nor send what Envoy sends for a
header that is no UTF-8; and the release it has knows no `is_negative_hits`. Both are written here as bytes.
"""

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import wrappers_pb2

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
OK = rls_pb2.RateLimitResponse.OK
OVER_LIMIT = rls_pb2.RateLimitResponse.OVER_LIMIT


def ask(channel, domain, *descriptors, hits=0, timeout=30):
    """One call. A descriptor is a RateLimitDescriptor, see `descriptor`."""
    request = rls_pb2.RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
    return ask_bytes(channel, request.SerializeToString(), timeout)


def ask_bytes(channel, message, timeout=30):
    """One call with these bytes as its message, whatever they are."""
    call = channel.unary_unary(METHOD, response_deserializer=rls_pb2.RateLimitResponse.FromString)
    return call(message, timeout=timeout)


def refused_with(channel, message, timeout=30):
    """The gRPC status and details for a message that gets no answer."""
    try:
        answer = ask_bytes(channel, message, timeout)
    except grpc.RpcError as e:
        return e.code(), e.details()
    raise AssertionError(f"answered: {answer}")


def descriptor(hits=None, limit=None, refund=False, **entries):
    """`descriptor(user="ann", hits=3)`; `limit` is (requests_per_unit, unit)."""
    made = ratelimit_pb2.RateLimitDescriptor(
        entries=[ratelimit_pb2.RateLimitDescriptor.Entry(key=k, value=v) for k, v in entries.items()]
    )
    if hits is not None:
        made.hits_addend.CopyFrom(wrappers_pb2.UInt64Value(value=hits))
    if limit is not None:
        made.limit.requests_per_unit, made.limit.unit = limit
    if refund:
        # is_negative_hits = 4, true. An unknown field, which the message keeps and sends.
        made.MergeFromString(b"\x20\x01")
    return made


def raw_request(domain, *entries):
    """A request with one descriptor whose keys and values are any bytes."""
    inside = b"".join(field(1, field(1, key) + field(2, value)) for key, value in entries)
    return field(1, domain.encode()) + field(2, inside)


def field(number, content):
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
