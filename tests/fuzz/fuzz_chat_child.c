/* tests/fuzz/fuzz_chat_child.c - chat templates by a child that says anything.
 *
 * Input      1 byte what is rendered, then what the child does at its start and after each question: 1 byte how (enum deed), 1 byte
 *            length, bytes. When they are at their end it says nothing more. Waiting takes no time: poll lets it pass.
 * Must hold  Opening works only if a child said READY and then TEXT; else it is refused in words and no child is left. A rendering
 *            gives exactly what the child said as TEXT, or appends nothing and says why, with the code that the kind of answer has.
 *            What a child is asked are whole frames. It is started again a few times at most, within the time limits.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/text/chat_child.h"
#include "common/text/chat_template_impl.h"
#include "tests/unit/text/vocabulary_maker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
enum status __wrap_chat_child_start(struct chat_child *c, const char *python, unsigned memory_mib, struct error *err);
void __wrap_chat_child_stop(struct chat_child *c);
enum status __real_chat_child_send(struct chat_child *c, char kind, const char *payload, size_t len, int64_t deadline_ns);
enum status __wrap_chat_child_send(struct chat_child *c, char kind, const char *payload, size_t len, int64_t deadline_ns);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int64_t __wrap_clock_now_ns(void);

/* --- the child --------------------------------------------------------------------------------------------------------- */

/* how % 8; of a frame how / 8 says the kind. */
enum deed {
    SAYS_FRAME,      /* 0 to 3 */
    SAYS_BYTES = 4,  /* as they are, no frame */
    SAYS_AND_ENDS,   /* a frame, and closes */
    ENDS,            /* after the bytes as they are */
    SAYS_TWICE,      /* the frame, and again */
};

static const char kinds[] = {CHILD_SAYS_READY, CHILD_SAYS_TEXT, CHILD_SAYS_RAISED, CHILD_SAYS_ERROR, CHILD_SAYS_LIMIT, CHILD_ASK_RENDER, 0};
enum { NO_START = 7 }; /* in place of a kind: the program cannot be run */

static struct {
    const uint8_t *at, *end;
    int peer;                 /* -1: none */
    int64_t now_ns;
    unsigned n_starts, n_polls;
    unsigned n_frames;        /* of this child, while it said nothing but frames */
    int only_frames;
    struct {
        char kind;
        const uint8_t *data;
        size_t len;
    } frame[3];               /* its first two and its newest */
} child = {.peer = -1};

static void say(const void *bytes, size_t len)
{
    if (child.peer >= 0)
        (void)!send(child.peer, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void hang_up(void)
{
    if (child.peer >= 0)
        close(child.peer);
    child.peer = -1;
}

static void say_frame(char kind, const uint8_t *data, size_t len)
{
    const uint8_t head[5] = {(uint8_t)len, 0, 0, 0, (uint8_t)kind};
    say(head, sizeof head);
    say(data, len);
    if (child.n_frames < 2) {
        child.frame[child.n_frames].kind = kind;
        child.frame[child.n_frames].data = data;
        child.frame[child.n_frames].len = len;
    }
    child.frame[2].kind = kind;
    child.frame[2].data = data;
    child.frame[2].len = len;
    child.n_frames++;
}

static void act(void)
{
    if (child.end - child.at < 2)
        return;
    const uint8_t how = child.at[0];
    const size_t left = (size_t)(child.end - child.at) - 2, len = child.at[1] < left ? child.at[1] : left;
    const uint8_t *data = child.at + 2;
    const char kind = kinds[how / 8 % sizeof kinds];
    child.at += 2 + len;
    switch (how % 8) {
    case SAYS_BYTES:
    case ENDS:
        say(data, len);
        child.only_frames &= len == 0;
        break;
    case SAYS_TWICE:
        say_frame(kind, data, len);
        say_frame(kind, data, len);
        child.only_frames = 0;
        break;
    default:
        say_frame(kind, data, len);
    }
    if (how % 8 == SAYS_AND_ENDS || how % 8 == ENDS)
        hang_up();
}

enum status __wrap_chat_child_start(struct chat_child *c, const char *python, unsigned memory_mib, struct error *err)
{
    int fd[2];
    CHECK(python[0] && memory_mib > 0 && child.peer < 0);
    child.n_starts++;
    if (child.end - child.at >= 1 && child.at[0] / 8 % 8 == NO_START) {
        child.at++;
        return error_set(err, STATUS_CONFIG, "chat template: cannot run %s", python);
    }
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0 && fcntl(fd[0], F_SETFL, O_NONBLOCK) == 0);
    *c = (struct chat_child){.pid = 1, .fd = fd[0]};
    child.peer = fd[1];
    child.n_frames = 0;
    child.only_frames = 1;
    act();
    return STATUS_OK;
}

void __wrap_chat_child_stop(struct chat_child *c)
{
    if (c->pid <= 0)
        return;
    close(c->fd);
    hang_up();
    *c = (struct chat_child){.fd = -1};
}

/* What came is one frame, and all of it. */
static void hear(char kind, const char *payload, size_t len)
{
    static char heard[64 << 10];
    size_t n = 0;
    for (ssize_t got; (got = recv(child.peer, heard + n, sizeof heard - n, MSG_DONTWAIT)) > 0;)
        n += (size_t)got;
    CHECK(n == 5 + len && heard[4] == kind && memcmp(heard + 5, payload, len) == 0);
    CHECK((unsigned char)heard[0] == (len & 255) && (unsigned char)heard[1] == (len >> 8 & 255) && heard[2] == 0 && heard[3] == 0);
}

enum status __wrap_chat_child_send(struct chat_child *c, char kind, const char *payload, size_t len, int64_t deadline_ns)
{
    enum status s = __real_chat_child_send(c, kind, payload, len, deadline_ns);
    CHECK(s == STATUS_OK ? child.peer >= 0 : child.peer < 0 && s == STATUS_CLOSED);
    if (s == STATUS_OK) {
        hear(kind, payload, len);
        act();
    }
    return s;
}

/* Nothing comes by waiting. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    CHECK(n == 1 && fds->fd >= 0 && timeout_ms > 0);
    if (++child.n_polls % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    child.now_ns += timeout_ms * NS_PER_MS;
    return 0;
}

int64_t __wrap_clock_now_ns(void)
{
    return child.now_ns;
}

/* --- its parent -------------------------------------------------------------------------------------------------------- */

static struct tokenizer *tokenizer;

static void open_vocabulary(void)
{
    static struct vocabulary_maker maker;
    struct text tokens[258];
    int32_t types[258];
    static struct gguf *g;
    struct error err;
    size_t len;
    log_set_levels("error", NULL);
    vocabulary_maker_symbols(tokens);
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        types[i] = i < 256 ? 1 : 3;
    tokens[256] = (struct text){"<s>", 3};
    tokens[257] = (struct text){"</s>", 4};
    vocabulary_maker_init(&maker);
    vocabulary_maker_text(&maker, "tokenizer.ggml.model", "gpt2");
    vocabulary_maker_text(&maker, "tokenizer.ggml.pre", "qwen2");
    vocabulary_maker_texts(&maker, "tokenizer.ggml.tokens", tokens, 258);
    vocabulary_maker_ints(&maker, "tokenizer.ggml.token_type", types, 258);
    vocabulary_maker_texts(&maker, "tokenizer.ggml.merges", tokens, 0);
    vocabulary_maker_u32(&maker, "tokenizer.ggml.bos_token_id", 256);
    vocabulary_maker_u32(&maker, "tokenizer.ggml.eos_token_id", 257);
    const void *bytes = vocabulary_maker_bytes(&maker, &len);
    CHECK(gguf_open_memory(bytes, len, &g, &err) == STATUS_OK && tokenizer_create(g, &tokenizer, &err) == STATUS_OK);
}

static int said(unsigned i, char kind)
{
    return child.n_frames > i && child.frame[i].kind == kind;
}

static void check_refusal(const struct error *err)
{
    static const struct {
        char kind;
        const char *code;
    } codes[] = {{CHILD_SAYS_RAISED, "chat_template_raised"}, {CHILD_SAYS_ERROR, "chat_template_error"}, {CHILD_SAYS_LIMIT, "chat_template_limit"}};
    size_t i = 0;
    while (i < ARRAY_LEN(codes) && strcmp(codes[i].code, err->code) != 0)
        i++;
    CHECK(i < ARRAY_LEN(codes) && strcmp(err->param, "messages") == 0);
    /* A child that met its limit is replaced at once, so that what it said is gone. */
    CHECK(!child.only_frames || codes[i].kind == CHILD_SAYS_LIMIT || child.frame[2].kind == codes[i].kind);
}

static void render(struct chat_template *t, int mark)
{
    static const char context[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a <s> </s>\"}], \"tools\": null}";
    const int64_t start_ns = child.now_ns;
    struct error err = {0};
    struct buf out;
    buf_init(&out, 1 << 20);
    CHECK(buf_text(&out, "before") == STATUS_OK);
    child.n_starts = 0;
    enum status s = chat_template_render(t, context, sizeof context - 1, mark, &out, &err);
    CHECK(out.len >= 6 && memcmp(out.data, "before", 6) == 0);
    if (s == STATUS_OK) {
        CHECK(!child.only_frames || said(2, CHILD_SAYS_TEXT));
        CHECK(!child.only_frames || (out.len - 6 == child.frame[2].len && memcmp(out.data + 6, child.frame[2].data, out.len - 6) == 0));
    } else {
        CHECK(out.len == 6 && err.status == s);
        CHECK(s == STATUS_BAD_REQUEST || s == STATUS_TIMEOUT || s == STATUS_INTERNAL || s == STATUS_IO);
        CHECK(s == STATUS_BAD_REQUEST || err.message[0]); /* raise_exception may say nothing */
        if (s == STATUS_BAD_REQUEST)
            check_refusal(&err);
    }
    CHECK(child.n_starts <= 7);
    CHECK(child.now_ns - start_ns <= 60000 * NS_PER_MS); /* two starts that hang, compiling, the limit of a rendering */
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct chat_source sources[] = {
        {.text = {"{{ messages }}", 14}},
        {.text = {"{{ messages }}", 14}, .tools = {"{{ tools }}", 11}},
        {.text = {"{{ \xff }}", 7}},
    };
    struct chat_template *t = NULL;
    struct error err = {0};
    if (!tokenizer)
        open_vocabulary();
    if (size < 1)
        return 0;
    child.at = data + 1;
    child.end = data + size;
    child.n_starts = child.n_polls = 0;
    const struct chat_source *source = &sources[data[0] % ARRAY_LEN(sources)];
    enum status s = chat_template_open(source, "python", tokenizer, &t, &err);
    if (s != STATUS_OK) {
        CHECK((s == STATUS_CONFIG || s == STATUS_BAD_MODEL) && err.status == s && err.message[0]);
        CHECK(child.peer < 0 && child.n_starts == 1);
        return 0;
    }
    CHECK(!child.only_frames || (said(0, CHILD_SAYS_READY) && said(1, CHILD_SAYS_TEXT)));
    if (data[0] & 128)
        chat_template__freeze(t, "2024-07-26T09:30:00", NULL);
    for (int i = 0; i < 4; i++)
        render(t, data[0] >> (4 + i % 2) & 1);
    chat_template_close(t);
    CHECK(child.peer < 0);
    return 0;
}
