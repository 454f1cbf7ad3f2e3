"""Foreign clients: grpcio with what reflection tells, no generated code.  usage: test_rpc_python.py SERVER-PROGRAM"""
import os
import subprocess
import sys
import time

try:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../lib"))
import protobuf  # noqa: E402


def field(number, data):
    return protobuf.pack([(number, 2, data)])


def fields(data):
    """(number, bytes) of the length-delimited fields."""
    return [(number, value) for number, wire, value in protobuf.fields(data) if wire == 2]


def raw(channel, kind, path):
    return getattr(channel, kind)(path, request_serializer=lambda b: b, response_deserializer=lambda b: b)


def ask(channel, version, *requests):
    call = raw(channel, "stream_stream", f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
    return [dict(fields(r)) for r in call(iter(requests), timeout=5)]


def services(channel, version):
    (answer,) = ask(channel, version, field(7, b"*"))
    return sorted(dict(fields(s))[1].decode() for n, s in fields(answer[6]) if n == 1)


def check_reflection(channel):
    want = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
            "sluice.v1.Admin", "sluice.v1.Inference", "sluice.v1.Stages"]
    assert services(channel, "v1") == want, services(channel, "v1")
    assert services(channel, "v1alpha") == want
    pool, seen = descriptor_pool.DescriptorPool(), {}
    for service in want:
        (answer,) = ask(channel, "v1alpha", field(4, service.encode()))
        for n, data in reversed(fields(answer[4])):
            f = descriptor_pb2.FileDescriptorProto.FromString(data)
            if f.name not in seen:
                seen[f.name] = data
                pool.Add(f)
    assert set(seen) == {f"rpc/proto/{n}.proto" for n in
                         ("types", "inference", "stage", "admin", "health", "reflection", "reflection_v1alpha")}, seen.keys()
    for symbol in ("sluice.v1.GenerateRequest", "sluice.v1.GenerateRequest.stop", "sluice.v1.Inference.Generate",
                   "sluice.v1.FinishReason", "grpc.health.v1.HealthCheckResponse.ServingStatus",
                   "grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING"):
        (answer,) = ask(channel, "v1", field(4, symbol.encode()))
        assert 4 in answer, symbol
    for request in (field(4, b"sluice.v1.Generate"), field(4, b"sluice.v1.GenerateRequest.no"), field(4, b"sluice"),
                    field(4, b""), field(4, b"sluice.v1.Inference."), field(4, b"sluice.v1."), field(3, b"nope.proto"),
                    field(5, field(1, b"x"))):
        (answer,) = ask(channel, "v1", request)
        assert 7 in answer, request
    # Several questions on one stream; a file by its name brings what it imports.
    by_name = ask(channel, "v1", field(3, b"rpc/proto/inference.proto"), field(6, b"sluice.v1.Usage"), field(7, b""))
    assert len(by_name) == 3
    names = [descriptor_pb2.FileDescriptorProto.FromString(d).name for _, d in fields(by_name[0][4])]
    assert names == ["rpc/proto/inference.proto", "rpc/proto/types.proto"], names
    assert dict(fields(by_name[1][5]))[1] == b"sluice.v1.Usage"
    expect(grpc.StatusCode.INVALID_ARGUMENT, lambda: ask(channel, "v1", b"\xff\xff"))
    return pool


class Stubs:
    def __init__(self, channel, pool):
        self.channel, self.pool, self.factory = channel, pool, message_factory.MessageFactory(pool)

    def message(self, name):
        return self.factory.GetPrototype(self.pool.FindMessageTypeByName(name))

    def __call__(self, service, name, request, **options):
        m = self.pool.FindServiceByName(service).FindMethodByName(name)
        stream = name in ("Generate", "Watch", "WatchStatus")
        call = getattr(self.channel, "unary_stream" if stream else "unary_unary")(
            f"/{service}/{name}", request_serializer=lambda x: x.SerializeToString(),
            response_deserializer=self.message(m.output_type.full_name).FromString)
        return call(request, **{"timeout": 5, **options})


def expect(code, function):
    try:
        function()
    except grpc.RpcError as e:
        assert e.code() == code, (e.code(), e.details())
        return e
    raise AssertionError(f"no {code}")


def check_health(stubs, server):
    request = stubs.message("grpc.health.v1.HealthCheckRequest")
    for service in ("", "sluice.v1.Inference", "sluice.v1.Stages", "sluice.v1.Admin", "grpc.health.v1.Health"):
        assert stubs("grpc.health.v1.Health", "Check", request(service=service)).status == 1, service
    expect(grpc.StatusCode.NOT_FOUND, lambda: stubs("grpc.health.v1.Health", "Check", request(service="other")))
    watch = stubs("grpc.health.v1.Health", "Watch", request(service="sluice.v1.Inference"), timeout=10)
    unknown = stubs("grpc.health.v1.Health", "Watch", request(service="other"), timeout=10)
    assert next(watch).status == 1
    assert next(unknown).status == 3
    for command, status in ((b"h", 2), (b"H", 1)):
        server.stdin.write(command)
        server.stdin.flush()
        assert next(watch).status == status
    watch.cancel()
    unknown.cancel()


def check_generate(stubs):
    request = stubs.message("sluice.v1.GenerateRequest")
    r = request(text="say hello", request_id="req-1")
    r.sampler.seed = 1 << 63
    events = list(stubs("sluice.v1.Inference", "Generate", r))
    kinds = [e.WhichOneof("event") for e in events]
    assert kinds[0] == "accepted" and kinds[-1] == "done" and set(kinds[1:-1]) == {"text"}, kinds
    assert "".join(e.text.text for e in events if e.HasField("text")) == "hello"
    assert [i for e in events for i in e.text.ids] == [300000] * 5
    accepted = events[0].accepted
    assert accepted.request_id == "req-1" and accepted.seed == 1 << 63 and list(accepted.prompt_ids) == [1, 300000, 3]
    assert accepted.profile == "ipv4:127.0.0.1"
    assert 4000 < accepted.prompt_tokens <= 5100, accepted.prompt_tokens  # the call's deadline, rounded up by gRPC
    assert events[-1].done.finish == 2 and events[-1].done.usage.completion_tokens == 9
    # Who calls: the secret is believed, another bearer is a name.
    r.client = "alice"
    (first, *_) = stubs("sluice.v1.Inference", "Generate", r, metadata=[("authorization", "Bearer s3cret")])
    assert first.accepted.profile == "alice"
    (first, *_) = stubs("sluice.v1.Inference", "Generate", r, metadata=[("authorization", "Bearer sk-1")])
    assert first.accepted.profile.startswith("key-"), first

    e = expect(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: list(stubs("sluice.v1.Inference", "Generate", request(text="fail"))))
    md = dict(e.trailing_metadata())
    detail = stubs.message("sluice.v1.ErrorDetail").FromString(md["sluice-error-bin"])
    assert e.details() == "1024 of 1024 wait" == detail.message
    assert detail.http_status == 503 and detail.retry_after_s == 7 and detail.retryable and detail.param == "p"
    assert detail.code == "c" and detail.type == "overloaded_error"
    assert md["retry-after"] == "7", md
    assert md.get("grpc-retry-pushback-ms") == "7000", md
    e = expect(grpc.StatusCode.INVALID_ARGUMENT, lambda: list(stubs("sluice.v1.Inference", "Generate", request())))
    assert "prompt" in e.details()
    expect(grpc.StatusCode.DEADLINE_EXCEEDED,
           lambda: list(stubs("sluice.v1.Inference", "Generate", request(text="hang"), timeout=0.2)))
    expect(grpc.StatusCode.RESOURCE_EXHAUSTED,
           lambda: list(stubs("sluice.v1.Inference", "Generate", request(text="x" * (2 << 20)))))


def check_unary_and_admin(channel, stubs):
    assert list(stubs("sluice.v1.Inference", "Tokenize", stubs.message("sluice.v1.TokenizeRequest")(text="a\0b")).ids) == [3]
    m = stubs("sluice.v1.Inference", "GetModel", stubs.message("sluice.v1.GetModelRequest")())
    assert m.context == 77 and list(m.ids) == ["m"]
    before = stubs("sluice.v1.Admin", "GetStatus", stubs.message("sluice.v1.GetStatusRequest")()).cancelled
    call = stubs("sluice.v1.Inference", "Generate", stubs.message("sluice.v1.GenerateRequest")(text="hang"))
    time.sleep(0.1)
    call.cancel()
    time.sleep(0.1)
    status = stubs("sluice.v1.Admin", "GetStatus", stubs.message("sluice.v1.GetStatusRequest")())
    assert status.version == "test" and status.live and status.cancelled == before + 1, status
    watch = stubs("sluice.v1.Admin", "WatchStatus", stubs.message("sluice.v1.WatchStatusRequest")(interval_ms=100))
    start = time.monotonic()
    assert all(next(watch).version == "test" for _ in range(4))
    assert 0.25 < time.monotonic() - start < 2
    watch.cancel()
    assert stubs("sluice.v1.Admin", "GetMetrics", stubs.message("sluice.v1.GetMetricsRequest")()).text == "sluice_epoch 1\n"
    aliased = stubs.message("sluice.v1.GetMetricsRequest")
    assert stubs("sluice.v1.Admin", "GetMetrics", aliased(aliases="vllm")).text.endswith("vllm:epoch 1\n")
    expect(grpc.StatusCode.INVALID_ARGUMENT, lambda: stubs("sluice.v1.Admin", "GetMetrics", aliased(aliases="nobody")))
    drain = stubs.message("sluice.v1.DrainRequest")()
    expect(grpc.StatusCode.UNAUTHENTICATED, lambda: stubs("sluice.v1.Admin", "Drain", drain))
    expect(grpc.StatusCode.UNAUTHENTICATED,
           lambda: stubs("sluice.v1.Admin", "Drain", drain, metadata=[("authorization", "Bearer s3cre")]))
    stubs("sluice.v1.Admin", "Drain", drain, metadata=[("authorization", "Bearer s3cret")])
    attach = raw(channel, "stream_stream", "/sluice.v1.Stages/Attach")
    expect(grpc.StatusCode.UNAUTHENTICATED, lambda: list(attach(iter([b""]), timeout=5)))
    e = expect(grpc.StatusCode.INTERNAL,
               lambda: list(attach(iter([b"\xff"]), timeout=5, metadata=[("authorization", "Bearer s3cret")])))
    assert "FromStage" in e.details()
    # A stage that half-closes is let go.
    assert list(attach(iter([]), timeout=5, metadata=[("authorization", "Bearer s3cret")])) == []
    expect(grpc.StatusCode.UNIMPLEMENTED, lambda: raw(channel, "unary_unary", "/sluice.v1.Inference/No")(b"", timeout=5))
    for bad in (b"\xff\xff\xff", b"\x0a\xff"):
        expect(grpc.StatusCode.INVALID_ARGUMENT, lambda: raw(channel, "unary_unary", "/sluice.v1.Inference/Tokenize")(bad, timeout=5))
        expect(grpc.StatusCode.INVALID_ARGUMENT,
               lambda: list(raw(channel, "unary_stream", "/sluice.v1.Inference/Generate")(bad, timeout=5)))


def check_bounds(stubs):
    request = stubs.message("sluice.v1.WatchStatusRequest")(interval_ms=60000)
    watches = [stubs("sluice.v1.Admin", "WatchStatus", request, timeout=20) for _ in range(128)]
    assert all(next(w).version == "test" for w in watches)
    e = expect(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: next(stubs("sluice.v1.Admin", "WatchStatus", request)))
    assert dict(e.trailing_metadata())["retry-after"] == "1"
    for w in watches:
        w.cancel()
    time.sleep(0.1)
    assert next(stubs("sluice.v1.Admin", "WatchStatus", request)).version == "test"


def main():
    server = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        port = int(server.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stubs = Stubs(channel, check_reflection(channel))
            check_health(stubs, server)
            check_generate(stubs)
            check_unary_and_admin(channel, stubs)
            check_bounds(stubs)
            held = stubs("sluice.v1.Inference", "Generate", stubs.message("sluice.v1.GenerateRequest")(text="hang"))
            time.sleep(0.1)
            server.stdin.close()  # the server ends with a call open
            assert server.wait(timeout=5) == 0
            expect(grpc.StatusCode.UNAVAILABLE, lambda: list(held))
        print("ok")
    finally:
        server.kill()
        server.wait()


main()
