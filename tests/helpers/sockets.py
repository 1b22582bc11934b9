"""What no library of HTTP would send to a port of this machine."""

import socket
import struct
import time

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


def ask_raw(port: int, words: bytes) -> bytes:
    """Send these bytes; the answer until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), 20) as link:
        link.sendall(words)
        link.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: link.recv(4096), b""))


def reset(port: int, words: bytes) -> None:
    """Begin a request, and reset the connection; the other side has then noticed."""
    with socket.create_connection(("127.0.0.1", port), 20) as link:
        link.sendall(words)
        time.sleep(0.2)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    time.sleep(0.2)
