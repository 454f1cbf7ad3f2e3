"""What a case does to a running service: finds its processes without asking it, stops them, ends them, cuts the links between them.

    parts(s)                    {"coordinator": pid, "gateway": pid, "template": pid, 0: pid, 1: pid, ...} of those that live
    with stopped(pid, launcher_of(pid)): ...     SIGSTOP, then SIGCONT
    cut = Cut(pid_a, pid_b); ...; cut.heal()     nothing that one sends reaches the other; nobody is told

A cut needs no rights and no second network: the sockets of a process are taken over by their descriptors (pidfd_getfd), and a socket
filter drops what comes in. The kernel repeats what was lost after the heal, as after a real cut. slam() ends the same connections.
"""
import contextlib
import ctypes
import os
import signal
import socket
import struct
import time

from client import SLACK

SYS_PIDFD_GETFD = 438
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
libc = ctypes.CDLL(None, use_errno=True)
drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # one instruction: return 0 bytes
DROP_ALL = struct.pack("HL", 1, ctypes.addressof(drop_all))


def words_of(pid):
    """Its command line; empty when it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def stat_of(pid):
    """(state, parent) or None"""
    try:
        with open(f"/proc/{pid}/stat") as f:
            state, parent = f.read().rpartition(")")[2].split()[:2]
            return state, int(parent)
    except OSError:
        return None


def launcher_of(pid):
    return stat_of(pid)[1]


def parts(s):
    """{part: pid}. A process that its launcher is just starting has the launcher's command line and is no part yet."""
    found = {}
    children = []
    for pid, _ in s.processes():
        words = words_of(pid)
        program = os.path.basename(words[0]) if words else ""
        if program == "sluice-coordinator":
            found["coordinator"] = pid
        elif program == "sluice-gateway":
            found["gateway"] = pid
        elif program.startswith("sluice-stage") and "--stage" in words:
            found[int(words[words.index("--stage") + 1])] = pid
        elif program.startswith("python"):
            children.append(pid)
    for pid in children:
        stat = stat_of(pid)
        if stat and stat[1] == found.get("coordinator"):
            found["template"] = pid
    return found


POOLS = ("default-executo", "resolver-execut", "grpc_global_tim", "event_engine", "timer_manager")


def own_threads(pid):
    """How many it has, those of gRPC's pools aside, which come and go with the load."""
    n = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/task/{task}/comm") as f:
                n += f.read().strip() not in POOLS
    return n


def send(pid, sig):
    """False: it has ended already."""
    try:
        os.kill(pid, sig)
        return True
    except ProcessLookupError:
        return False


@contextlib.contextmanager
def stopped(*pids):
    """The last one is stopped first and wakes first: a launcher that is given last sees nothing."""
    for pid in reversed(pids):
        send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            send(pid, signal.SIGCONT)


# --- connections -------------------------------------------------------------------------------------------------------------------

V4_IN_V6 = "0000000000000000FFFF0000"


def tcp_sockets():
    """{inode: (own address, peer's address)} of this network namespace's established connections."""
    found = {}
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as f:
            for line in f.readlines()[1:]:
                field = line.split()
                if field[3] == "01":
                    found[field[9]] = (field[1].removeprefix(V4_IN_V6), field[2].removeprefix(V4_IN_V6))
    return found


def sockets_of(pid):
    """{(own, peer): descriptor number}"""
    all_of_them, found = tcp_sockets(), {}
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if link.startswith("socket:[") and link[8:-1] in all_of_them:
                found[all_of_them[link[8:-1]]] = int(fd)
    except OSError:
        pass
    return found


def take_socket(pid, fd):
    """Another descriptor of a socket of that process; None when it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        got = libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
        return socket.socket(fileno=got) if got >= 0 else None
    finally:
        os.close(pidfd)


def connections(pid_a, pid_b):
    """Both ends of each connection between two processes."""
    a, b = sockets_of(pid_a), sockets_of(pid_b)
    pairs = [(take_socket(pid_a, fd), take_socket(pid_b, b[peer, own])) for (own, peer), fd in a.items() if (peer, own) in b]
    return [end for pair in pairs for end in pair if end]


class Cut:
    """Two processes that do not hear each other until heal(). n: connections that it hit."""

    def __init__(self, pid_a, pid_b):
        self.ends = connections(pid_a, pid_b)
        self.n = len(self.ends) // 2
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, DROP_ALL)

    def heal(self):
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            end.close()
        self.ends = []

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.heal()


def slam(pid_a, pid_b):
    """Ends every connection between them in the middle of what it says; how many there were."""
    ends = connections(pid_a, pid_b)
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
    return len(ends) // 2


# --- pauses ------------------------------------------------------------------------------------------------------------------------

NOTICED_S = 0.5  # what was on its way still arrives; the pause begins within this time


def pause_in(times, began, ended=None):
    """The longest time between two tokens of a stream that ends after a fault began and starts at most NOTICED_S after it was over;
    None when the stream had no token on one side."""
    until = (began if ended is None else ended) + NOTICED_S
    gaps = [b - a for a, b in zip(times, times[1:]) if b > began and a < until]
    return max(gaps) if gaps and times[0] <= began and times[-1] > until else None


def pause_at(call, at):
    return pause_in(call.times(), at)


def first_tick_after(s, at, seconds=10):
    """Waits for a tick that retires after an event at that moment (the count of ticks starts anew with a coordinator)."""
    n = None
    while time.monotonic() < at + seconds * SLACK:
        try:
            m = s.metrics().get("sluice_ticks_total")
        except (OSError, AssertionError, ValueError):
            m = None
        if m is not None and n is not None and m > n and s.ready():
            return time.monotonic() - at
        n = m
        time.sleep(0.005)
    raise AssertionError(f"no tick within {seconds} s")
