"""A stock deployment of envoyproxy/ratelimit: the rules, the environment and the Envoy of its example, in our words, and
what its own integration tests and its README say is answered.

The fields, names and numbers are those of the example; only the unit is a parameter, so that no window ends while a test
runs. Nothing in here knows Tollgate.
"""

import envoy_config as ec

DOMAIN = "rl"


def rules(unit):
    """Two files, by name. `per(3)` is a limit of the example's three a minute."""

    def per(requests, **more):
        return {"rate_limit": {"unit": unit, "requests_per_unit": requests} | more}

    def replaces(*names):
        return {"replaces": [{"name": name} for name in names]}

    def entry(key, value=None, **more):
        return {"key": key} | ({"value": value} if value else {}) | more

    def quota(name, requests):
        metadata = {"service_with_quota": {"name": name}}
        return entry("service", name, quota_mode=True, metadata=metadata, **per(requests))

    destinations = [
        entry("destination_cluster", "mock", **per(1)),
        entry("destination_cluster", "fake", **per(2, name="fake_name")),
        entry("destination_cluster", "bkthomps", **per(2, **replaces("bkthomps"))),
        entry("destination_cluster", "override", **per(2, **replaces("banned_limit"))),
    ]
    beside_foo = [
        entry("bar", **per(3)),
        entry("bar", "bkthomps", **per(1, name="bkthomps")),
        entry("bar", "banned", **per(0, name="banned_limit")),
        entry("baz", rate_limit={"unit": "second", "requests_per_unit": 1}),
        entry("baz", "not-so-shady", **per(3)),
        entry("baz", "shady", shadow_mode=True, **per(3)),
        entry("bay", rate_limit={"unlimited": True}),
    ]
    return {
        "databases.yaml": {
            "domain": "mongo_cps",
            "descriptors": [
                entry("database", value, rate_limit={"unit": "second", "requests_per_unit": 500})
                for value in ("users", "default")
            ],
        },
        "example.yaml": {
            "domain": DOMAIN,
            "descriptors": [
                entry("category", "account", **per(4, **replaces("bkthomps", "fake_name"))),
                entry("source_cluster", "proxy", descriptors=destinations),
                entry("foo", descriptors=beside_foo, **per(2)),
                entry("unspec", detailed_metric=True, **per(2)),
                entry("qux", rate_limit={"unlimited": True}),
                quota("service_1", 1),
                quota("service_2", 2),
            ],
        },
    }


def environment(root, redis_port, statsd_port):
    """What its container is given; rules are in `root`/ratelimit/config."""
    return {
        "USE_STATSD": "true",
        "STATSD_HOST": "127.0.0.1",
        "STATSD_PORT": str(statsd_port),
        "LOG_LEVEL": "debug",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{redis_port}",
        "RUNTIME_ROOT": str(root),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_WATCH_ROOT": "false",
        "CONFIG_TYPE": "FILE",
        "CONFIG_GRPC_XDS_NODE_ID": "test-node-id",
        "CONFIG_GRPC_XDS_SERVER_URL": "ratelimit-xds-config-server:18000",
        "RESPONSE_DYNAMIC_METADATA": "true",
    }


# === Its Envoy ===


def envoy(ratelimit, sockets):
    """`ratelimit`: the address of the service. `sockets`: a folder for those of the two upstream services."""
    pipes = [{"pipe": {"path": f"{sockets}/service_{n}"}} for n in (1, 2)]
    upstreams = [ec.listener(f"service_{n}", pipes[n - 1], [], [serves(n)]) for n in (1, 2)]
    filters = [rate_limit_filter(), header_of_metadata(), metadata_of_header()]
    return {
        # Entries of `source_cluster` have this name.
        "node": {"id": "proxy", "cluster": "proxy"},
        "admin": {"address": ec.address(0)},
        "static_resources": {
            "listeners": [ec.listener("main", ec.address(0), filters, ROUTES), *upstreams],
            "clusters": [
                ec.tollgate_cluster([ratelimit]) | {"name": "tollgate"},
                ec.cluster("mock", pipes[:1]),
                two_services(pipes),
            ],
        },
    }


def serves(n):
    return {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": f"Hello World from Service {n}"}},
        "response_headers_to_add": [{"header": {"key": "x-served-by", "value": f"service_{n}"}}],
    }


def rate_limit_filter():
    # A stock Envoy gives 20 ms, and lets pass what is not answered by then; here answers are judged, not their speed.
    return {
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": ec.RATE_LIMIT_FILTER,
            "domain": DOMAIN,
            "request_type": "external",
            "stage": 0,
            "timeout": ec.ANSWER_WITHIN,
            "rate_limited_as_resource_exhausted": True,
            "failure_mode_deny": False,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {
                "grpc_service": {"envoy_grpc": {"cluster_name": "tollgate"}},
                "transport_api_version": "V3",
            },
        },
    }


SERVICE_HEADER = "x-envoy-service-with-quota"


def header_of_metadata():
    """The service that has quota left, out of the answer's dynamic metadata."""
    value = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:service_with_quota:name)%"
    header = {"header": {"key": SERVICE_HEADER, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return {
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [{"append": header}]},
        },
    }


def metadata_of_header():
    """And to it the request goes."""
    found = {"metadata_namespace": "envoy.lb", "key": "service", "type": "STRING"}
    return {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [{"header": SERVICE_HEADER, "on_header_present": found}],
        },
    }


def two_services(pipes):
    def locality(n):
        name = f"service_{n}"
        return {
            "locality": {"region": f"region_{n}"},
            "metadata": {"filter_metadata": {"envoy.cluster.locality": {"name": name}}},
            "lb_endpoints": [
                {
                    "endpoint": {"address": pipes[n - 1]},
                    "metadata": {"filter_metadata": {"envoy.lb": {"service": name}}},
                }
            ],
        }

    return ec.cluster("multiservice", []) | {
        "lb_subset_config": {"fallback_policy": "ANY_ENDPOINT", "subset_selectors": [{"keys": ["service"]}]},
        "load_assignment": {"cluster_name": "multiservice", "endpoints": [locality(1), locality(2)]},
    }


def route(prefix, *limits, cluster="mock"):
    return {"match": {"prefix": prefix}, "route": {"cluster": cluster, "rate_limits": list(limits)}}


def route_with_costs(prefix, *limits, cluster="mock"):
    own = {
        "@type": f"{ec.RATE_LIMIT_FILTER}PerRoute",
        "vh_rate_limits": "INCLUDE",
        "override_option": "INCLUDE_POLICY",
        "rate_limits": list(limits),
    }
    return route(prefix, cluster=cluster) | {"typed_per_filter_config": {"envoy.filters.http.ratelimit": own}}


def headers(*names):
    """One descriptor of these headers, each under its own name."""
    return ec.limit(*(ec.header(name, name) for name in names))


def service(n):
    return ec.generic_key(f"service_{n}", key="service")


LOOK, ONE_WHEN_DONE = {"hits_addend": {"number": 0}}, {"hits_addend": {"number": 1}, "apply_on_stream_done": True}
WHO_SERVED = {
    "metadata": {
        "descriptor_key": "service",
        "source": "CLUSTER_LOCALITY_ENTRY",
        "metadata_key": {"key": "envoy.cluster.locality", "path": [{"key": "name"}]},
    }
}

ROUTES = [
    route("/test", ec.limit({"source_cluster": {}}, {"destination_cluster": {}})),
    route("/header", headers("foo")),
    route("/twoheader", headers("foo", "bar"), headers("foo", "baz")),
    route("/fourheader", headers("foo", "bar"), headers("source_cluster", "destination_cluster")),
    route(
        "/fiveheader", headers("foo", "bar"), headers("source_cluster", "destination_cluster"), headers("category")
    ),
    route("/unspec", headers("unspec")),
    route_with_costs("/quota", ec.limit(service(1)), ec.limit(service(2))),
    route_with_costs("/tokenquota", ec.limit(service(2), **LOOK), ec.limit(service(2), **ONE_WHEN_DONE)),
    route_with_costs(
        "/multiservice-tokenquota",
        ec.limit(service(1), **LOOK),
        ec.limit(service(2), **LOOK),
        ec.limit(WHO_SERVED, **ONE_WHEN_DONE),
        cluster="multiservice",
    ),
]


# === What is answered ===


def ask(path, count, **sent):
    return [(path, sent)] * count


BANNED = {"foo": "bkthomps", "bar": "banned"}
MINE = {"foo": "my_foo", "bar": "bkthomps", "source_cluster": "proxy"}

# By what they are about: requests in order, and what the reference answers. Statuses, and who served.
SCENARIOS = {
    "one key, two keys, and the clusters of a route": (
        ask("/test", 2)
        + ask("/header", 3, foo="ann")
        + ask("/twoheader", 1, foo="test", baz="shady")
        + ask("/twoheader", 4, foo="pelle", baz="not-so-shady")
        + ask("/unspec", 3, unspec="unspecified_value"),
        [200, 429] + [200, 200, 429] + [200] + [200, 200, 200, 429] + [200, 200, 429],
    ),
    "a limit on trial never refuses": (ask("/twoheader", 6, foo="pelle", baz="shady"), [200] * 6),
    "a limit replaces another by its name": (
        ask("/twoheader", 1, **BANNED)
        + ask("/fourheader", 1, **BANNED, source_cluster="proxy", destination_cluster="mock")
        + ask("/fourheader", 3, **BANNED, source_cluster="proxy", destination_cluster="override"),
        [429, 429] + [200, 200, 429],
    ),
    "what is replaced keeps its own count": (
        ask("/fourheader", 3, **MINE, destination_cluster="bkthomps")
        + ask("/fourheader", 2, **MINE, destination_cluster="not_bkthomps")
        + ask("/fourheader", 1, **MINE, destination_cluster="bkthomps"),
        [200, 200, 429] + [200, 429] + [429],
    ),
    "a limit replaces several": (
        ask("/fiveheader", 5, **MINE, destination_cluster="fake", category="account")
        + ask("/twoheader", 2, foo="foo_2", bar="bkthomps")
        + ask("/fourheader", 3, foo="foo_3", bar="bar_3", source_cluster="proxy", destination_cluster="fake")
        + ask("/fiveheader", 1, **MINE, destination_cluster="fake", category="account"),
        [200] * 4 + [429] + [200, 429] + [200, 200, 429] + [429],
    ),
    "quotas refuse when all of them are over": (ask("/quota", 3), [200, 200, 429]),
    "a cost that is charged when a request is done": (ask("/tokenquota", 4), [200] * 3 + [429]),
    "requests go where quota is left": (
        ask("/multiservice-tokenquota", 6),
        ["service_1"] * 2 + ["service_2"] * 3 + [429],
    ),
}
