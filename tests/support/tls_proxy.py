"""TLS in front of a broker that speaks none: each connection is decrypted and passed on.

    with TlsProxy(folder, behind) as proxy, SubprocessBroker(listen=behind, advertise=proxy.address):
        proxy.certificate            # a PEM file that a client trusts, for 127.0.0.1

The certificate is made by the `openssl` program for each run, so no key lies in the repository.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Self


class TlsProxy:
    def __init__(self, folder: Path, target: str) -> None:
        self.certificate, self._key = folder / "certificate.pem", folder / "key.pem"
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ]
        command += [
            "-keyout",
            str(self._key),
            "-out",
            str(self.certificate),
            "-days",
            "2",
            "-subj",
            "/CN=tests",
        ]
        command += ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(command, check=True, capture_output=True)
        self._target = target
        self.connections = 0

    def __enter__(self) -> Self:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self._key)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, args=(context,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _accept(self, context: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(context, plain), daemon=True).start()

    def _serve(self, context: ssl.SSLContext, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as near:
            host, port = self._target.rsplit(":", 1)
            with socket.create_connection((host, int(port))) as far:
                self.connections += 1
                threading.Thread(target=_pump, args=(far, near), daemon=True).start()
                _pump(near, far)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
