# SPDX-License-Identifier: Apache-2.0
"""A business service down to its sockets, the certificates it may show and the names it goes by."""

import collections
import contextlib
import os
import socket
import ssl
import subprocess
import threading

import lib

LINGER_0 = b"\1\0\0\0\0\0\0\0"


class Call(lib.Delivery):
    """One request whose headers have been read. A script reads its body and says what it likes."""

    def __init__(self, service, connection, head, rest, number, nth):
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {}
        for field in fields:
            name, _, value = field.partition(":")
            headers[name.lower()] = value.strip()
        super().__init__(line.split()[1], headers, b"", number, nth)
        self.service = service
        self.socket = connection
        self.got = rest  # of the body, with the headers
        self.sent = 0

    def read_body(self):
        length = int(self.headers["content-length"])
        while len(self.got) < length:
            more = self.socket.recv(65536)
            if not more:
                raise OSError("half a body")
            self.got += more
        self.body = self.got
        with self.service.lock:
            self.service.deliveries.append(self)

    def send(self, data):
        """Counts what was taken, also when the other side leaves in the middle."""
        view = memoryview(data)
        while view:
            n = self.socket.send(view[:65536])
            self.sent += n
            view = view[n:]

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
        return False

    def wait_for_close(self, seconds=30):
        """Until the other side is gone; returns nothing, so that the connection ends."""
        self.socket.settimeout(seconds)
        with contextlib.suppress(OSError):
            while self.socket.recv(4096):
                pass


def ok(call):
    call.read_body()
    call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    return True


class Service(lib.Receiver):
    """What a call gets is the script's business, by handler: a function of the call that returns whether
    the connection goes on. `requests` has all whose headers came, `deliveries` all whose body came."""

    def __init__(self, tls=None, greeting=None, **where):
        self.scripts = {}
        self.tls = tls
        self.greeting = greeting  # said at once, before anything is asked
        self.requests = []
        self.tls_failures = 0
        super().__init__(**where)

    def serve(self, connection, number):
        try:
            if self.tls:
                connection.settimeout(30)
                with self.lock:
                    self.open.discard(connection)
                    connection = self.tls.wrap_socket(connection, server_side=True,
                                                      do_handshake_on_connect=False)
                    self.open.add(connection)
                connection.do_handshake()
            if self.greeting:
                connection.sendall(self.greeting)
            nth = 1
            while self.serve_one(connection, number, nth):
                nth += 1
        except ssl.SSLError:
            with self.lock:
                self.tls_failures += 1
        except OSError:
            pass
        finally:
            with self.lock:
                self.open.discard(connection)
            connection.close()

    def serve_one(self, connection, number, nth):
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return False
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        call = Call(self, connection, head, rest, number, nth)
        with self.lock:
            self.requests.append(call)
        return self.scripts.get(call.handler, ok)(call)

    def asked(self, trace):
        """Requests of one task, in order."""
        with self.lock:
            return [call for call in self.requests if call.trace == trace]


class Certificates:
    """An authority and what it signed, made with the openssl command; `context` serves one of them."""

    def __init__(self, folder, name="ca"):
        self.folder = folder
        self.name = name
        self.ca = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                     "-nodes", "-keyout", self.key, "-out", self.ca, "-days", "2",
                     "-subj", f"/CN={name}")
        (folder / f"{name}.index").touch()
        (folder / f"{name}.cnf").write_text(
            f"[ca]\ndefault_ca = own\n[own]\ndatabase = {folder}/{name}.index\n"
            f"new_certs_dir = {folder}\nrand_serial = yes\ndefault_md = sha256\n"
            "policy = any\ncopy_extensions = copy\n[any]\ncommonName = supplied\n",
            encoding="ascii")

    @staticmethod
    def openssl(*words):
        answer = subprocess.run(["openssl", *words], check=False, capture_output=True, text=True,
                                stdin=subprocess.DEVNULL)
        lib.equal(answer.returncode, 0, f"openssl {words[0]}: {answer.stderr}")

    def issue(self, name, san, expired=False):
        """A server's context with a certificate for these names."""
        key, request, certificate = (self.folder / f"{self.name}-{name}.{end}"
                                     for end in ("key", "csr", "crt"))
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-keyout", key, "-out", request, "-subj", f"/CN={name}",
                     "-addext", f"subjectAltName={san}")
        when = (["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"] if expired
                else ["-days", "2"])
        self.openssl("ca", "-batch", "-notext", "-config", self.folder / f"{self.name}.cnf",
                     "-cert", self.ca, "-keyfile", self.key, "-in", request, "-out", certificate,
                     *when)
        return self.context(certificate, key)

    def self_signed(self, name, san):
        key, certificate = (self.folder / f"self-{name}.{end}" for end in ("key", "crt"))
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                     "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
                     "-subj", f"/CN={name}", "-addext", f"subjectAltName={san}")
        return self.context(certificate, key)

    @staticmethod
    def context(certificate, key):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


class Names:
    """The names that a node knows, by tests/lib/fake_names.c."""

    def __init__(self, folder):
        self.folder = folder / "names"
        self.folder.mkdir()
        self.table = {}
        self.env = {"LD_PRELOAD": os.environ["FAKE_NAMES_LIB"],
                    "FAKE_NAMES": str(self.folder)}

    def set(self, name, *words):
        """Addresses, with wait=MS in front where the look-up takes its time."""
        self.table[name] = words
        new = self.folder / "names.new"
        new.write_text("".join(f"{n} {' '.join(w)}\n" for n, w in self.table.items()),
                       encoding="ascii")
        os.replace(new, self.folder / "names")

    def lookups(self):
        """How often each name was looked up."""
        return collections.Counter(self.lines("lookups"))

    def connects(self):
        """(address, port) of each connection that was tried."""
        return [(a, int(p)) for a, p in (line.split() for line in self.lines("connects"))]

    def lines(self, file):
        path = self.folder / file
        return path.read_text(encoding="ascii").splitlines() if path.exists() else []


class FullBacklog:
    """An address that takes no connection and refuses none, like a host that is off."""

    def __init__(self, host, port):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((host, port))
        self.listener.listen(0)
        self.port = self.listener.getsockname()[1]
        self.fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((host, self.port))
            self.fillers.append(filler)

    def close(self):
        for s in (self.listener, *self.fillers):
            s.close()


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_kib(pid):
    """What is resident now, and the most that ever was."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmRSS"].split()[0]), int(fields["VmHWM"].split()[0])
