"""HTTP clients of the tests: one polite, one that writes what bytes it likes, and a load of several."""

import collections
import dataclasses
import http.client
import socket
import threading
import time


class Client:
    """One connection that is kept open."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def get(self, path="/", **headers):
        """Status and headers (names in lower case). `x_user="ann"` is the header `x-user: ann`."""
        self.connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = self.connection.getresponse()
        answer.read()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}


def get(port, path="/", **headers):
    return Client(port).get(path, **headers)


def raw_status(port, path, header_line):
    """The status for a request whose header line is exactly these bytes, such as `b"x-user: bob\\xff"`."""
    request = f"GET {path} HTTP/1.1\r\nhost: e2e\r\n".encode() + header_line + b"\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        s.sendall(request)
        answer = b""
        while chunk := s.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 "), f"no HTTP answer: {answer[:200]!r}"
    return int(answer[9:12])


@dataclasses.dataclass
class Seen:
    """What a load saw: how many of each status, and whatever `judge` noted of an answer."""

    statuses: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    notes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    broken: list = dataclasses.field(default_factory=list)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def total(self):
        return self.statuses.total()


class Load:
    """Requests in the background until the `with` block ends: `clients` connections, together about `per_second`.

    The pace is only that: nothing is judged by the clock, and a slow machine sends fewer.
    """

    def __init__(self, ports, request, clients=8, per_second=400):
        self.seen = Seen()
        self.done = threading.Event()
        self.threads = [
            threading.Thread(target=self.run, args=(ports[i % len(ports)], request, clients / per_second))
            for i in range(clients)
        ]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        for thread in self.threads:
            thread.join()

    def run(self, port, request, every_s):
        client = Client(port)
        due = time.monotonic()
        while not self.done.is_set():
            try:
                status, note = request(client)
            except Exception as e:  # a thread must not die unseen: the test asserts that nothing broke
                self.seen.broken.append(repr(e))
                client = Client(port)
                continue
            with self.seen.lock:
                self.seen.statuses[status] += 1
                self.seen.notes[note] += 1
            due = max(due + every_s, time.monotonic())
            self.done.wait(max(0, due - time.monotonic()))
