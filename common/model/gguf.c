#include "common/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "common/base/check.h"
#include "common/model/gguf_impl.h"

struct printable gguf_printable(struct text t)
{
    struct printable out;
    size_t n = 0;
    for (; n < t.len && n + 1 < sizeof out.text; n++)
        out.text[n] = t.data[n] >= 0x20 && t.data[n] < 0x7f ? t.data[n] : '?';
    out.text[n] = 0;
    return out;
}

/* --- opening
 * ------------------------------------------------------------------------------------------------------------ */

enum status gguf_open_memory(const void *data, size_t len, struct gguf **out, struct error *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory to open a model file");
    g->data = data;
    g->len = len;
    enum status s = gguf__parse(g, err);
    if (s != STATUS_OK) {
        gguf_close(g);
        return s;
    }
    *out = g;
    return STATUS_OK;
}

static enum status map_file(int fd, const char *path, void **data, size_t *len, struct timespec *written, struct error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, STATUS_IO, "%s: not a file", path);
    if (st.st_size == 0)
        return error_set(err, STATUS_BAD_MODEL, "%s: magic at byte 0 needs 4 bytes, the file is empty", path);
    *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (*data == MAP_FAILED)
        return error_set(err, errno == ENOMEM ? STATUS_OUT_OF_MEMORY : STATUS_IO, "%s: cannot map %lld bytes: %s", path,
                         (long long)st.st_size, strerror(errno));
    *len = (size_t)st.st_size;
    *written = st.st_mtim;
    return STATUS_OK;
}

/* The parser knows bytes, not files: put the path before what it said. */
static enum status name_path(const char *path, enum status s, struct error *err)
{
    char said[sizeof err->message];
    if (!err)
        return s;
    snprintf(said, sizeof said, "%s", err->message);
    return error_set(err, s, "%.100s: %s", path, said);
}

enum status gguf_open(const char *path, struct gguf **out, struct error *err)
{
    void *data = NULL;
    size_t len = 0;
    struct timespec written;
    struct gguf *g = NULL;
    int fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hang us before it is refused */
    if (fd < 0)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    enum status s = map_file(fd, path, &data, &len, &written, err);
    if (s != STATUS_OK) {
        close(fd);
        return s;
    }
    s = gguf_open_memory(data, len, &g, err);
    if (s != STATUS_OK) {
        munmap(data, len);
        close(fd);
        return name_path(path, s, err);
    }
    g->mapped = 1;
    g->fd = fd;
    g->written = written;
    *out = g;
    return STATUS_OK;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    if (g->mapped) {
        munmap((void *)(uintptr_t)g->data, g->len);
        close(g->fd);
    }
    free(g->keys);
    free(g->key_order);
    free(g->tensors);
    free(g->tensor_order);
    free(g);
}

enum status gguf_check_unchanged(const struct gguf *g, struct error *err)
{
    struct stat st;
    if (!g->mapped)
        return STATUS_OK;
    if (fstat(g->fd, &st) != 0)
        return error_set(err, STATUS_IO, "the model file cannot be looked at: %s", strerror(errno));
    if (st.st_size >= 0 && (uint64_t)st.st_size == g->len && st.st_mtim.tv_sec == g->written.tv_sec &&
        st.st_mtim.tv_nsec == g->written.tv_nsec)
        return STATUS_OK;
    return error_set(err, STATUS_BAD_MODEL, "the model file was written to while it is in use (%llu bytes, now %lld)",
                     (unsigned long long)g->len, (long long)st.st_size);
}

/* --- look-up
 * ------------------------------------------------------------------------------------------------------------ */

uint64_t gguf_file_bytes(const struct gguf *g)
{
    return g->len;
}

uint32_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, uint32_t index)
{
    CHECK(index < g->n_tensors);
    return &g->tensors[index];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    struct text wanted = {name, strlen(name)};
    uint32_t low = 0, high = g->n_tensors;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct gguf_tensor *t = &g->tensors[g->tensor_order[middle]];
        int c = gguf__compare(wanted, t->name);
        if (c == 0)
            return t;
        if (c < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

uint32_t gguf_n_keys(const struct gguf *g)
{
    return g->n_keys;
}

const struct gguf_key *gguf__find_key(const struct gguf *g, const char *name, size_t len)
{
    struct text wanted = {name, len};
    uint32_t low = 0, high = g->n_keys;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct gguf_key *k = &g->keys[g->key_order[middle]];
        int c = gguf__compare(wanted, k->name);
        if (c == 0)
            return k;
        if (c < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* --- identity
 * ----------------------------------------------------------------------------------------------------------- */

void gguf_hash(const struct gguf *g, uint8_t out[32])
{
    enum { ENDS = 4096 };
    uint8_t size[8];
    unsigned n_out = 0;
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    CHECK(c && EVP_DigestInit_ex(c, EVP_sha256(), NULL)); /* fails for want of memory only, at start */
    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)(g->len >> 8 * i);
    EVP_DigestUpdate(c, g->data, g->table_end);
    EVP_DigestUpdate(c, size, sizeof size);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        size_t n = t->bytes < ENDS ? t->bytes : ENDS;
        EVP_DigestUpdate(c, t->data, n);
        EVP_DigestUpdate(c, t->data + t->bytes - n, n);
    }
    CHECK(EVP_DigestFinal_ex(c, out, &n_out) && n_out == 32);
    EVP_MD_CTX_free(c);
}
