"""Stands between a stage and its coordinator, on the Attach stream, and may change what either says.

    with Middleman("127.0.0.1:7411") as m:       # a stage started with --coordinator 127.0.0.1:{m.port} is attached through it
        m.change = lambda stream, side, data: [data]   # what goes on instead of a packed message; side: "from" or "to" the stage
        m.cut()                                  # ends the streams; the stage dials again

Messages are protobuf bytes (rpc/proto/stage.proto); `fields` and `pack` take one layer apart and put it together again."""
import threading
from concurrent import futures

import grpc

from ports import free_ports

ATTACH = "/sluice.v1.Stages/Attach"
FROM = {1: "hello", 2: "loaded", 3: "ack", 4: "ready", 5: "result", 6: "timings", 7: "heartbeat", 8: "failed"}
TO = {1: "assign", 2: "epoch", 3: "links", 4: "plan", 5: "exit"}
PATIENT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.http2.max_pings_without_data", 0),
           ("grpc.http2.min_ping_interval_without_data_ms", 100), ("grpc.http2.max_ping_strikes", 0), ("grpc.so_reuseport", 0)]


def varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def fields(data):
    """[(number, wire type, value)]: value is an int, or bytes. ValueError: no message."""
    out, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while shift < 64:
            if at >= len(data):
                break
            b = data[at]
            at += 1
            value |= (b & 127) << shift
            shift += 7
            if b < 128:
                return value
        raise ValueError("no varint")

    while at < len(data):
        key = number()
        wire, size = key & 7, {1: 8, 5: 4}.get(key & 7)
        if wire == 0:
            value = number()
        elif wire == 2:
            size = number()
            value = data[at:at + size]
            at += size
        elif size:
            value = int.from_bytes(data[at:at + size], "little")
            at += size
        else:
            raise ValueError("no wire type")
        if at > len(data) or key >> 3 == 0:
            raise ValueError("no field")
        out.append((key >> 3, wire, value))
    return out


def pack(some):
    out = b""
    for number, wire, value in some:
        out += varint(number << 3 | wire)
        if wire == 0:
            out += varint(value)
        elif wire == 2:
            out += varint(len(value)) + value
        else:
            out += (value & (1 << 8 * {1: 8, 5: 4}[wire]) - 1).to_bytes({1: 8, 5: 4}[wire], "little")
    return out


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
