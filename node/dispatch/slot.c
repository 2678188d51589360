/* SPDX-License-Identifier: Apache-2.0 */
/* One request inside libcurl, or the connection for one of the short way. libcurl calls, in this
 * order: on_open_socket (new connections only), on_prerequest (the connection stands, and the
 * request is written when it returns), on_header and on_write (the answer). One that only connects
 * ends behind on_prerequest.
 *
 * When a reused connection breaks before an answer came, libcurl begins again on another one. Each
 * beginning passes on_prerequest, and that lets a request through once only: what was handed to a
 * connection may have reached the service. It also stands right before the first byte leaves, which
 * is where the fence has to be looked at. Refusing the rewind of a read callback would do the same,
 * at the price of a second packet and two more system calls per request. */
#include "node/dispatch/dispatch_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEEP_ANSWER_MAX 4096
#define UPLOAD_SIZE (16 * 1024L)
/* libcurl allocates the buffer that it reads into for each request anew. Most answers fit into its
 * smallest one, and of those hundreds stay in the processor's cache. */
#define READ_SIZE 1024L
#define READ_SIZE_LARGE (16 * 1024L) /* for answers with many results */

void slot_fail(struct dispatch_slot *s, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(s->failure, sizeof(s->failure), fmt, args);
    va_end(args);
}

static bool is_past_fence(struct dispatch_slot *s, int64_t now_us)
{
    if (now_us / 1000 >= s->r->send_by)
        s->is_fenced = true;
    return s->is_fenced;
}

/* A request that has left is not begun a second time. */
static bool has_left(struct dispatch_slot *s)
{
    if (s->left_us)
        slot_fail(s, "the connection broke before an answer came");
    return s->left_us != 0;
}

static curl_socket_t on_open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct dispatch_slot *s = ctx;
    const char *why = address_refusal(&s->d->rules, &a->addr);

    (void)purpose; /* there are no others for HTTP */
    if (has_left(s) || is_past_fence(s, clock_mono_us()))
        return CURL_SOCKET_BAD;
    if (why) {
        slot_fail(s, "the service's address is refused: %s", why);
        return CURL_SOCKET_BAD;
    }
    int fd = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    if (fd < 0 || !watch_open(s->d, fd)) {
        slot_fail(s, "no socket: %s", fd < 0 ? strerror(errno) : "out of memory");
        if (fd >= 0)
            (void)close(fd); /* nothing was written to it */
        return CURL_SOCKET_BAD;
    }
    s->is_tried = true;
    return fd;
}

static int on_prerequest(void *ctx, char *ip, char *local_ip, int port, int local_port)
{
    struct dispatch_slot *s = ctx;
    int64_t now_us = clock_mono_us();

    (void)ip;
    (void)local_ip;
    (void)port;
    (void)local_port;
    /* An address refused or unreachable no longer matters once another one was reached. */
    s->failure[0] = '\0';
    if (has_left(s) || is_past_fence(s, now_us))
        return CURL_PREREQFUNC_ABORT;
    if (!s->call)
        s->left_us = now_us;
    return CURL_PREREQFUNC_OK;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Whether the line is this header ("name:"); then *ret is its value without white space around it.
 */
static bool is_header(struct str line, struct str name, struct str *ret)
{
    if (line.len < name.len || strncasecmp(line.p, name.p, name.len) != 0)
        return false;
    struct str value = {line.p + name.len, line.len - name.len};
    while (value.len > 0 && is_space(value.p[value.len - 1]))
        value.len--;
    while (value.len > 0 && is_space(*value.p)) {
        value.p++;
        value.len--;
    }
    *ret = value;
    return true;
}

static void keep_retry_after(struct dispatch_slot *s, struct str value)
{
    s->has_retry_after = value.len <= sizeof(s->retry_after); /* neither form is as long as that */
    if (!s->has_retry_after)
        return;
    memcpy(s->retry_after, value.p, value.len);
    s->retry_after_len = value.len;
}

/* Two different lengths leave it open where the answer ends, and the next one begins. libcurl takes
 * the last; what is no number it refuses itself. */
static bool keep_length(struct dispatch_slot *s, struct str value)
{
    int64_t length;

    if (!str_to_i64(value, &length))
        return true;
    if (s->has_length && s->length != length) {
        slot_fail(s, "the answer has two different Content-Lengths");
        return false;
    }
    s->has_length = true;
    s->length = length;
    return true;
}

/* A 1xx says that the handler is at work, the answer itself is still to come. What stood in earlier
 * blocks belongs to such. */
static void begin_block(struct dispatch_slot *s, struct str status_line)
{
    const char *space = memchr(status_line.p, ' ', status_line.len);
    const char *end = status_line.p + status_line.len;

    s->is_answered = !space || space + 1 == end || space[1] != '1';
    s->has_retry_after = false;
    s->has_length = false;
}

static size_t on_header(char *p, size_t size, size_t n, void *ctx)
{
    struct dispatch_slot *s = ctx;
    size_t len = size * n;
    struct str line = {p, len};
    struct str value;

    s->is_heard = true;
    s->answer_header_len += len;
    if (s->answer_header_len > REPLY_HEADERS_MAX) {
        slot_fail(s, "the answer's headers are above %d bytes", REPLY_HEADERS_MAX);
        return 0;
    }
    if (len > 5 && !memcmp(p, "HTTP/", 5))
        begin_block(s, line);
    else if (is_header(line, STR("Retry-After:"), &value))
        keep_retry_after(s, value);
    else if (is_header(line, STR("Content-Length:"), &value) && !keep_length(s, value))
        return 0;
    return len;
}

static size_t on_write(char *p, size_t size, size_t n, void *ctx)
{
    struct dispatch_slot *s = ctx;
    size_t len = size * n;
    size_t max = s->r->max_answer ? s->r->max_answer : s->d->max_answer;
    size_t room = max - s->answer.len;

    s->is_heard = true;
    buf_add(&s->answer, p, len < room ? len : room);
    if (!buf_ok(&s->answer)) {
        slot_fail(s, "no memory for the answer");
        return 0;
    }
    s->is_cut = len > room;
    return s->is_cut ? 0 : len;
}

/* For a row of options: `rc` is not 0 in the end if one could not be set. */
#define SET(easy, option, value) (rc |= (int)curl_easy_setopt((easy), (option), (value)))

static int set_callbacks(struct dispatch_slot *s)
{
    CURL *e = s->easy;
    int rc = 0;

    SET(e, CURLOPT_PRIVATE, s);
    SET(e, CURLOPT_ERRORBUFFER, s->curl_error);
    SET(e, CURLOPT_OPENSOCKETFUNCTION, on_open_socket);
    SET(e, CURLOPT_OPENSOCKETDATA, s);
    SET(e, CURLOPT_CLOSESOCKETFUNCTION, watch_on_close);
    SET(e, CURLOPT_CLOSESOCKETDATA, s->d); /* the connection may outlive the slot */
    SET(e, CURLOPT_PREREQFUNCTION, on_prerequest);
    SET(e, CURLOPT_PREREQDATA, s);
    SET(e, CURLOPT_HEADERFUNCTION, on_header);
    SET(e, CURLOPT_HEADERDATA, s);
    SET(e, CURLOPT_WRITEFUNCTION, on_write);
    SET(e, CURLOPT_WRITEDATA, s);
    return rc;
}

static int set_constants(struct dispatch_slot *s)
{
    CURL *e = s->easy;
    int rc = 0;

    SET(e, CURLOPT_NOSIGNAL, 1L);
    SET(e, CURLOPT_QUICK_EXIT, 1L); /* a time-out does not wait for the resolver's thread */
    SET(e, CURLOPT_PROTOCOLS_STR, "http,https");
    SET(e, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    SET(e, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
    SET(e, CURLOPT_PATH_AS_IS, 1L);
    SET(e, CURLOPT_FOLLOWLOCATION, 0L);
    SET(e, CURLOPT_PROXY, ""); /* none, whatever the environment says */
    SET(e, CURLOPT_NOPROXY, "*");
    SET(e, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(e, CURLOPT_TCP_NODELAY, 1L);
    SET(e, CURLOPT_TCP_KEEPALIVE, 1L);
    SET(e, CURLOPT_POST, 1L);
    SET(e, CURLOPT_UPLOAD_BUFFERSIZE, UPLOAD_SIZE);
    SET(e, CURLOPT_CONNECTTIMEOUT_MS, (long)s->d->connect_timeout_ms);
    SET(e, CURLOPT_DNS_CACHE_TIMEOUT, s->d->refresh_s);
    SET(e, CURLOPT_MAXLIFETIME_CONN, s->d->refresh_s);
    if (s->d->ca_file) {
        SET(e, CURLOPT_CAINFO, s->d->ca_file);
        SET(e, CURLOPT_CAPATH, NULL);
        SET(e, CURLOPT_CA_CACHE_TIMEOUT, s->d->refresh_s);
    }
    return rc;
}

struct dispatch_slot *slot_new(struct dispatch *d)
{
    struct dispatch_slot *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->d = d;
    s->easy = curl_easy_init();
    if (!s->easy || set_callbacks(s) || set_constants(s)) {
        slot_free(s);
        return NULL;
    }
    return s;
}

void slot_free(struct dispatch_slot *s)
{
    if (!s)
        return;
    curl_easy_cleanup(s->easy);
    curl_url_cleanup(s->parsed);
    free(s->url);
    buf_fini(&s->answer);
    free(s);
}

/* libcurl reads the list and does not keep it; it lives in the slot. */
static struct curl_slist *link_headers(struct dispatch_slot *s)
{
    static char no_expect[] = "Expect:";
    struct dispatch_request *r = s->r;

    for (size_t i = 0; i < r->n_headers; i++) {
        s->headers[i].data = (char *)r->headers[i];
        s->headers[i].next = &s->headers[i + 1];
    }
    s->headers[r->n_headers] = (struct curl_slist){.data = no_expect};
    return s->headers;
}

/* A slot goes on to the same service as a rule: the URL is read when it is another one than before.
 * What libcurl cannot read fails in the transfer, as it would without this. */
static int set_url(struct dispatch_slot *s, const char *url)
{
    CURLU *parsed;
    int rc = 0;

    if (s->url && !strcmp(s->url, url))
        return 0;
    free(s->url);
    s->url = NULL;
    parsed = curl_url();
    if (parsed && !curl_url_set(parsed, CURLUPART_URL, url, CURLU_DISALLOW_USER | CURLU_PATH_AS_IS))
        s->url = strdup(url);
    SET(s->easy, CURLOPT_URL, url);
    SET(s->easy, CURLOPT_CURLU, s->url ? parsed : NULL);
    if (!s->url) {
        curl_url_cleanup(parsed);
        parsed = NULL;
    }
    curl_url_cleanup(s->parsed); /* libcurl has let go of it */
    s->parsed = parsed;
    return rc;
}

/* A handle that still has a buffer, of a request that failed early, goes on with that one. */
static void set_read_size(struct dispatch_slot *s, long size)
{
    if (s->read_size != size && !curl_easy_setopt(s->easy, CURLOPT_BUFFERSIZE, size))
        s->read_size = size;
}

int slot_prepare(struct dispatch_slot *s, struct dispatch_request *r, struct plain_call *call,
                 int64_t timeout_ms)
{
    CURL *e = s->easy;
    int rc = 0;

    assert(!s->r && !s->left_us && r->n_headers <= DISPATCH_HEADERS_MAX);
    s->r = r;
    s->call = call;
    rc |= set_url(s, r->url);
    SET(e, CURLOPT_HTTPHEADER, link_headers(s));
    set_read_size(s, r->max_answer ? READ_SIZE_LARGE : READ_SIZE);
    SET(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body.len);
    SET(e, CURLOPT_POSTFIELDS, r->body.p ? r->body.p : ""); /* not copied */
    SET(e, CURLOPT_TIMEOUT_MS, timeout_ms > 0 ? (long)timeout_ms : 1L);
    if (s->connects_only != (call != NULL))
        SET(e, CURLOPT_CONNECT_ONLY, call ? 1L : 0L);
    s->connects_only = call != NULL;
    if (rc)
        return ERR_NOMEM;
    s->started_us = clock_mono_us();
    return 0;
}

void slot_nudge(struct dispatch_slot *s)
{
    if (!s->is_tried || s->left_us)
        return;
    /* A change of the pause makes a handle ready; it fails without a connection only. */
    (void)curl_easy_pause(s->easy, CURLPAUSE_RECV);
    (void)curl_easy_pause(s->easy, CURLPAUSE_CONT);
}

/* A second descriptor of the same socket: libcurl closes its own with the handle's connection. */
int slot_steal(struct dispatch_slot *s)
{
    curl_socket_t fd = CURL_SOCKET_BAD;

    (void)curl_easy_getinfo(s->easy, CURLINFO_ACTIVESOCKET, &fd); /* says so by the descriptor */
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static struct str failure_text(const struct dispatch_slot *s, CURLcode code)
{
    if (s->failure[0])
        return str_from(s->failure);
    /* libcurl has no other code for a line above its own limit. */
    if (code == CURLE_OUT_OF_MEMORY && s->left_us)
        return STR("no room for the answer: one of its header lines is above 100 KB, or memory is "
                   "short");
    return str_from(s->curl_error[0] ? s->curl_error : curl_easy_strerror(code));
}

void slot_answer(struct dispatch_slot *s, CURLcode code)
{
    struct answer *a = &s->r->answer;
    long status = 0;

    *a = (struct answer){.sent = true};
    if (code == CURLE_OK || s->is_cut) {
        (void)curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status); /* cannot fail */
        a->http_status = (int32_t)status;
        a->body = buf_str(&s->answer);
        a->body_cut = s->is_cut;
        if (s->has_retry_after)
            a->retry_after = (struct str){s->retry_after, s->retry_after_len};
    } else if (s->is_fenced && !s->left_us && s->is_tried) {
        /* Given back, it would fare the same for ever. */
        a->failure = STR("no connection stood in time for its claim");
    } else if (s->is_fenced && !s->left_us) {
        a->sent = false;
        a->failure = STR("too late to be sent within its claim");
    } else {
        a->failure = failure_text(s, code);
    }
    s->r->is_unsent = !s->left_us && a->failure.p && a->sent;
    s->r->elapsed_us = clock_mono_us() - (s->left_us ? s->left_us : s->started_us);
}

void slot_reset(struct dispatch_slot *s)
{
    s->r = NULL;
    s->call = NULL;
    s->answer_header_len = 0;
    s->retry_after_len = 0;
    s->left_us = 0;
    s->heard_at = 0;
    s->is_fenced = false;
    s->is_tried = false;
    s->is_answered = false;
    s->is_heard = false;
    s->is_cut = false;
    s->has_retry_after = false;
    s->has_length = false;
    s->failure[0] = '\0';
    s->curl_error[0] = '\0';
    if (s->answer.cap > KEEP_ANSWER_MAX)
        buf_fini(&s->answer);
    else
        buf_clear(&s->answer);
}
