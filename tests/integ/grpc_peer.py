"""A gRPC client of a service, made of what its reflection tells: no generated code. raise Skip where grpcio is missing.

    p = Peer(s.grpc_port)
    for e in p.generate(ids={"ids": [1, 2]}, max_tokens=8, request_id="mine"): ...
    p.check(); p.watch()        # grpc.health.v1: 1 serving, 2 not
"""
import os
import sys

from runner import Skip

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from protobuf import pack, texts  # noqa: E402

try:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:
    grpc, why = None, error

REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Peer:
    def __init__(self, port):
        if not grpc:
            raise Skip(f"no grpcio: {why}")
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[
            ("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100), ("grpc.use_local_subchannel_pool", 1)])
        self.pool = descriptor_pool.DescriptorPool()
        seen = set()
        for service in (b"sluice.v1.Inference", b"grpc.health.v1.Health"):
            question = pack([(4, 2, service)])
            call = self.channel.stream_stream(REFLECTION, request_serializer=bytes, response_deserializer=bytes)
            for answer in call(iter([question]), timeout=10, wait_for_ready=True):
                for response in texts(answer, 4):
                    for data in reversed(texts(response, 1)):
                        f = descriptor_pb2.FileDescriptorProto.FromString(data)
                        if f.name not in seen:
                            seen.add(f.name)
                            self.pool.Add(f)

    def message(self, name):
        d = self.pool.FindMessageTypeByName(name)
        return message_factory.GetMessageClass(d) if hasattr(message_factory, "GetMessageClass") else \
            message_factory.MessageFactory(self.pool).GetPrototype(d)

    def call(self, path, kind, request, answer, timeout=60):
        c = getattr(self.channel, kind)(path, request_serializer=lambda m: m.SerializeToString(),
                                        response_deserializer=self.message(answer).FromString)
        return c(request, timeout=timeout, wait_for_ready=True)

    def generate(self, **fields):
        return self.call("/sluice.v1.Inference/Generate", "unary_stream", self.message("sluice.v1.GenerateRequest")(**fields),
                         "sluice.v1.GenerateEvent")

    def health(self, kind, name):
        return self.call(f"/grpc.health.v1.Health/{name}", kind, self.message("grpc.health.v1.HealthCheckRequest")(),
                         "grpc.health.v1.HealthCheckResponse")

    def check(self):
        return self.health("unary_unary", "Check").status

    def watch(self):
        return self.health("unary_stream", "Watch")

    def close(self):
        self.channel.close()


class Answer:
    """What came of one answer over its attempts, as a client that resumes keeps it."""

    def __init__(self, peer, **asked):
        self.peer, self.asked, self.attempt = peer, asked, 0
        self.text, self.ids, self.token, self.usage, self.done, self.error = "", [], b"", None, None, None

    def start(self):
        more = dict(self.asked)
        if self.token:
            more["ids"] = {"ids": self.prompt_ids}
            more["sampler"] = {**self.asked.get("sampler", {}), "seed": self.seed}
            more["resume"] = {"token": self.token, "ids": self.ids, "usage": self.usage}
        self.call = self.peer.generate(attempt=self.attempt, **more)
        self.attempt += 1
        return self

    def read(self, n_ids=1 << 30):
        """Up to the end, or to so many ids; the end of a call that failed is in error."""
        try:
            for e in self.call:
                self.take(e)
                if len(self.ids) >= n_ids:
                    return self
        except grpc.RpcError as failure:
            self.error = failure
        return self

    def take(self, e):
        kind = e.WhichOneof("event")
        if kind == "accepted":
            self.token, self.seed, self.prompt_ids = e.accepted.resume_token, e.accepted.seed, list(e.accepted.prompt_ids)
            self.asked["request_id"] = e.accepted.request_id
        elif kind == "text":
            self.text += e.text.text
            self.ids += e.text.ids
            if e.text.HasField("usage"):
                self.usage = e.text.usage
        elif kind == "done":
            self.done = e.done
