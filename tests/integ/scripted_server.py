"""An OpenAI-style server that does what a test says, at known times; one thread a connection. Standard library only.

    with ScriptedServer(lambda c: c.stream([0.1, 0.05, 0.05])) as s:   # a token after 100 ms, then two more
        ... s.url, s.bodies ...

A handler is called for every completion request, with a Conversation: c.body (parsed), c.index (of the request), and what it may
answer: stream, refuse, plain, or by hand start/token/end."""
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Gone(Exception):
    """The client left."""


class Conversation:
    def __init__(self, handler, body, index):
        self.handler, self.body, self.index = handler, body, index
        self.is_chat = "messages" in body
        self.n = 0
        self.asked, self.times = time.monotonic(), []  # when it was read; when each token was written

    def prompt_tokens(self):
        """One token a word or id, ten around a chat."""
        if self.is_chat:
            return 10 + len(self.body["messages"][0]["content"].split())
        p = self.body["prompt"]
        return len(p.split()) if isinstance(p, str) else len(p)

    def raw(self, data):
        try:
            self.handler.wfile.write(data)
            self.handler.wfile.flush()
        except OSError:
            raise Gone from None

    def chunk(self, data):
        self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, value):
        self.chunk(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")

    def start(self):
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if self.is_chat:
            self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})

    def choice(self, text, finish=None):
        c = {"index": 0, "finish_reason": finish}
        return {"choices": [{**c, "delta": {"content": text}} if self.is_chat else {**c, "text": text}]}

    def token(self, text=" word"):
        self.n += 1
        self.times.append(time.monotonic())
        self.event(self.choice(text))

    def end(self, usage=True, done=True, cached=0, completion_tokens=None):
        self.event(self.choice("", "length"))
        if usage:
            n = self.n if completion_tokens is None else completion_tokens
            self.event({"choices": [], "usage": {"prompt_tokens": self.prompt_tokens(), "completion_tokens": n,
                                                 "prompt_tokens_details": {"cached_tokens": cached}}})
        if done:
            self.event(b"[DONE]")
        self.chunk(b"")

    def stream(self, gaps, **more):
        """A token after each of these seconds, or somewhat later: what is late is not made up for."""
        self.start()
        for gap in gaps:
            time.sleep(gap)
            self.token()
        self.end(**more)

    def plain(self, status, value, headers=""):
        data = json.dumps(value).encode() if not isinstance(value, bytes) else value
        self.raw(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data)

    def refuse(self, status=503, retry_after=None, message="no room"):
        self.plain(status, {"error": {"message": message, "type": "overloaded_error"}},
                   f"Retry-After: {retry_after}\r\n" if retry_after is not None else "")

    def hang_up(self):
        self.handler.close_connection = True
        self.handler.connection.shutdown(socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request, client_address):
        pass  # clients that leave are part of the tests


class ScriptedServer:
    def __init__(self, handler, models=("scripted",)):
        self.bodies, self.heads, self.lock = [], [], threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                found = self.path == "/v1/models" and models is not None
                data = json.dumps({"data": [{"id": m} for m in models or ()]} if found else {"detail": "Not Found"}).encode()
                self.wfile.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                                 % (200 if found else 404, len(data), data))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    index = len(outer.bodies)
                    outer.bodies.append(body)
                    outer.heads.append((self.path, dict(self.headers)))
                try:
                    handler(Conversation(self, body, index))
                except Gone:
                    self.close_connection = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *why):
        self.server.shutdown()
        self.server.server_close()
