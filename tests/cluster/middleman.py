"""Stands between a stage and its coordinator, on the Attach stream, and may change what either says.

    with Middleman("127.0.0.1:7411") as m:       # a stage started with --coordinator 127.0.0.1:{m.port} is attached through it
        m.change = lambda stream, side, data: [data]   # what goes on instead of a packed message; side: "from" or "to" the stage
        m.cut()                                  # ends the streams; the stage dials again

Messages are protobuf bytes (rpc/proto/stage.proto; tests/lib/protobuf.py)."""
import threading
from concurrent import futures

import grpc

from ports import free_ports
from protobuf import fields

ATTACH = "/sluice.v1.Stages/Attach"
FROM = {1: "hello", 2: "loaded", 3: "ack", 4: "ready", 5: "result", 6: "timings", 7: "heartbeat", 8: "failed"}
TO = {1: "assign", 2: "epoch", 3: "links", 4: "plan", 5: "exit"}
PATIENT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.http2.max_pings_without_data", 0),
           ("grpc.http2.min_ping_interval_without_data_ms", 100), ("grpc.http2.max_ping_strikes", 0), ("grpc.so_reuseport", 0)]


def kind_of(side, data):
    """"result", "plan", ...; "" when it is nothing of the protocol."""
    try:
        got = fields(data)
    except ValueError:
        return ""
    return (FROM if side == "from" else TO).get(got[0][0], "") if got else ""


class Middleman:
    def __init__(self, target):
        self.target, self.change = target, lambda stream, side, data: [data]
        self.contexts, self.lock = set(), threading.Lock()
        self.port = free_ports(1)[0]
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=PATIENT)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "sluice.v1.Stages", {"Attach": grpc.stream_stream_rpc_method_handler(self.attach)}),))
        self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.server.stop(0).wait()

    def attach(self, requests, context):
        with self.lock:
            self.contexts.add(context)
        channel = grpc.insecure_channel(self.target, options=PATIENT)
        try:
            metadata = [(k, v) for k, v in context.invocation_metadata() if k != "user-agent"]
            answers = channel.stream_stream(ATTACH)(self.passed(context, "from", requests), metadata=metadata)
            context.add_callback(answers.cancel)
            context.send_initial_metadata(answers.initial_metadata())
            yield from self.passed(context, "to", answers)
        except grpc.RpcError as e:
            context.abort(e.code() if hasattr(e, "code") else grpc.StatusCode.UNAVAILABLE, "the other side has ended")
        finally:
            with self.lock:
                self.contexts.discard(context)
            channel.close()

    def passed(self, stream, side, messages):
        try:
            for m in messages:
                yield from self.change(stream, side, m)
        except grpc.RpcError:
            if side == "to":
                raise

    def cut(self):
        with self.lock:
            contexts = list(self.contexts)
        for c in contexts:
            c.cancel()
