"""Several Envoys, several Tollgates, and changes under load: nobody gets more, nobody gets an error."""

import os
import pathlib
import signal
import threading

import pytest

import envoy_config as ec
from gateway import gateway, ratelimit_stats, write_rules
from http_client import Client, Load
from processes import Redis, Tollgate, wait_until

ROUTES = [("/", [ec.limit(ec.header("x-user", "user"))])]


# === One budget ===


def test_two_envoys_and_two_tollgates_share_one_budget(folder, say):
    rules = write_rules(
        folder / "shared", "domain: e2e\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 50 } }]"
    )
    with Redis(folder) as redis:
        settings = {"BACKEND_TYPE": "redis", "REDIS_URL": redis.url}
        with Tollgate(folder, rules, **settings) as first, Tollgate(folder, rules, **settings) as second:
            with gateway(folder, [first], ROUTES) as one, gateway(folder, [second], ROUTES) as other:
                statuses = race([one.port, other.port], clients=8, requests=25)
                each = [ratelimit_stats(envoy) for envoy in (one, other)]
    say(f"200 requests of 8 clients at two Envoys: {statuses.count(200)} x 200, {statuses.count(429)} x 429")
    say(f"the Envoys allowed {each[0]['ok']} and {each[1]['ok']}")
    assert statuses.count(200) == 50 and statuses.count(429) == 150
    assert each[0]["ok"] + each[1]["ok"] == 50


def race(ports, clients, requests):
    """All clients at once, each with `requests` of one user; the statuses of all."""
    statuses = []
    together = threading.Barrier(clients)

    def run(port):
        client = Client(port)
        together.wait()
        statuses.extend(client.get("/", x_user="ann")[0] for _ in range(requests))

    threads = [threading.Thread(target=run, args=(ports[i % len(ports)],)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == clients * requests, "a client broke"
    return statuses


# === Rules that change ===

# Two rule sets that differ in name and number, so that an answer made of both would show.
NUMBERS = {"old": 1_000_000, "new": 2_000_000}
POLICIES = {name: f'"{name}";q={number};w=31536000' for name, number in NUMBERS.items()}


def rules_text(name):
    return f"""\
domain: e2e
descriptors:
  - key: user
    rate_limit: {{ name: {name}, unit: year, requests_per_unit: {NUMBERS[name]} }}
"""


class RenameOver:
    """As editors and deployment tools replace a file."""

    def __init__(self, root):
        self.rules = root
        root.mkdir()

    def put(self, text):
        temporary = self.rules / ".e2e.yaml.tmp"
        temporary.write_text(text)
        temporary.rename(self.rules / "e2e.yaml")


class WriteInPlace(RenameOver):
    """As `cp` and a careless editor do: the file is empty for a moment."""

    def put(self, text):
        (self.rules / "e2e.yaml").write_text(text)


class ConfigMap(RenameOver):
    """As Kubernetes mounts one: `e2e.yaml -> ..data/e2e.yaml`, `..data -> ..1`, and a change swaps `..data`."""

    def __init__(self, root):
        super().__init__(root)
        self.version = 0

    def put(self, text):
        self.version += 1
        version = self.rules / f"..{self.version}"
        version.mkdir()
        (version / "e2e.yaml").write_text(text)
        link = self.rules / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.rules / "..data")
        if self.version == 1:
            (self.rules / "e2e.yaml").symlink_to(pathlib.Path("..data") / "e2e.yaml")


SWAPS = 20
BETWEEN = 60  # requests


@pytest.mark.parametrize("change", [RenameOver, ConfigMap, WriteInPlace])
def test_rules_change_under_load_without_one_error(folder, change, say):
    directory = change(folder / change.__name__)
    directory.put(rules_text("old"))
    with Tollgate(folder, directory.rules) as tollgate, gateway(folder, [tollgate], ROUTES) as envoy:
        probe = Client(envoy.port)
        with Load([envoy.port], ask_for_policy) as load:
            wait_until("the load runs", lambda: load.seen.total() > 100)
            for name in ["new", "old"] * (SWAPS // 2):
                directory.put(rules_text(name))
                wait_until(f"{name} rules in force", lambda: policy(probe) == POLICIES[name], 15)
                seen = load.seen.total()
                wait_until("requests under these rules", lambda: load.seen.total() > seen + BETWEEN)
            # A mistake changes nothing, and the next good edit is taken.
            directory.put("domain: e2e\ndescriptors: [{ key: user, rate_limit: { unit: fortnight } }]\n")
            wait_until("the mistake is told", lambda: "fortnight" in tollgate.output(), 15)
            assert policy(probe) == POLICIES["old"]
            directory.put(rules_text("new"))
            wait_until("mended rules in force", lambda: policy(probe) == POLICIES["new"], 15)
        seen = load.seen
        errors = ratelimit_stats(envoy).get("error", 0)
        # Spent stays spent: the counter that the first rules began has counted each request of the load.
        assert counted(probe, "load") == seen.total()
    say(f"{change.__name__}: {seen.total()} requests, {SWAPS + 1} changes and a mistake, {errors} errors")
    say(f"    {dict(seen.statuses)}, {seen.notes[POLICIES['old']]} by old rules, {seen.notes[POLICIES['new']]} by new")
    assert not seen.broken
    assert set(seen.statuses) == {200}
    assert set(seen.notes) == set(POLICIES.values()), "an answer was of neither rule set"


def ask_for_policy(client, user="load"):
    status, headers = client.get("/", x_user=user)
    return status, headers.get("ratelimit-policy")


def policy(client):
    return ask_for_policy(client, "probe")[1]


def counted(client, user):
    """How many hits of this user were counted, before this request."""
    _, headers = client.get("/", x_user=user)
    quota = int(headers["ratelimit-policy"].split("q=")[1].split(";")[0])
    left = int(headers["ratelimit"].split("r=")[1].split(";")[0])
    return quota - left - 1


# === A Tollgate that ends ===


def test_a_tollgate_ends_under_load_and_no_request_fails(folder, say):
    """A rolling update: SIGTERM while a second Tollgate is there. Each request is charged once and none is let pass
    unasked."""
    rules = write_rules(folder / "rolling", rules_text("old"))
    with Redis(folder) as redis:
        settings = {"BACKEND_TYPE": "redis", "REDIS_URL": redis.url}
        with Tollgate(folder, rules, **settings) as leaving, Tollgate(folder, rules, **settings) as staying:
            with gateway(folder, [leaving, staying], ROUTES) as envoy:
                wait_until("both are healthy", lambda: healthy(envoy) == 2)
                with Load([envoy.port], ask_for_policy) as load:
                    wait_until("the load runs", lambda: load.seen.total() > 300)
                    os.kill(leaving.child.pid, signal.SIGTERM)
                    wait_until("the Tollgate has ended", lambda: not leaving.alive(), 30)
                    after = load.seen.total()
                    wait_until("the load goes on", lambda: load.seen.total() > after + 300)
                seen = load.seen
                assert leaving.child.returncode == 0, leaving.output()[-2000:]
                stats = ratelimit_stats(envoy)
                assert counted(Client(envoy.port), "load") == seen.total()
    say(f"{seen.total()} requests around a SIGTERM: {dict(seen.statuses)}, {stats.get('error', 0)} errors, exit code 0")
    assert not seen.broken and set(seen.statuses) == {200}
    assert stats["ok"] >= seen.total()


def healthy(envoy):
    return envoy.stats(r"^cluster\.tollgate\.membership_healthy$").get("cluster.tollgate.membership_healthy", 0)
