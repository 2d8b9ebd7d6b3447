"""How a real Envoy is connected: over a Unix socket, and by connections that are told to end while requests run."""

import pathlib
import tempfile

import envoy_config as ec
from gateway import gateway, ratelimit_stats, write_rules
from http_client import Client, Load
from processes import Tollgate, wait_until

RULES = """\
domain: e2e
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 5 }
  - key: user
    value: load
    rate_limit: { unit: year, requests_per_unit: 1000000 }
"""
ROUTES = [("/", [ec.limit(ec.header("x-user", "user"))])]


def test_envoy_asks_over_a_unix_socket(folder, say):
    rules = write_rules(folder / "socket", RULES)
    with tempfile.TemporaryDirectory(prefix="e2e") as sockets:
        path = pathlib.Path(sockets) / "grpc.sock"
        with Tollgate(folder, rules, GRPC_UDS=str(path), GRPC_UDS_MODE="600") as tollgate:
            assert tollgate.grpc_address == f"unix:{path}"
            with gateway(folder, [tollgate], ROUTES) as envoy:
                client = Client(envoy.port)
                statuses = [client.get("/", x_user="ann")[0] for _ in range(6)]
        assert not path.exists()
    say(f"over {path.name}: {statuses}")
    assert statuses == [200] * 5 + [429]


def test_connections_that_are_too_old_end_under_load_and_no_request_fails(folder, say):
    """GRPC_MAX_CONNECTION_AGE, with an Envoy that asks nobody twice: a request that the old connection loses would be
    let pass unasked, and counted as an error."""
    rules = write_rules(folder / "age", RULES)
    age = {"GRPC_MAX_CONNECTION_AGE": "200ms", "GRPC_MAX_CONNECTION_AGE_GRACE": "30s"}
    with Tollgate(folder, rules, **age) as tollgate:
        with gateway(folder, [tollgate], ROUTES, ask_another=False) as envoy:
            with Load([envoy.port], lambda client: (client.get("/", x_user="load")[0], None)) as load:
                wait_until("connections end", lambda: told_to_end(envoy) >= 20)
            seen, ended, stats = load.seen, told_to_end(envoy), ratelimit_stats(envoy)
    say(f"{seen.total()} requests, {ended} connections told to end: {dict(seen.statuses)}, {stats.get('error', 0)} errors")
    assert not seen.broken and set(seen.statuses) == {200}
    assert stats["ok"] == seen.total()


def told_to_end(envoy):
    """Connections to Tollgate that got a GOAWAY."""
    return envoy.stats(r"^cluster\.tollgate\.upstream_cx_close_notify$").get("cluster.tollgate.upstream_cx_close_notify", 0)
