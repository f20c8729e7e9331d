"""HTTP by hand: requests byte by byte, and what comes back."""

import json
import socket
import struct
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Answer:
    """status 0: the connection ended without an answer"""

    status: int
    headers: dict = field(default_factory=dict)
    body: bytes = b""

    @property
    def error(self):
        return json.loads(self.body)["error"]

    @property
    def closes(self):
        return self.headers.get("connection") == "close"


class Wire:
    """A connection to a server."""

    def __init__(self, server, timeout_s=10):
        self.socket = socket.create_connection(("127.0.0.1", server.http_port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.left = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)
        return self

    def _more(self):
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.left += data
        return data

    def answer(self):
        """Read one answer."""
        while b"\r\n\r\n" not in self.left:
            if not self._more():
                return Answer(0)
        head, _, self.left = self.left.partition(b"\r\n\r\n")
        first, *rows = head.decode("latin-1").split("\r\n")
        headers = {}
        for row in rows:
            name, _, value = row.partition(":")
            headers[name.lower()] = value.strip()
        status = int(first.split()[1])
        if status == 100:
            return self.answer()
        length = int(headers.get("content-length", 0))
        while len(self.left) < length:
            if not self._more():
                break
        body, self.left = self.left[:length], self.left[length:]
        return Answer(status, headers, body)

    def is_closed(self):
        """Whether the server closes the connection, with nothing more to say."""
        return not self.left and not self._more()

    def ask(self, data):
        return self.send(data).answer()


def post(path, body=b"", *headers, length=None):
    """A request as bytes; `length` is announced in place of the true one."""
    length = len(body) if length is None else length
    rows = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers]
    return "\r\n".join(rows).encode() + b"\r\n\r\n" + body


def get(path, *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers]).encode() + b"\r\n\r\n"


def tensor(name, array, datatype, **other):
    row = {"name": name, "datatype": datatype, "shape": list(array.shape)}
    return row | {"data": array.reshape(-1).tolist()} | other


def json_request(path, inputs, *headers, **other):
    return post(path, json.dumps({"inputs": inputs, **other}).encode(), *headers)


def binary_request(path, arrays, *headers):
    """A request whose float32 tensors follow the JSON."""
    rows = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    head = json.dumps({"inputs": rows, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(array.tobytes() for array in arrays.values())
    return post(path, body, f"Inference-Header-Content-Length: {len(head)}", *headers)


def outputs_of(answer):
    """The outputs of an answer by name, whichever form each has."""
    split = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    raw, arrays = answer.body[split:], {}
    for row in json.loads(answer.body[:split])["outputs"]:
        if "data" in row:
            arrays[row["name"]] = np.array(row["data"]).reshape(row["shape"])
            continue
        size = row["parameters"]["binary_data_size"]
        dtype = {"FP32": np.float32, "INT64": np.int64}[row["datatype"]]
        arrays[row["name"]] = np.frombuffer(raw[:size], dtype).reshape(row["shape"])
        raw = raw[size:]
    return arrays


def reset(wire):
    """End a connection with a reset, as a client does that dies."""
    linger = struct.pack("ii", 1, 0)
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    wire.socket.close()
