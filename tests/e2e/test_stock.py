"""Whoever runs envoyproxy/ratelimit changes the image and nothing else: its example, with our binary and a real Envoy.

With TOLLGATE_COMPAT=reference each answer is the reference's. Without, those differ that a row of the README's
"Differences" is about, and the test says which.
"""

import contextlib
import json
import pathlib
import socketserver
import tempfile
import threading

import pytest

import stock
from gateway import assert_no_errors
from http_client import Client
from processes import Envoy, Redis, Tollgate, wait_until

LOOKS = "`hits_addend: 0` of a descriptor"

# Answers without compat where they are others, and the row that says why: a look is OK only while one more would pass,
# so a budget ends with its last hit and not one later.
OTHERWISE = {
    "a cost that is charged when a request is done": (LOOKS, [200] * 2 + [429] * 2),
    "requests go where quota is left": (LOOKS, ["service_1"] + ["service_2"] * 2 + [429] * 3),
}


@pytest.mark.parametrize("scenario", stock.SCENARIOS)
@pytest.mark.parametrize("compat", [{"TOLLGATE_COMPAT": "reference"}, {}], ids=["compat", "own"])
def test_the_example_of_the_reference_is_answered_alike(folder, say, scenario, compat):
    requests, there = stock.SCENARIOS[scenario]
    row, here = OTHERWISE.get(scenario, (None, there)) if not compat else (None, there)
    with deployed(folder, compat) as (envoy, _):
        seen = answers(envoy, requests)
        assert_no_errors(envoy)
    say(f"{scenario}: {seen}" + (f", the reference {there}: {row}" if row else ""))
    assert seen == here


def test_its_dashboards_find_their_metrics(folder, say):
    with deployed(folder, {"STATS_FLUSH_INTERVAL": "1s"}) as (envoy, statsd):
        requests, there = stock.SCENARIOS["one key, two keys, and the clusters of a route"]
        assert answers(envoy, requests) == there
        wanted = [
            "ratelimit.service.rate_limit.rl.unspec_unspecified_value.over_limit:1|c",
            "ratelimit.service.rate_limit.rl.unspec_unspecified_value.total_hits:3|c",
            "ratelimit.service.rate_limit.rl.source_cluster_proxy.destination_cluster_mock.over_limit:1|c",
            "ratelimit.service.rate_limit.rl.foo.baz_not-so-shady.within_limit:3|c",
        ]
        wait_until("its metrics", lambda: all(line in statsd.lines for line in wanted), 30)
    for line in wanted:
        say(line)


@contextlib.contextmanager
def deployed(folder, more):
    """Redis, statsd, Tollgate and Envoy as in the example. `more`: settings besides."""
    with contextlib.ExitStack() as stack:
        root, sockets = (pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="e2e"))) for _ in range(2))
        config = root / "ratelimit" / "config"
        config.mkdir(parents=True)
        for name, rules in stock.rules("year").items():
            (config / name).write_text(json.dumps(rules))
        redis, statsd = stack.enter_context(Redis(folder)), stack.enter_context(Statsd())
        settings = stock.environment(root, redis.port, statsd.port) | more
        tollgate = stack.enter_context(Tollgate(folder, rules=None, **settings))
        yield stack.enter_context(Envoy(folder, stock.envoy(tollgate.envoy_address, sockets))), statsd


def answers(envoy, requests):
    """The status of each, or who served it where that can be told apart."""
    client, seen = Client(envoy.port), []
    for path, headers in requests:
        calls = calls_of(envoy)
        # Not by Client.get, which writes dashes for the underscores of the example's headers.
        client.connection.request("GET", path, headers=headers)
        answer = client.connection.getresponse()
        answer.read()
        if answer.status == 200 and "tokenquota" in path:
            # Charged when it is done, which is after its client has the answer.
            wait_until("the charge", lambda: calls_of(envoy) >= calls + 2)
        served = path.startswith("/multiservice") and answer.status == 200
        seen.append(answer.getheader("x-served-by") if served else answer.status)
    return seen


def calls_of(envoy):
    """How many calls of the rate limit service are done."""
    return envoy.stats(r"^cluster\.tollgate\.upstream_rq_completed$").get("cluster.tollgate.upstream_rq_completed", 0)


class Statsd(socketserver.ThreadingTCPServer):
    """Takes lines, as statsd-exporter does."""

    daemon_threads = True

    def __init__(self):
        self.lines = []
        super().__init__(("127.0.0.1", 0), self.Lines)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *of):
        self.shutdown()
        super().__exit__(*of)

    class Lines(socketserver.StreamRequestHandler):
        def handle(self):
            self.server.lines.extend(line.decode().strip() for line in self.rfile)
