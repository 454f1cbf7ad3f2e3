"""What runs beside a case: somebody who looks at the service all the time, and clients that come again and again."""
import threading

from client import SLACK


class Watch(threading.Thread):
    """Calls look() over and over until finish() or the end of the block; what look() raises fails the case there."""

    def __init__(self, s, pause, at_least):
        super().__init__(daemon=True)
        self.s, self.pause, self.at_least = s, pause, at_least  # seconds between looks; there must be more of them than that
        self.over, self.problem, self.n = threading.Event(), None, 0

    def run(self):
        try:
            while not self.over.wait(self.pause):
                self.look()
                self.n += 1
        except BaseException as e:  # noqa: B036 (told by finish)
            self.problem = e

    def stop(self):
        self.over.set()
        self.join(10)

    def finish(self):
        self.stop()
        assert not self.problem and self.n > self.at_least, (self.problem, self.n)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *why):
        self.stop() if why[0] else self.finish()


class Clients:
    """n threads, each of which calls once(number, its state) over and over until the block ends. What one raises fails the case."""

    def __init__(self, n, patience):
        self.over, self.lock, self.problem, self.patience = threading.Event(), threading.Lock(), None, patience
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(n)]

    def begin(self, number):
        """The state of one client."""

    def run(self, number):
        try:
            state = self.begin(number)
            while not self.over.is_set():
                self.once(number, state)
        except BaseException as e:  # noqa: B036 (told by __exit__)
            self.problem = self.problem or e

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *why):
        self.over.set()
        for t in self.threads:
            t.join(self.patience * SLACK)
        if not why[0]:
            assert not self.problem, self.problem
