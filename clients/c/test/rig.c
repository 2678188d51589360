/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#define REQUESTS_MAX 64
#define REQUEST_MAX 8192

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            perror("rig: " #condition);                                                            \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---- The client -------------------------------------------------------------------------- */

void rig_envelope(char *dst, size_t cap, const char *trace, int attempt, const char *handler,
                  const char *payload)
{
    int n = snprintf(dst, cap,
                     "{\"traceId\":\"%s\",\"bizUuid\":\"order-1\",\"serviceName\":\"shop\","
                     "\"handler\":\"%s\",\"attempt\":%d,\"retryCount\":%d,"
                     "\"executeTime\":\"2026-01-31T12:00:00.000Z\","
                     "\"sentTime\":\"2026-01-31T12:00:00.007Z\","
                     "\"deadline\":\"2026-01-31T12:01:00.007Z\",\"payload\":%s}",
                     trace, handler, attempt, attempt - 1, payload);

    MUST(n > 0 && (size_t)n < cap);
}

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

int rig_send(uint16_t port, const char *method, const char *path, const char *headers,
             const char *body)
{
    struct sockaddr_in sa = loopback(port);
    struct timeval patience = {RIG_DEADLINE_MS / 1000, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char *text = NULL;
    int len = asprintf(&text,
                       "%s %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%s"
                       "Content-Length: %zu\r\n\r\n%s",
                       method, path, headers, strlen(body), body);

    MUST(fd >= 0 && len > 0);
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
    if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0)
        (void)!send(fd, text, (size_t)len, MSG_NOSIGNAL);
    free(text);
    return fd;
}

struct reply rig_read(int fd)
{
    struct reply ret = {0};
    char text[sizeof(ret.head) + sizeof(ret.body)];
    size_t len = 0;
    ssize_t n;

    while ((n = recv(fd, text + len, sizeof(text) - 1 - len, 0)) > 0)
        len += (size_t)n;
    text[len] = '\0';
    close(fd);
    char *end = strstr(text, "\r\n\r\n");
    if (!end)
        return ret;
    *end = '\0';
    MUST(sscanf(text, "HTTP/1.1 %d", &ret.status) == 1);
    MUST((size_t)(end - text) < sizeof(ret.head) && strlen(end + 4) < sizeof(ret.body));
    strcpy(ret.head, text);
    strcpy(ret.body, end + 4);
    return ret;
}

struct reply rig_post(uint16_t port, const char *path, const char *headers, const char *body)
{
    return rig_read(rig_send(port, "POST", path, headers, body));
}

struct reply rig_deliver(uint16_t port, const char *trace, int attempt, const char *handler,
                         const char *payload)
{
    char path[256];
    char body[4096];

    snprintf(path, sizeof(path), "/jobflow/%s", handler);
    rig_envelope(body, sizeof(body), trace, attempt, handler, payload);
    return rig_post(port, path, "", body);
}

void rig_sign(char *dst, size_t cap, const void *key, size_t key_len, const char *id,
              const char *timestamp, const char *body)
{
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned char text[64];
    unsigned mac_len = 0;
    char *signed_text = NULL;
    int len = asprintf(&signed_text, "%s.%s.%s", id, timestamp, body);

    MUST(len > 0 && HMAC(EVP_sha256(), key, (int)key_len, (unsigned char *)signed_text, (size_t)len,
                         mac, &mac_len));
    (void)EVP_EncodeBlock(text, mac, (int)mac_len);
    (void)snprintf(dst, cap, "v1,%s", text);
    free(signed_text);
}

static void pause_a_little(void)
{
    struct timespec t = {0, 2000000};

    (void)nanosleep(&t, NULL);
}

void rig_wait(bool (*holds)(void *ctx), void *ctx)
{
    for (int ms = 0; !holds(ctx); ms += 2) {
        MUST(ms < RIG_DEADLINE_MS);
        pause_a_little();
    }
}

/* ---- The node ---------------------------------------------------------------------------- */

struct rig_node {
    int fd;
    uint16_t port;
    char url[64];
    pthread_t thread;
    const char *const *script;
    size_t n_script;
    pthread_mutex_t lock;
    unsigned n_requests;
    char *requests[REQUESTS_MAX];
};

/* Reads a whole request. False when the client left before. */
static bool read_request(int fd, char text[REQUEST_MAX])
{
    size_t len = 0;
    size_t wanted = SIZE_MAX;

    while (len < wanted) {
        ssize_t n = recv(fd, text + len, REQUEST_MAX - 1 - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
        text[len] = '\0';
        const char *end = strstr(text, "\r\n\r\n");
        const char *length = strcasestr(text, "\r\ncontent-length:");
        if (end)
            wanted = (size_t)(end + 4 - text) + (length ? (size_t)atoi(length + 17) : 0);
    }
    return true;
}

/* Returns the request's number. */
static unsigned note(struct rig_node *node, const char *text)
{
    const char *body = strstr(text, "\r\n\r\n") + 4;
    const char *end_of_path = strstr(text, " HTTP/1.1");
    char *line = NULL;

    MUST(end_of_path && asprintf(&line, "%.*s %s", (int)(end_of_path - text), text, body) > 0);
    pthread_mutex_lock(&node->lock);
    MUST(node->n_requests < REQUESTS_MAX);
    unsigned n = node->n_requests++;
    node->requests[n] = line;
    pthread_mutex_unlock(&node->lock);
    return n;
}

static void answer(int fd, const char *how)
{
    char text[256];
    char wait[64] = "";
    int status = 0;
    int seconds = 0;

    if (strcmp(how, "drop") == 0)
        return;
    if (strcmp(how, "hang") == 0) {
        (void)!recv(fd, text, sizeof(text), 0);
        return;
    }
    if (sscanf(how, "%d %d", &status, &seconds) == 2)
        (void)snprintf(wait, sizeof(wait), "Retry-After: %d\r\n", seconds);
    (void)snprintf(
        text, sizeof(text),
        "HTTP/1.1 %d X\r\nConnection: close\r\n%sContent-Length: 12\r\n\r\n{\"said\":%d}\n", status,
        wait, status);
    (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* One connection at a time, one request on each. Ends when the listener is shut down. */
static void *serve(void *ctx)
{
    struct rig_node *node = ctx;
    char text[REQUEST_MAX];
    int fd;

    while ((fd = accept(node->fd, NULL, NULL)) >= 0) {
        if (read_request(fd, text)) {
            unsigned n = note(node, text);
            answer(fd, node->script[n < node->n_script ? n : node->n_script - 1]);
        }
        close(fd);
    }
    return NULL;
}

struct rig_node *rig_node_new(const char *const *script, size_t n)
{
    return rig_node_new_on(0, script, n);
}

struct rig_node *rig_node_new_on(uint16_t port, const char *const *script, size_t n)
{
    struct rig_node *node = calloc(1, sizeof(*node));
    struct sockaddr_in sa = loopback(port);
    socklen_t len = sizeof(sa);
    int yes = 1;

    MUST(node);
    node->script = script;
    node->n_script = n;
    node->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(setsockopt(node->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
    MUST(bind(node->fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(node->fd, 16) == 0);
    MUST(getsockname(node->fd, (struct sockaddr *)&sa, &len) == 0);
    node->port = ntohs(sa.sin_port);
    (void)snprintf(node->url, sizeof(node->url), "http://127.0.0.1:%u", (unsigned)node->port);
    MUST(pthread_mutex_init(&node->lock, NULL) == 0);
    MUST(pthread_create(&node->thread, NULL, serve, node) == 0);
    return node;
}

void rig_node_free(struct rig_node *node)
{
    (void)shutdown(node->fd, SHUT_RDWR);
    pthread_join(node->thread, NULL);
    close(node->fd);
    for (unsigned i = 0; i < node->n_requests; i++)
        free(node->requests[i]);
    pthread_mutex_destroy(&node->lock);
    free(node);
}

const char *rig_node_url(const struct rig_node *node)
{
    return node->url;
}

uint16_t rig_node_port(const struct rig_node *node)
{
    return node->port;
}

unsigned rig_node_count(struct rig_node *node)
{
    pthread_mutex_lock(&node->lock);
    unsigned n = node->n_requests;
    pthread_mutex_unlock(&node->lock);
    return n;
}

const char *rig_node_request(struct rig_node *node, unsigned n)
{
    pthread_mutex_lock(&node->lock);
    const char *text = n < node->n_requests ? node->requests[n] : "";
    pthread_mutex_unlock(&node->lock);
    return text;
}

struct count_wait {
    struct rig_node *node;
    unsigned n;
};

static bool has_come(void *ctx)
{
    struct count_wait *w = ctx;

    return rig_node_count(w->node) >= w->n;
}

void rig_node_wait(struct rig_node *node, unsigned n)
{
    rig_wait(has_come, &(struct count_wait){node, n});
}
