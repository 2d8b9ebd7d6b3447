"""An Envoy in front of Tollgates, and the question that every test ends with: did any rate limit call fail?"""

import contextlib
import pathlib
import tempfile

import envoy_config
from processes import Envoy


@contextlib.contextmanager
def gateway(folder, tollgates, routes, **more):
    """`more`: see `envoy_config.config`. Afterwards, no rate limit call may have failed: Envoy lets such a request pass, so it would look like a 200."""
    # A Unix socket's path must be short, so it has a folder of its own.
    with tempfile.TemporaryDirectory(prefix="e2e") as sockets:
        socket = pathlib.Path(sockets) / "upstream"
        config = envoy_config.config([t.envoy_address for t in tollgates], socket, routes, **more)
        with Envoy(folder, config) as envoy:
            yield envoy
            assert_no_errors(envoy)


def ratelimit_stats(envoy):
    """`ok`, `over_limit`, `error`, `failure_mode_allowed`: what Envoy counted of its rate limit calls."""
    stats = envoy.stats(r"^cluster\.backend\.ratelimit\.")
    return {name.rsplit(".", 1)[1]: count for name, count in stats.items()}


def assert_no_errors(envoy):
    stats = ratelimit_stats(envoy)
    assert stats.get("error", 0) == 0 and stats.get("failure_mode_allowed", 0) == 0, stats


def write_rules(folder, text):
    """A rule directory with one file."""
    rules = pathlib.Path(folder)
    rules.mkdir(parents=True, exist_ok=True)
    (rules / "e2e.yaml").write_text(text)
    return rules
