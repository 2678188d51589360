/* SPDX-License-Identifier: Apache-2.0 */
#include "node.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <curl/curl.h>

#include "jobflow_executor.h"

#define CONNECT_TIMEOUT_MS 3000L
#define TIMEOUT_MS 15000L
#define ANSWER_MAX (1024 * 1024)
#define IDLE_MAX 4
#define WAIT_MS_MAX 10000L
#define ASKED_MS_MAX 30000L
#define STEP_MS 50

struct jfx_node {
    char *url;
    struct curl_slist *headers;
    pthread_mutex_t lock;
    CURL *idle[IDLE_MAX]; /* each keeps its connection */
    size_t n_idle;
};

struct answer {
    char *data;
    size_t len;
    bool no_memory;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT); /* what fails here fails again in easy_init */
}

struct jfx_node *jfx_node_new(const char *url)
{
    struct jfx_node *node = calloc(1, sizeof(*node));

    if (!node)
        return NULL;
    if (pthread_mutex_init(&node->lock, NULL)) {
        free(node);
        return NULL;
    }
    (void)pthread_once(&once, init_curl);
    node->url = strdup(url);
    node->headers = curl_slist_append(NULL, "Content-Type: application/json");
    /* With an Expect header some servers keep a body waiting for a second. */
    struct curl_slist *more = node->headers ? curl_slist_append(node->headers, "Expect:") : NULL;
    if (!node->url || !more) {
        jfx_node_free(node);
        return NULL;
    }
    for (size_t len = strlen(node->url); len > 0 && node->url[len - 1] == '/'; len--)
        node->url[len - 1] = '\0';
    return node;
}

void jfx_node_free(struct jfx_node *node)
{
    if (!node)
        return;
    for (size_t i = 0; i < node->n_idle; i++)
        curl_easy_cleanup(node->idle[i]);
    curl_slist_free_all(node->headers);
    pthread_mutex_destroy(&node->lock);
    free(node->url);
    free(node);
}

static bool is_pending(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

void jfx_no_sigpipe_begin(struct jfx_no_sigpipe *s)
{
    sigset_t blocked;

    sigemptyset(&blocked);
    sigaddset(&blocked, SIGPIPE);
    s->was_pending = is_pending();
    pthread_sigmask(SIG_BLOCK, &blocked, &s->before);
}

void jfx_no_sigpipe_end(const struct jfx_no_sigpipe *s)
{
    static const struct timespec at_once = {0, 0};
    sigset_t ours;

    sigemptyset(&ours);
    sigaddset(&ours, SIGPIPE);
    if (!s->was_pending && is_pending())
        (void)sigtimedwait(&ours, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &s->before, NULL);
}

static CURL *take_handle(struct jfx_node *node)
{
    CURL *curl = NULL;

    pthread_mutex_lock(&node->lock);
    if (node->n_idle > 0)
        curl = node->idle[--node->n_idle];
    pthread_mutex_unlock(&node->lock);
    return curl ? curl : curl_easy_init();
}

static void put_handle(struct jfx_node *node, CURL *curl)
{
    curl_easy_reset(curl);
    pthread_mutex_lock(&node->lock);
    if (node->n_idle < IDLE_MAX) {
        node->idle[node->n_idle++] = curl;
        curl = NULL;
    }
    pthread_mutex_unlock(&node->lock);
    curl_easy_cleanup(curl);
}

static size_t on_data(char *data, size_t size, size_t n, void *ctx)
{
    struct answer *a = ctx;
    size_t len = size * n;

    if (len > ANSWER_MAX - a->len)
        return 0;
    char *grown = realloc(a->data, a->len + len + 1);
    if (!grown) {
        a->no_memory = true;
        return 0;
    }
    memcpy(grown + a->len, data, len);
    a->data = grown;
    a->len += len;
    a->data[a->len] = '\0';
    return len;
}

/* Called about once a second, and whenever something moves. */
static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const atomic_bool *abort = ctx;
    (void)a;
    (void)b;
    (void)c;
    (void)d;

    return atomic_load(abort);
}

static CURLcode prepare(CURL *curl, struct jfx_node *node, struct jfx_call *call, char *url,
                        struct answer *a)
{
    CURLcode rc = curl_easy_setopt(curl, CURLOPT_URL, url);

    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, call->error);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                     call->timeout_ms > 0 ? call->timeout_ms : TIMEOUT_MS);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, a);
    if (call->abort) {
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, (void *)(uintptr_t)call->abort);
    }
    if (call->body && rc == CURLE_OK) {
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, node->headers);
        rc = curl_easy_setopt(curl, CURLOPT_COPYPOSTFIELDS, call->body);
    }
    if (rc == CURLE_OK)
        rc = curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
    return rc;
}

/* Errors: ENOMEM, EUNREACHABLE (no whole answer came). */
static int try_once(struct jfx_node *node, struct jfx_call *call, char *url)
{
    struct answer a = {0};
    CURL *curl = take_handle(node);
    curl_off_t asked_s = 0;
    long status = 0;

    if (!curl)
        return JOBFLOW_ENOMEM;
    call->error[0] = '\0';
    CURLcode rc = prepare(curl, node, call, url, &a);
    if (rc == CURLE_OK)
        rc = curl_easy_perform(curl);
    if (rc == CURLE_OK) {
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &asked_s);
        call->answer = a.data;
    } else {
        if (!call->error[0])
            (void)snprintf(call->error, sizeof(call->error), "%s", curl_easy_strerror(rc));
        free(a.data);
    }
    put_handle(node, curl);
    call->status = (int)status;
    call->asked_ms = asked_s > ASKED_MS_MAX / 1000 ? ASKED_MS_MAX : (long)asked_s * 1000;
    if (rc == CURLE_OUT_OF_MEMORY || a.no_memory)
        return JOBFLOW_ENOMEM;
    return rc == CURLE_OK ? 0 : JOBFLOW_EUNREACHABLE;
}

long jfx_node_wait_ms(unsigned n, long asked_ms)
{
    struct timespec t;
    long wait = n > 6 ? WAIT_MS_MAX : 200L << (n > 0 ? n - 1 : 0);

    /* Not all clients at once; the clock's last digits are chance enough. */
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (wait > WAIT_MS_MAX)
        wait = WAIT_MS_MAX;
    wait = wait * 3 / 4 + (t.tv_nsec / 1000) % (wait / 4 + 1);
    if (asked_ms > ASKED_MS_MAX)
        asked_ms = ASKED_MS_MAX;
    return wait > asked_ms ? wait : asked_ms;
}

static bool is_true(const atomic_bool *flag)
{
    return flag && atomic_load(flag);
}

void jfx_node_sleep(long ms, const atomic_bool *abort)
{
    for (; ms > 0 && !is_true(abort); ms -= STEP_MS) {
        long step = ms < STEP_MS ? ms : STEP_MS;
        struct timespec t = {0, step * 1000000};
        (void)nanosleep(&t, NULL);
    }
}

static bool is_passing(int status)
{
    return status == 408 || status == 429 || status >= 500;
}

int jfx_node_call(struct jfx_node *node, struct jfx_call *call)
{
    size_t len = strlen(node->url) + strlen(call->path) + 1;
    char *url = malloc(len);
    int rc = JOBFLOW_EUNREACHABLE;
    struct jfx_no_sigpipe no_sigpipe;

    call->answer = NULL;
    if (!url)
        return JOBFLOW_ENOMEM;
    jfx_no_sigpipe_begin(&no_sigpipe);
    (void)snprintf(url, len, "%s%s", node->url, call->path);
    for (unsigned n = 1; n <= call->tries && !is_true(call->abort); n++) {
        free(call->answer);
        call->answer = NULL;
        rc = try_once(node, call, url);
        if (rc == JOBFLOW_ENOMEM || (rc == 0 && !is_passing(call->status)))
            break;
        rc = JOBFLOW_EUNREACHABLE;
        if (n < call->tries)
            jfx_node_sleep(jfx_node_wait_ms(n, call->asked_ms), call->abort);
    }
    jfx_no_sigpipe_end(&no_sigpipe);
    free(url);
    return rc;
}
