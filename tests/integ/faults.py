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


def alive(pid):
    """One that has ended and is not waited for is not."""
    stat = stat_of(pid)
    return stat is not None and stat[0] != "Z"


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


def belongings(s):
    """s.resources(), but of each part its own threads; and the descriptors of every launcher."""
    found = s.resources()
    for part, used in found.items():
        used["threads"] = own_threads(s.pid(part))
    for i, pid in enumerate(sorted({launcher_of(pid) for part, pid in parts(s).items() if part != "template"})):
        found[f"launcher {i}"] = {"fds": len(os.listdir(f"/proc/{pid}/fd"))}
    return found


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

ESTABLISHED, CLOSE_WAIT, LISTENS = "01", "08", "0A"


def readable(address_in_hex):
    """HOST:PORT, of IPv4 also where a socket of IPv6 has it."""
    host, _, port = address_in_hex.partition(":")
    return ".".join(str(b) for b in reversed(bytes.fromhex(host[-8:]))) + f":{int(port, 16)}"


def tcp_sockets(pid="self"):
    """[(state, own address, peer's address, inode)] of that process's network namespace."""
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{name}") as f:
            for field in map(str.split, f.readlines()[1:]):
                found.append((field[3], readable(field[1]), readable(field[2]), field[9]))
    return found


def socket_inodes(pid):
    """{inode: descriptor number} of a process's sockets; empty when it has ended."""
    found = {}
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
                if link.startswith("socket:["):
                    found[link[8:-1]] = int(fd)
    return found


def sockets_of(pid):
    """{(own, peer): descriptor number} of its connections, in this network namespace."""
    all_of_them, mine = tcp_sockets(), socket_inodes(pid)
    return {(own, peer): mine[inode] for state, own, peer, inode in all_of_them if state == ESTABLISHED and inode in mine}


def listening_ports(pid):
    mine = socket_inodes(pid)
    return {int(own.rpartition(":")[2]) for state, own, _, inode in tcp_sockets(pid) if state == LISTENS and inode in mine}


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
