"""Frames between a trainer and its node: a length as u32, little endian, and as many bytes of JSON (docs/bridge.md)."""

import array
import json
import socket
import struct

from .errors import FlockError, NodeGone

FRAME_MAX = 1 << 20
# Bytes that are read at a time; most frames are much shorter.
PIECE = 4096
ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def field(message, name, kind):
    """A field of a message from the node, which must be of this type."""
    value = message.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise FlockError(f"the node's message has no {name} of the right type: it is not a node of this version")
    return value


class Wire:
    """One connection. A file may come with a frame."""

    def __init__(self, stream):
        self.stream = stream
        self.files = []
        self.rest = bytearray()

    def send(self, message, file=None):
        text = ENCODER.encode(message).encode()
        if len(text) > FRAME_MAX:
            raise FlockError(
                f"a message of {len(text)} bytes is too long, at most {FRAME_MAX}: use fewer tensors or shorter names"
            )
        frame = struct.pack("<I", len(text)) + text
        try:
            if file is None:
                self.stream.sendall(frame)
            else:
                sent = socket.send_fds(self.stream, [frame], [file])
                self.stream.sendall(frame[sent:])
        except (BrokenPipeError, ConnectionResetError) as e:
            raise NodeGone("the node closed the connection: its log says why") from e

    def receive(self):
        length = struct.unpack("<I", self._take(4))[0]
        if length > FRAME_MAX:
            raise FlockError(
                f"the node sent a frame of {length} bytes, at most {FRAME_MAX}: it is not a node of this version"
            )
        try:
            message = json.loads(self._take(length))
        except (ValueError, RecursionError) as e:
            raise FlockError("the node sent a frame that is not JSON: it is not a node of this version") from e
        if not isinstance(message, dict):
            raise FlockError("the node sent a frame that is no JSON object: it is not a node of this version")
        return message

    def _take(self, count):
        while len(self.rest) < count:
            try:
                piece, control, _, _ = self.stream.recvmsg(PIECE, socket.CMSG_SPACE(4 * 4))
            except ConnectionResetError as e:
                raise NodeGone("the node closed the connection: its log says why") from e
            for level, kind, data in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    files = array.array("i")
                    files.frombytes(data[: len(data) - len(data) % files.itemsize])
                    self.files.extend(files)
            if not piece:
                raise NodeGone("the node closed the connection: its log says why")
            self.rest += piece
        taken = bytes(self.rest[:count])
        del self.rest[:count]
        return taken

    def close(self):
        self.stream.close()
