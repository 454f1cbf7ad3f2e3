"""TCP ports that nobody else of this machine's tests takes.

A port that the kernel chose and that was closed again may go to any outgoing connection before its new owner listens. So ports
come from below the kernel's range, and each is held by a name in the abstract UNIX namespace for as long as this process lives:
tests that run side by side never choose the same one, and nothing is left in the file system.
"""
import os
import socket

FIRST, LAST = 10100, 30000
held = []
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
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0sluice-test-port-{port}")
    except OSError:
        lock.close()
        return False
    held.append(lock)
    return True


def free_ports(n):
    """n different ports; the process keeps them reserved until it ends."""
    out = []
    for _ in range(LAST - FIRST):
        if len(out) == n:
            return out
        state["next"] = FIRST + (state["next"] + 1 - FIRST) % (LAST - FIRST)
        if claim(state["next"]):
            if is_free(state["next"]):
                out.append(state["next"])
            else:
                held.pop().close()
    raise OSError("no port is free")
