"""Nothing that clients send makes Tollgate grow without bound."""

from gateway import write_rules
from processes import Tollgate
from wire import ask_bytes, raw_request, refused_with

RULES = "domain: bounds\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 5 } }]\n"

# A debug build's allocator keeps pages that it has used; growth beyond this is a leak or a missing bound.
GROWTH_KIB = 96 * 1024


def test_memory_stays_bounded(folder, say):
    """A million-value attack in small: more keys than MEMORY_KEYS_MAX, large values, and mistakes."""
    rules = write_rules(folder / "bounded", RULES)
    with Tollgate(folder, rules, MEMORY_KEYS_MAX="2000") as tollgate:
        for n in range(2000):
            ask_bytes(tollgate.channel, raw_request("bounds", (b"user", b"warm %d" % n)))
        before = tollgate.memory_kib()
        for n in range(4000):
            ask_bytes(tollgate.channel, raw_request("bounds", (b"user", b"key %d" % n)))
        for n in range(200):
            ask_bytes(tollgate.channel, raw_request("bounds", (b"user", b"%d" % n + b"x" * (1 << 20))))
        for n in range(200):
            refused_with(tollgate.channel, raw_request("bounds", *[(b"user", b"%d" % n)] * 10_000))
        grown = tollgate.memory_kib() - before
    say(f"4,000 keys, 200 values of 1 MB and 200 requests of 10,000 entries: {grown} KiB more than before")
    assert grown < GROWTH_KIB
