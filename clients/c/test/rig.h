/* SPDX-License-Identifier: Apache-2.0 */
/* What the executor's tests share: a client that posts tasks, and a node that answers from a
 * script. Whatever cannot happen in a right run ends the program. */
#ifndef JFX_TEST_RIG_H
#define JFX_TEST_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RIG_TRACE "00000000000000070123456789abcdef"
#define RIG_DEADLINE_MS 20000

/* ---- The client -------------------------------------------------------------------------- */

struct reply {
    int status;
    char head[2048];
    char body[4096];
};

/* The envelope of an attempt for service "shop", which has 60 s. */
void rig_envelope(char *dst, size_t cap, const char *trace, int attempt, const char *handler,
                  const char *payload);

/* Sends a request on a connection of its own; `headers` are whole lines. Returns the socket. */
int rig_send(uint16_t port, const char *method, const char *path, const char *headers,
             const char *body);

/* Reads the one answer of rig_send and closes. status 0: the connection ended without one. */
struct reply rig_read(int fd);

struct reply rig_post(uint16_t port, const char *path, const char *headers, const char *body);

/* Posts an attempt of "shop" to /jobflow/<handler>. */
struct reply rig_deliver(uint16_t port, const char *trace, int attempt, const char *handler,
                         const char *payload);

/* "v1,<base64>" for a secret of plain bytes. */
void rig_sign(char *dst, size_t cap, const void *key, size_t key_len, const char *id,
              const char *timestamp, const char *body);

/* Polls a condition until it holds. */
void rig_wait(bool (*holds)(void *ctx), void *ctx);

/* ---- The node ---------------------------------------------------------------------------- */

struct rig_node;

/* Answers request n with script[n], the last one for ever: "200", "503 7" (with Retry-After),
 * "hang" (until the client leaves) or "drop" (closes without an answer). */
#define SCRIPT(...)                                                                                \
    ((const char *const[]){__VA_ARGS__}),                                                          \
        sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

struct rig_node *rig_node_new(const char *const *script, size_t n);

/* The same on a port that was one's before, or 0. */
struct rig_node *rig_node_new_on(uint16_t port, const char *const *script, size_t n);
void rig_node_free(struct rig_node *node);
const char *rig_node_url(const struct rig_node *node);
uint16_t rig_node_port(const struct rig_node *node);

unsigned rig_node_count(struct rig_node *node);

/* "METHOD path body" of request n. Valid until the node is freed. */
const char *rig_node_request(struct rig_node *node, unsigned n);

/* Waits for so many requests. */
void rig_node_wait(struct rig_node *node, unsigned n);

#endif
