"""However many clients ask however many Tollgates at once: the limit is granted exactly."""

import contextlib
import threading

import pytest

from gateway import write_rules
from processes import Redis, Tollgate
from wire import OK, ask, descriptor

TOLLGATES = 4
CLIENTS = 64
LIMIT = 300
EACH = 10

# Rates so slow that nothing comes back while the test runs: what is granted is the burst, or what a window has. (Not
# one a year for the bursts: 300 years of debt are beyond the 142 that GCRA remembers.)
ALGORITHMS = {
    "fixed_window": f"unit: year, requests_per_unit: {LIMIT}",
    "sliding_window": f"unit: year, requests_per_unit: {LIMIT}",
    "token_bucket": f"unit: day, requests_per_unit: 1, burst: {LIMIT}",
    "gcra": f"unit: day, requests_per_unit: 1, burst: {LIMIT}",
}
RULES = "domain: exact\ndescriptors:\n" + "".join(
    f"  - {{ key: {name}, rate_limit: {{ {numbers}, algorithm: {name} }} }}\n" for name, numbers in ALGORITHMS.items()
)


@pytest.fixture(scope="module")
def fleet(folder):
    rules = write_rules(folder / "exact", RULES)
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(Redis(folder))
        yield [
            stack.enter_context(Tollgate(folder, rules, BACKEND_TYPE="redis", REDIS_URL=redis.url))
            for _ in range(TOLLGATES)
        ]


@pytest.mark.parametrize("hits", [1, 7])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_64_clients_of_4_tollgates_are_granted_exactly_the_limit(fleet, algorithm, hits, say):
    granted = []
    together = threading.Barrier(CLIENTS)
    # The same state for all; each cost has a budget of its own.
    asked = descriptor(**{algorithm: f"cost {hits}"}, hits=hits)

    def run(tollgate):
        # A connection each: they are dealt to all threads of the Tollgate.
        with tollgate.connect() as channel:
            together.wait()
            granted.extend(ask(channel, "exact", asked).overall_code == OK for _ in range(EACH))

    threads = [threading.Thread(target=run, args=(fleet[i % TOLLGATES],)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(granted) == CLIENTS * EACH, "a call failed"
    say(f"{len(granted)} requests of {hits} at {TOLLGATES} Tollgates: {granted.count(True)} granted, limit {LIMIT}")
    assert granted.count(True) == LIMIT // hits
