"""Several nodes on one machine, for one test: namespaces joined by cluster-switch, and a service that mpirun starts over them.

    with Cluster(nodes=3, costs=TENTH) as s:          # a Service (tests/integ/service.py); rank i is on node i
        s.net.tell("delay 25000")                     # what the switch understands: switch.c
        s.net.tell("cut 0 1"); ...; s.net.tell("heal 0 1")
        s.net.kill(2)                                 # everything that lives on node 2

The test itself is on node 0: there the gateway is 127.0.0.1, as everywhere. Needs root and /dev/net/tun; where they are missing
`require()` skips. Whatever ends the test, the switch then ends what lives on its nodes, and the nodes.
"""
import ctypes
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integ"))
import service  # noqa: E402
from direct import Direct  # noqa: E402
from faults import alive  # noqa: E402
from reference import reference  # noqa: E402
from runner import Skip  # noqa: E402
from service import BIN  # noqa: E402

__all__ = ["Cluster", "Network", "address", "require"]
CLONE_NEWNET = 0x40000000
SWITCH = os.path.join(BIN, "cluster-switch")
AGENT = """#!/bin/bash
# Stands in for ssh: `agent [-flags] HOST COMMAND...` runs the command on that node.
while [[ $1 == -* ]]; do shift; done
net=({net}) uts=({uts}) host=$1 node=${{1#node}}
shift
exec nsenter --net=/proc/{pid}/fd/${{net[$node]}} --uts=/proc/{pid}/fd/${{uts[$node]}} /bin/sh -c "$*"
"""
TOKEN = "0123456789abcdef0123456789abcdef\n"
DEFAULTS = ["--kv-block", "16", "--queue-requests", "32", "--decode-share", "0.5", "--max-stall-ms", "200", "--log", "info,backend=error"]
libc = ctypes.CDLL(None, use_errno=True)


def address(node):
    return f"10.77.0.{10 + node}"


def require():
    """Skips where namespaces or TAPs cannot be had. Looks by making a network of one node."""
    if os.geteuid() != 0:
        raise Skip("network namespaces need root")
    if not os.path.exists("/dev/net/tun"):
        raise Skip("there is no /dev/net/tun")
    try:
        Network(1).close()
    except OSError as e:
        raise Skip(f"no network namespaces: {e}") from None


def set_namespace(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(fd)


class Network:
    """n nodes and their switch. The calling thread and those it starts afterwards may move to one of them: enter()."""

    def __init__(self, n):
        self.n = n
        self.switch = subprocess.Popen([SWITCH, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.net_fd, self.uts_fd = [], []
        while (line := self.switch.stdout.readline()).startswith("node"):
            _, net, uts = line.split()
            self.net_fd.append(int(net))
            self.uts_fd.append(int(uts))
        if line != "up\n":
            raise OSError(self.switch.stderr.read().strip() or f"the switch ended with {self.switch.wait()}")
        self.inode = [os.stat(self.path(fd)).st_ino for fd in self.net_fd]

    def path(self, fd):
        return f"/proc/{self.switch.pid}/fd/{fd}"

    def tell(self, line):
        """One command for the switch; its answer."""
        self.switch.stdin.write(line + "\n")
        self.switch.stdin.flush()
        answer = self.switch.stdout.readline().strip()
        assert answer and not answer.startswith("error"), f"{line}: {answer or 'the switch is gone'}"
        return answer

    def enter(self, node):
        set_namespace(self.path(self.net_fd[node]))

    def on(self, node, command):
        """The command, as it runs on a node."""
        return ["nsenter", f"--net={self.path(self.net_fd[node])}", f"--uts={self.path(self.uts_fd[node])}", *command]

    def agent(self, path):
        """A stand-in for ssh between the nodes."""
        with open(path, "w") as f:
            f.write(AGENT.format(pid=self.switch.pid, net=" ".join(map(str, self.net_fd)), uts=" ".join(map(str, self.uts_fd))))
        os.chmod(path, 0o755)
        return path

    def processes(self, node):
        """Pids of what lives on a node, this process aside."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{pid}/ns/net").st_ino == self.inode[node] and int(pid) != os.getpid():
                    found.append(int(pid))
            except OSError:
                pass
        return found

    def kill(self, node):
        """As when its power fails, with `cut`: what lives there is gone and nobody is told."""
        while (left := self.processes(node)):
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.01)
            left = [pid for pid in left if alive(pid)]
            if not left:
                return

    def close(self):
        self.switch.stdin.close()
        self.switch.wait(10)
        self.switch.stdout.close()
        self.switch.stderr.close()


class Cluster(Direct):
    """One stage a node, started by mpirun from node 0; the flags are the launcher's. spares: nodes without a rank."""

    def __init__(self, nodes=3, spares=0, flags=(), script=None, delay_us=0, **more):
        require()
        reference([service.FIRST_BYTE], 1)  # its program shall not live on a node
        self.given = list(flags)
        self.net = Network(nodes + spares)
        try:
            self.home = os.open("/proc/self/ns/net", os.O_RDONLY)
            self.net.enter(0)
            super().__init__(stages=nodes, script=script, **more)
            self.script = script
            self.token = self.file("token", TOKEN)
            os.chmod(self.token, 0o600)
            self.env.update({"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_plm_rsh_agent": self.net.agent(self.path("agent")),
                             "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_oob_tcp_if_include": "eth0"})
            if delay_us:
                self.net.tell(f"delay {delay_us}")
        except BaseException:
            self.close_network()
            raise

    def close_network(self):
        set_namespace(f"/proc/self/fd/{self.home}")
        os.close(self.home)
        self.net.close()

    def launcher_flags(self):
        flags = ["--http", f"127.0.0.1:{self.port}", "--grpc", f"127.0.0.1:{self.grpc_port}", "--slots", str(self.slots), *DEFAULTS]
        if self.fake:
            costs = "".join(f"{name} {value}\n" for name, value in zip(("tick_us", "row_us", "token_us"), self.costs))
            flags += ["--stage-program", os.path.join(BIN, "sluice-stage-fake"), "--context", str(self.context),
                      "--script", self.file("costs", costs + (self.script or ""))]
        return [*flags, *self.detach_flags(), "--token-file", self.token, "--model", self.model, *self.given]

    def command(self):
        hosts = ",".join(f"node{i}" for i in range(self.stages))
        return self.net.on(0, ["mpirun", "--host", hosts, "-np", str(self.stages), os.path.join(BIN, "sluice-launch"), *self.launcher_flags()])

    def start_on(self, node, program, *flags):
        """A program of the service on a node, by hand; its output belongs to the log."""
        self.more_logs.append(self.path(f"more-{len(self.more_logs)}"))
        with open(self.more_logs[-1], "wb") as log:
            return subprocess.Popen(self.net.on(node, [os.path.join(BIN, program), *flags, "--token-file", self.token]), stdout=log,
                                    stderr=log, stdin=subprocess.DEVNULL, env={**self.env, "SLUICE_BIN": BIN}, start_new_session=True)

    def join(self, node):
        """A launcher that brings a stage of its own."""
        stage = ["--stage-program", os.path.join(BIN, "sluice-stage-fake"), "--script", self.path("costs")] if self.fake else []
        return self.start_on(node, "sluice-launch", "--join", f"{address(0)}:{self.grpc_port}", "--model", self.model, *stage)

    def lose(self, node):
        """Its power fails."""
        self.net.tell(f"cut {node}")
        self.net.kill(node)

    def __enter__(self):
        try:
            return super().__enter__()
        except BaseException:
            self.close_network()
            raise

    def __exit__(self, *why):
        try:
            super().__exit__(*why)
        finally:
            self.close_network()
