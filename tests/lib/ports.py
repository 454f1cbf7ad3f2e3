"""TCP ports that nobody else of this machine's tests takes.

A port that the kernel chose and that was closed again may go to any outgoing connection before its new owner listens. So ports
come from below the kernel's range, and each is held by a name in the abstract UNIX namespace for as long as this process lives:
tests that run side by side never choose the same one, and nothing is left in the file system.
"""
import os
import socket
import threading

FIRST, LAST = 10100, 30000
held = []
lock = threading.Lock()  # a case may start services side by side
state = {"next": FIRST + os.getpid() * 37 % (LAST - FIRST)}


def is_free(port, host="127.0.0.1"):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return False
    return True


def claim(port):
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0sluice-test-port-{port}")
    except OSError:
        name.close()
        return False
    held.append(name)
    return True


def next_port():
    """A port that this process has claimed just now, or None: somebody has it."""
    with lock:
        port = state["next"] = FIRST + (state["next"] + 1 - FIRST) % (LAST - FIRST)
        if not claim(port):
            return None
        if not is_free(port):
            held.pop().close()
            return None
        return port


def free_ports(n):
    """n different ports; the process keeps them reserved until it ends."""
    out = []
    for _ in range(LAST - FIRST):
        if len(out) == n:
            return out
        port = next_port()
        if port:
            out.append(port)
    raise OSError("no port is free")
