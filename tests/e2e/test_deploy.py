"""`deploy/envoy.yaml`, which people paste: it is valid, and it limits."""

import pathlib
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gateway import write_rules
from http_client import Client
from processes import ROOT, Envoy, Tollgate, envoy_binary, wait_until

CONFIG = ROOT / "deploy/envoy.yaml"
RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 5 }
  - key: remote_address
    descriptors:
      - key: path
        rate_limit: { unit: year, requests_per_unit: 8 }
  - key: tokens
    rate_limit: { unit: year, requests_per_unit: 100 }
"""


def test_the_configuration_is_valid_as_it_stands():
    checked = subprocess.run(
        [envoy_binary(), "--mode", "validate", "-c", CONFIG], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0 and "OK" in checked.stdout, checked.stdout + checked.stderr
    warnings = [line for line in checked.stderr.splitlines() if re.search(r"\[(warning|error)\]", line)]
    # One of Envoy's own about overload protection is about no field of ours.
    assert not [w for w in warnings if "deprecated" in w], warnings


def test_the_configuration_limits_when_only_ports_are_changed(folder, say):
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    with Tollgate(folder, write_rules(folder / "deploy", RULES)) as tollgate:
        text = CONFIG.read_text()
        ports = {"9901": 0, "10000": 0, "8081": tollgate.grpc_port, "9000": upstream.server_port}
        for port, instead in ports.items():
            assert text.count(f"port_value: {port} ") == 1
            text = text.replace(f"port_value: {port} ", f"port_value: {instead} ")
        # See ANSWER_WITHIN in envoy_config.py.
        text = text.replace(": 0.02s", ": 5s")
        with Envoy(folder, text, listeners=["http"]) as envoy:
            client = Client(envoy.ports["http"])
            ann = [client.get("/", x_user="ann")[0] for _ in range(7)]
            bob = [client.get("/", x_user="bob")[0] for _ in range(7)]
            chat = client.get("/chat", x_user="ann")[0]
            # Its cost of 100 is all there is, and is charged after the answer.
            wait_until("the chat's cost is charged", lambda: client.get("/chat", x_user="ann")[0] == 429)
            wait_until("counted", lambda: envoy.stats("ratelimit.over_limit"))
            errors = envoy.stats(r"ratelimit\.(error|failure_mode_allowed)")
    upstream.shutdown()
    say(f"deploy/envoy.yaml: ann {ann}, bob {bob}, chat {chat}, then 429")
    # Refused requests of ann cost her address nothing, so that 3 of its 8 are left for bob.
    assert ann == [200] * 5 + [429] * 2
    assert bob == [200] * 3 + [429] * 4
    assert chat == 200
    assert not errors


class Upstream(BaseHTTPRequestHandler):
    """The service behind Envoy."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.send_header("x-cost", "100")
        self.end_headers()

    def log_message(self, *_):
        pass
