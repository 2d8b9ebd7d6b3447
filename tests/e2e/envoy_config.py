"""Envoy's configuration as the tests need it: what a user would write, with the ports of the test.

One listener (`main`) limits each route through the rate limit filter, whose `failure_mode_deny` stays false as in a
stock Envoy: an error of the rate limit service lets the request pass, so an error is a bypass, and the tests count
errors. The upstream is a second listener of the same Envoy on a Unix socket, which answers 200 and reports the cost that
the request asked for in `x-cost`, as a language model reports its tokens.
"""

RATE_LIMIT_FILTER = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit"
ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}

# Envoy gives a rate limit service 20 ms. The tests share two cores with their clients and run a debug build, so that
# an answer may be late for no fault of its own; whether answers are fast is a benchmark's question.
ANSWER_WITHIN = "5s"


def config(tollgates, upstream_socket, routes, domain="e2e", ask_another=True):
    """`tollgates`: the addresses of their gRPC. `routes`: (prefix, rate_limits) pairs, the first that matches wins.
    `ask_another`: whether what reached no Tollgate is asked again."""
    return {
        "admin": {"address": address(0)},
        "static_resources": {
            "listeners": [
                listener("main", address(0), [rate_limit_filter(domain, ask_another)], limited_routes(routes)),
                listener("upstream", {"pipe": {"path": str(upstream_socket)}}, [], [upstream_route()]),
            ],
            "clusters": [
                cluster("backend", [{"pipe": {"path": str(upstream_socket)}}]),
                tollgate_cluster(tollgates),
            ],
        },
    }


def rate_limit_filter(domain, ask_another):
    retries = {"retry_policy": ASK_ANOTHER} if ask_another else {}
    return {
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": RATE_LIMIT_FILTER,
            "domain": domain,
            "timeout": ANSWER_WITHIN,
            "failure_mode_deny": False,
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "tollgate"}} | retries,
            },
        },
    }


# While a Tollgate ends, until its health is asked again, Envoy connects to a port that is closed. Only what provably
# reached no Tollgate is asked again, at once and somewhere else: anything else may have been charged.
ASK_ANOTHER = {
    "retry_on": "connect-failure,refused-stream",
    "num_retries": 3,
    # The longest pause is also the time that Envoy gives each try.
    "retry_back_off": {"base_interval": "0.001s", "max_interval": ANSWER_WITHIN},
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            },
        }
    ],
    "host_selection_retry_max_attempts": 5,
}


def tollgate_cluster(addresses):
    """Health checks and retries are those of `deploy/envoy.yaml`, which says why."""
    return cluster(
        "tollgate",
        addresses,
        typed_extension_protocol_options={
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        circuit_breakers={"thresholds": [{"max_retries": 1000}]},
        health_checks=[
            {
                "timeout": "5s",
                "interval": "1s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": "ratelimit"},
            }
        ],
    )


def cluster(name, addresses, **more):
    endpoints = [{"endpoint": {"address": a}} for a in addresses]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    } | more


def listener(name, where, filters, routes):
    return {
        "name": name,
        "address": where,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
                            ".HttpConnectionManager",
                            "stat_prefix": name,
                            # For the header of 50 kB that must be limited like any other.
                            "max_request_headers_kb": 96,
                            "http_filters": [*filters, ROUTER],
                            "route_config": {
                                "name": name,
                                "virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}],
                            },
                        },
                    }
                ]
            }
        ],
    }


def limited_routes(routes):
    """Envoy reads `hits_addend` and `apply_on_stream_done` only in the filter's configuration of a route, and the
    actions alone in the route itself; the tests use either where it may stand."""
    return [
        {
            "match": {"prefix": prefix},
            "route": {"cluster": "backend", "rate_limits": [] if costs(limits) else limits},
            "typed_per_filter_config": {
                "envoy.filters.http.ratelimit": {
                    "@type": f"{RATE_LIMIT_FILTER}PerRoute",
                    "rate_limits": limits if costs(limits) else [],
                }
            },
        }
        for prefix, limits in routes
    ]


def costs(limits):
    return any("hits_addend" in one for one in limits)


def upstream_route():
    return {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": "hello from the upstream\n"}},
        "response_headers_to_add": [
            {"header": {"key": "x-cost", "value": "%REQ(x-cost)%"}},
            {"header": {"key": "x-refund", "value": "%REQ(x-refund)%"}},
        ],
    }


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


# === Rate limit actions, as a route lists them ===


def header(name, key):
    """The header's value under `key`; no descriptor without the header."""
    return {"request_headers": {"header_name": name, "descriptor_key": key}}


def generic_key(value, key="generic_key"):
    return {"generic_key": {"descriptor_value": value, "descriptor_key": key}}


def header_match(name, exact, value, key="header_match"):
    match = {"name": name, "string_match": {"exact": exact}}
    return {"header_value_match": {"descriptor_key": key, "descriptor_value": value, "headers": [match]}}


REMOTE_ADDRESS = {"remote_address": {}}


def limit(*actions, **more):
    """One descriptor: its entries come from the actions in order. `more`: `hits_addend`, `apply_on_stream_done`."""
    return {"actions": list(actions)} | more
