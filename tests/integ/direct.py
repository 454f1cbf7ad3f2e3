"""A service whose job is mpirun or the launcher itself, not tests/lib/fake_service: one that is detached outlives that, too."""
import os
import signal
import time

from service import Service, wait_for


class Direct(Service):
    """detach: mpirun returns when it serves, and every rank leaves a supervisor."""

    def __init__(self, detach=False, **more):
        super().__init__(**more)
        self.detach, self.pid_file = detach, self.path("pid")
        self.more_logs = [self.path("detached")]

    def detach_flags(self):
        return ["--detach", "--pid-file", self.pid_file, "--log-file", self.more_logs[0]] if self.detach else []

    def wait_ready(self, seconds):
        until = time.monotonic() + seconds
        while not self.ready():
            code = self.job.poll()
            assert code is None or (self.detach and code == 0), f"the job ended with {code} before it was ready"
            assert time.monotonic() < until, f"not ready within {seconds} s"
            time.sleep(0.02)
        if self.detach:
            wait_for(lambda: self.job.poll() == 0, 5, "mpirun returns 0")

    def log(self):
        texts = [super().log()]
        for path in filter(os.path.exists, self.more_logs):
            with open(path, errors="replace") as f:
                texts.append(f.read())
        return "".join(texts)

    def supervisor_pid(self, rank=0):
        with open(self.pid_file + (f".{rank}" if rank else "")) as f:
            return int(f.read())

    def takes_usr1(self):
        return self.mpi

    def ask_to_end(self):
        if not self.detach:
            super().ask_to_end()
            return
        os.kill(self.supervisor_pid(), signal.SIGTERM)
        self.wait_exit(0, 1)  # mpirun's, long ago
        wait_for(lambda: not self.processes(), 5, "every rank has ended")
