"""Renders chat templates with Jinja2 for the process that started it (chat_child.h has the frames).

Sets Jinja2 up as transformers does. The template is not trusted: before it is compiled the process gives up files,
sockets, processes and memory beyond a limit, and an alarm that nobody can catch ends every compile and render.
"""
import codecs
import json
import os
import re
import resource
import signal
import struct
import sys

MARK, ESCAPED_MARK = "\U0010fffd", "\\udbff\\udffd"


def read_exactly(n):
    data = bytearray(n)
    view = memoryview(data)
    while view:
        got = os.readv(0, [view])
        if not got:
            os._exit(0)  # the parent is gone
        view = view[got:]
    return data


def receive():
    length, kind = struct.unpack("<IB", read_exactly(5))
    return chr(kind), read_exactly(length)


def send(kind, payload=b""):
    view = memoryview(struct.pack("<IB", len(payload), ord(kind)) + payload)
    while view:
        view = view[os.write(1, view):]


def utf8(text):
    return text.encode("utf-8", "replace")


try:
    import ctypes
    import datetime

    import jinja2
    import jinja2.debug  # otherwise imported at the first error, when no file can be opened any more
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as e:
    send("E", utf8(f"{sys.executable} has no jinja2 ({e})"))
    os._exit(1)


class Raised(jinja2.exceptions.TemplateError):
    """raise_exception: what the template says about its input."""


class OverLimit(Exception):
    """Too much output."""


class Generation(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training; its content is ordinary output."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _same(self, context, caller):
        return caller()


class Arguments(dict):
    """What a tool was called with: an object, and its JSON to a template that joins it with other text."""

    def __str__(self):
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other):
        return str(self) + other

    def __radd__(self, other):
        return other + str(self)


class Habits:
    """What a template knows of the API's messages; what it does not know it would drop or trip over.

    Content of a message that lives by its tool calls: some ask whether it is none, others want text. What the source says
    is tried first.
    """

    def __init__(self, source):
        self.developer = "'developer'" in source or '"developer"' in source
        self.no_content = ("", None)
        if re.search(r"\bcontent['\"\])]*\s+is\s+(not\s+)?none", source, re.IGNORECASE):
            self.no_content = (None, "")

    def fit(self, messages):
        """Returns the messages without content."""
        bare = []
        for m in messages if isinstance(messages, list) else []:
            if not isinstance(m, dict):
                continue
            if m.get("role") == "developer" and not self.developer:
                m["role"] = "system"
            calls = m.get("tool_calls")
            if calls and "content" not in m:
                m["content"] = self.no_content[0]
                bare.append(m)
            for call in calls if isinstance(calls, list) else []:
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
                    function["arguments"] = Arguments(function["arguments"])
        return bare


class Renderer:
    def __init__(self, settings):
        self.time_limit = settings["time_limit_s"]
        self.output_limit = settings["output_limit"]
        self.now = settings.get("now")
        self.tokens = {k: settings[k] for k in ("bos_token", "eos_token") if k in settings}
        self.marked = False
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=[Generation, jinja2.ext.loopcontrols])
        env.filters["tojson"] = self.tojson
        env.globals["raise_exception"] = self.raise_exception
        env.globals["strftime_now"] = self.strftime_now
        self.template = env.from_string(settings["template"])
        self.tools_template = self.tools_template_of(env, settings)
        self.habits = Habits(settings["template"])
        self.tools_habits = Habits(settings.get("tools_template", settings["template"]))

    def tools_template_of(self, env, settings):
        if "tools_template" not in settings:
            return self.template
        try:
            return env.from_string(settings["tools_template"])
        except jinja2.exceptions.TemplateSyntaxError as e:
            e.args = (f"(of the template for tools) {e.message}",)
            raise

    def tojson(self, x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        text = json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return text.replace(ESCAPED_MARK, MARK) if ensure_ascii and self.marked else text

    @staticmethod
    def raise_exception(message):
        raise Raised(message)

    def strftime_now(self, form):
        now = datetime.datetime.fromisoformat(self.now) if self.now else datetime.datetime.now()
        return now.strftime(form)

    def render(self, context, marked):
        self.marked = marked
        variables = {"tools": None, "documents": None, **self.tokens, **context}
        del context
        template, habits = (self.tools_template, self.tools_habits) if variables["tools"] else (self.template, self.habits)
        bare = habits.fit(variables.get("messages"))
        try:
            return self.generate(template, variables)
        except (OverLimit, MemoryError):
            raise
        except Exception as e:
            if not bare:
                raise
            first = e
        for m in bare:
            m["content"] = habits.no_content[1]
        try:
            return self.generate(template, variables)
        except (OverLimit, MemoryError):
            raise
        except Exception:
            raise first

    def generate(self, template, variables):
        parts, left = [], self.output_limit
        for part in template.generate(variables):
            left -= len(part)
            if left < 0:
                raise OverLimit(f"the chat template wrote more than {self.output_limit} characters")
            parts.append(part)
        return "".join(parts)


SYSCALLS = {  # what CPython needs once everything is imported; the first number is the audit architecture
    # read readv write close fstat lseek mmap mprotect munmap brk sigaction sigprocmask sigreturn mremap madvise
    # setitimer getpid exit gettimeofday futex clock_gettime exit_group getrandom
    "x86_64": (0xC000003E, [0, 19, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 25, 28, 38, 39, 60, 96, 202, 228, 231, 318]),
    "aarch64": (0xC00000B7, [63, 65, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 216, 233, 103, 172, 93, 169, 98,
                             113, 94, 278]),
}


def filter_system_calls():
    """Everything but SYSCALLS fails with EPERM from here on. False where that cannot be had."""
    arch, allowed = SYSCALLS.get(os.uname().machine, (0, []))
    if not allowed:
        return False
    op = lambda code, jump_true, jump_false, k: struct.pack("<HBBI", code, jump_true, jump_false, k)
    load, jump_equal, give = 0x20, 0x15, 0x06
    program = [op(load, 0, 0, 4), op(jump_equal, 1, 0, arch), op(give, 0, 0, 0x80000000), op(load, 0, 0, 0)]
    for i, number in enumerate(allowed):
        program.append(op(jump_equal, len(allowed) - i, 0, number))
    program += [op(give, 0, 0, 0x00050001), op(give, 0, 0, 0x7FFF0000)]  # EPERM; allow
    code = ctypes.create_string_buffer(b"".join(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.addressof(header), 0, 0) == 0


def give_up_rights(memory_bytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + memory_bytes
    for what, limit in ((resource.RLIMIT_AS, most), (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_NOFILE, 0)):
        resource.setrlimit(what, (limit, limit))


def answer(renderer):
    """Kind and bytes of the reply to the next request."""
    try:
        kind, payload = receive()
        signal.setitimer(signal.ITIMER_REAL, renderer.time_limit + 0.5)
        context = json.loads(payload)
        del payload
        if not isinstance(context, dict):
            return "E", b"the context is no JSON object"
        return "O", utf8(renderer.render(context, kind == "M"))
    except Raised as e:
        return "X", utf8(str(e))
    except OverLimit as e:
        return "L", utf8(str(e))
    except MemoryError:
        return "L", b"the chat template needs too much memory"
    except Exception as e:
        return "E", utf8(f"{type(e).__name__}: {e}"[:1000])


WARM_UP = """{% macro m(x) %}{{ x | upper }}{% endmacro %}{{ m('\\n\u00e9') }}{{ [1] | tojson(indent=2) }}
{{ {'a': [3, 1]} | pprint }}{{ '<a b>' | urlize | striptags }}{{ 'a b' | urlencode | wordwrap(1) }}{{ [1, 2] | random }}
{{ lipsum(1) }}{{ strftime_now('%c') }}{{ 1.5 | round | filesizeformat }}{% generation %}{{ [1] | batch(2) | list }}{% endgeneration %}
{{ raise_exception('x') }}"""


def warm_up():
    """Has every module loaded and every codec and cache filled that a template can ask for later, without files."""
    for template in (WARM_UP, "{% if %}", "{{ 1 | no_such_filter }}", "{{ ''.__class__ }}", "{{ no.such }}"):
        settings = {"template": template, "time_limit_s": 0, "output_limit": 1 << 20}
        try:
            Renderer(settings).render({}, False)
        except jinja2.exceptions.TemplateError:
            pass
    for name in ("ascii", "utf-8", "unicode-escape"):
        codecs.lookup(name)


def compile_template():
    _, payload = receive()
    settings = json.loads(payload)
    signal.setitimer(signal.ITIMER_REAL, settings["compile_limit_s"] + 0.5)
    try:
        renderer = Renderer(settings)
    except jinja2.exceptions.TemplateSyntaxError as e:
        send("E", utf8(f"line {e.lineno}: {e.message}"))
        os._exit(1)
    except BaseException as e:
        send("E", utf8(f"{type(e).__name__}: {e}"[:1000]))
        os._exit(1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    send("O")
    return renderer


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    warm_up()
    give_up_rights(int(sys.argv[1]))
    send("Y", b"with" if filter_system_calls() else b"without")
    renderer = compile_template()
    while True:
        says, reply = answer(renderer)
        send(says, reply)
        if says == "L":
            os._exit(1)  # so that nothing of it lingers
        signal.setitimer(signal.ITIMER_REAL, 0)
        del reply


main()
