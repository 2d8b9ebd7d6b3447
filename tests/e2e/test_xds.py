"""Rules from a management server of another make: go-control-plane, as Envoy Gateway has it."""

import time

import grpc
import pytest

from processes import Tollgate, XdsServer, wait_until
from wire import OK, OVER_LIMIT, ask, descriptor

NODE = "ratelimit"

# No file is read: rules come from elsewhere.
NO_RULES = "/nowhere"


def follow(folder, server, serving=True, **settings):
    """A Tollgate that follows this server, with short waits."""
    return Tollgate(
        folder,
        NO_RULES,
        serving=serving,
        CONFIG_TYPE="GRPC_XDS_SOTW",
        CONFIG_GRPC_XDS_SERVER_URL=server.address,
        CONFIG_GRPC_XDS_NODE_ID=NODE,
        CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL="50ms",
        XDS_CLIENT_BACKOFF_INITIAL_INTERVAL="50ms",
        XDS_CLIENT_BACKOFF_MAX_INTERVAL="200ms",
        **settings,
    )


def resource(domain, *descriptors, name=None):
    return {"name": name or f"gateway/{domain}", "domain": domain, "descriptors": list(descriptors)}


def rule(key, requests, value="", **fields):
    limit = {"unit": "YEAR", "requests_per_unit": requests}
    return {"key": key, "value": value, "rate_limit": limit} | fields


def limit_of(tollgate, domain="shop", **entries):
    """The number of the rule that decides, or None where there is none. Asked without spending."""
    answer = ask(tollgate.channel, domain, descriptor(hits=0, **entries))
    status = answer.statuses[0]
    return status.current_limit.requests_per_unit if status.HasField("current_limit") else None


def connected(tollgate):
    """What the metrics say about the management server."""
    lines = [l for l in tollgate.http("/metrics").splitlines() if l.startswith("tollgate_management_server_connected{")]
    assert len(lines) == 1 and 'server="127.0.0.1:' in lines[0]
    return lines[0].rsplit(" ", 1)[1] == "1"


def test_rules_are_accepted_changed_and_removed(folder, say):
    with XdsServer(folder) as server:
        # Served before anybody asks, as after a restart of the client.
        server.serve(NODE, "1", resource("shop", rule("user", 3)), resource("api", rule("user", 7)))
        settings = {
            "CONFIG_GRPC_XDS_NODE_METADATA": "team=search",
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "authorization:Bearer a:b",
        }
        with follow(folder, server, **settings) as tollgate:
            codes = [ask(tollgate.channel, "shop", descriptor(user="ann")).overall_code for _ in range(4)]
            assert codes == [OK] * 3 + [OVER_LIMIT]
            assert limit_of(tollgate, "api", user="ann") == 7
            first, accepted = server.requests()[0], server.answer_to("1")
            assert (first["node"], first["metadata"], first["version"]) == (NODE, {"team": "search"}, "")
            assert first["authorization"] == ["Bearer a:b"]
            assert (accepted["version"], accepted["error"]) == ("1", "")
            say(f"ACK: version {accepted['version']} of {accepted['type_url']} for node {first['node']}, 2 resources")

            # A raised limit is in force at once, and what was spent stays spent.
            server.serve(NODE, "2", resource("shop", rule("user", 5)), resource("api", rule("user", 7)))
            assert server.answer_to("2")["error"] == ""
            codes = [ask(tollgate.channel, "shop", descriptor(user="ann")).overall_code for _ in range(3)]
            assert codes == [OK] * 2 + [OVER_LIMIT]

            server.serve(NODE, "3", resource("shop", rule("user", 5)))
            assert server.answer_to("3")["error"] == ""
            assert (limit_of(tollgate, "shop", user="ann"), limit_of(tollgate, "api", user="ann")) == (5, None)
            server.serve(NODE, "4")
            assert server.answer_to("4")["error"] == ""
            assert limit_of(tollgate, "shop", user="ann") is None
            say("removal: one resource of two in version 3, the last one in version 4")


def test_bad_rules_are_refused_with_their_reasons_and_the_good_ones_stay(folder, say):
    with XdsServer(folder) as server, follow(folder, server, serving=False) as tollgate:
        bad = resource("shop", rule("", 3), {"key": "user", "rate_limit": {"requests_per_unit": 3}}, name="bad")
        server.serve(NODE, "1", bad)
        refused = server.answer_to("1")
        assert refused["version"] == ""
        assert tollgate.health() == "NOT_SERVING"
        with pytest.raises(grpc.RpcError) as failed:
            ask(tollgate.channel, "shop", descriptor(user="ann"))
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE

        server.serve(NODE, "2", resource("shop", rule("user", 3)))
        assert server.answer_to("2")["version"] == "2"
        wait_until("health", lambda: tollgate.health() == "SERVING")

        server.serve(NODE, "3", bad, resource("shop", rule("user", 9)))
        refused = server.answer_to("3")
        assert refused["version"] == "2"
        for reason in ["a descriptor names a key", "a limit names a `unit`", "a second file for the domain `shop`"]:
            assert reason in refused["error"]
        assert limit_of(tollgate, user="ann") == 3
        assert "a descriptor names a key" in tollgate.http("/ready")
        say(f"NACK of version 3, version {refused['version']} stays:")
        for line in refused["error"].splitlines():
            say(f"  {line}")

        server.serve(NODE, "4", resource("shop", rule("user", 9)))
        assert server.answer_to("4")["error"] == ""
        assert limit_of(tollgate, user="ann") == 9


def test_a_management_server_that_restarts_takes_no_rules_away(folder, say):
    with XdsServer(folder) as server:
        server.serve(NODE, "1", resource("shop", rule("user", 3)))
        with follow(folder, server) as tollgate:
            port = server.address.rsplit(":", 1)[1]
            assert connected(tollgate)
            server.stop()
            wait_until("the loss is told", lambda: "no connection" in tollgate.output())
            assert not connected(tollgate)
            assert tollgate.health() == "SERVING" and limit_of(tollgate, user="ann") == 3
            # Its versions begin anew, with other rules.
            with XdsServer(folder, port=port) as again:
                again.serve(NODE, "1", resource("shop", rule("user", 4)))
                assert again.answer_to("1")["error"] == ""
                assert again.requests()[0]["version"] == "" and connected(tollgate)
                assert limit_of(tollgate, user="ann") == 4
            say("restart: 3 a year while it was away, 4 under the same version 1 afterwards")


def test_ten_thousand_descriptors_in_one_resource(folder, say):
    many = [rule("user", 1 + n, value=f"user-{n}") for n in range(10_000)]
    with XdsServer(folder) as server, follow(folder, server, serving=False) as tollgate:
        began = time.monotonic()
        server.serve(NODE, "1", resource("shop", *many))
        assert server.answer_to("1")["error"] == ""
        took = time.monotonic() - began
        assert limit_of(tollgate, user="user-0") == 1
        assert limit_of(tollgate, user="user-9999") == 10_000
        assert limit_of(tollgate, user="user-10000") is None
        say(f"10000 descriptors in one resource, from the snapshot to the ACK: {took:.1f} s with the debug binary")


def test_tls_with_a_client_certificate_that_is_renewed(folder, say):
    good, stranger = XdsServer.issue(folder / "good"), XdsServer.issue(folder / "stranger")
    mine = folder / "mine"
    mine.mkdir()

    def take(name, source):
        # Renamed, as a secret's files change.
        (mine / f"{name}.new").write_bytes((source / name).read_bytes())
        (mine / f"{name}.new").rename(mine / name)

    take("ca.pem", good)
    take("client.pem", stranger)
    take("client.key", stranger)
    settings = {
        "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": str(mine / "ca.pem"),
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": str(mine / "client.pem"),
        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": str(mine / "client.key"),
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN": "server.example",
    }
    with XdsServer(folder, tls=good) as server:
        server.serve(NODE, "1", resource("shop", rule("user", 3)))
        with follow(folder, server, serving=False, **settings) as tollgate:
            told = wait_until("the refusal is told", lambda: [l for l in tollgate.output().splitlines() if "WARN" in l])
            say(f"a stranger's certificate: {told[0].split('WARN ')[1]}")
            assert server.requests() == [] and tollgate.health() == "NOT_SERVING"
            take("client.pem", good)
            take("client.key", good)
            assert server.answer_to("1")["error"] == ""
            wait_until("health", lambda: tollgate.health() == "SERVING")
            assert limit_of(tollgate, user="ann") == 3
            say("the right one, without a restart: accepted")
