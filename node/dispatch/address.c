/* SPDX-License-Identifier: Apache-2.0 */
#include "node/dispatch/address.h"

#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <event2/util.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

struct range {
    uint8_t prefix[16];
    unsigned bits;
    const char *why;
};

#define MAPPED(a, b, c, d)                                                                         \
    {                                                                                              \
        [10] = 0xFF, 0xFF, (a), (b), (c), (d)                                                      \
    }

static const struct range refused[] = {
    {{0}, 128, "the unspecified address"},
    {MAPPED(0, 0, 0, 0), 96 + 8, "the unspecified address"},
    {MAPPED(169, 254, 0, 0), 96 + 16, "a link-local address"},
    {MAPPED(100, 100, 100, 200), 128, "a metadata service"},
    {MAPPED(224, 0, 0, 0), 96 + 4, "a multicast address"},
    {MAPPED(255, 255, 255, 255), 128, "the broadcast address"},
    {{0xFE, 0x80}, 10, "a link-local address"},
    {{0xFF}, 8, "a multicast address"},
    {{0xFD, 0x00, 0x0E, 0xC2, [14] = 0x02, 0x54}, 128, "a metadata service"},
};

/* Forms of IPv6 that lead to the IPv4 address inside them. */
static const struct {
    struct range range;
    size_t at; /* where the IPv4 address stands */
} wrappers[] = {
    {{{0}, 96, NULL}, 12},                      /* IPv4-compatible */
    {{{0x00, 0x64, 0xFF, 0x9B}, 96, NULL}, 12}, /* NAT64 */
    {{{0x20, 0x02}, 16, NULL}, 2},              /* 6to4 */
};

static bool in_range(const struct range *r, const uint8_t ip[16])
{
    size_t whole = r->bits / 8;
    unsigned rest = r->bits % 8;

    if (memcmp(r->prefix, ip, whole) != 0)
        return false;
    return rest == 0 || (r->prefix[whole] ^ ip[whole]) >> (8 - rest) == 0;
}

static void map_v4(const uint8_t v4[4], uint8_t ret[16])
{
    static const struct range mapped = {MAPPED(0, 0, 0, 0), 96, NULL};

    memcpy(ret, mapped.prefix, 12);
    memcpy(ret + 12, v4, 4);
}

static bool read_sockaddr(const struct sockaddr *sa, struct address *ret)
{
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof(in));
        map_v4((const uint8_t *)&in.sin_addr, ret->ip);
        ret->port = ntohs(in.sin_port);
        return true;
    }
    if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof(in6));
        memcpy(ret->ip, &in6.sin6_addr, sizeof(ret->ip));
        ret->port = ntohs(in6.sin6_port);
        return true;
    }
    return false;
}

static bool is_wildcard(const uint8_t ip[16])
{
    static const uint8_t any4[16] = MAPPED(0, 0, 0, 0);
    static const uint8_t any6[16];

    return !memcmp(ip, any4, sizeof(any4)) || !memcmp(ip, any6, sizeof(any6));
}

static bool is_loopback4(const uint8_t ip[16])
{
    static const struct range loopback = {MAPPED(127, 0, 0, 0), 96 + 8, NULL};

    return in_range(&loopback, ip);
}

/* Whether this machine itself answers there. If its addresses cannot be listed, it might. */
static bool is_own(const uint8_t ip[16])
{
    struct ifaddrs *list;
    bool found = is_loopback4(ip);

    if (found || getifaddrs(&list))
        return true;
    for (const struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
        struct address own;
        found = i->ifa_addr && read_sockaddr(i->ifa_addr, &own) && !memcmp(own.ip, ip, 16);
    }
    freeifaddrs(list);
    return found;
}

static bool is_forbidden(const struct address_rules *rules, const struct address *a)
{
    for (size_t i = 0; i < rules->n_forbidden; i++) {
        const struct address *f = &rules->forbidden[i];
        if (f->port != a->port)
            continue;
        if (!memcmp(f->ip, a->ip, sizeof(f->ip)) || (is_wildcard(f->ip) && is_own(a->ip)))
            return true;
    }
    return false;
}

static const char *refusal(const struct address_rules *rules, const struct address *a)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (in_range(&refused[i], a->ip))
            return refused[i].why;
    }
    return is_forbidden(rules, a) ? "this node's own listener" : NULL;
}

static bool is_loopback6(const uint8_t ip[16])
{
    static const uint8_t loopback[16] = {[15] = 1};

    return !memcmp(ip, loopback, sizeof(loopback));
}

static const char *check(const struct address_rules *rules, const struct address *a)
{
    const char *why = refusal(rules, a);

    if (why || is_loopback6(a->ip))
        return why;
    for (size_t i = 0; !why && i < sizeof(wrappers) / sizeof(wrappers[0]); i++) {
        struct address inside = {.port = a->port};
        if (!in_range(&wrappers[i].range, a->ip))
            continue;
        map_v4(a->ip + wrappers[i].at, inside.ip);
        why = refusal(rules, &inside);
    }
    return why;
}

const char *address_refusal(const struct address_rules *rules, const struct sockaddr *sa)
{
    struct address a;

    return read_sockaddr(sa, &a) ? check(rules, &a) : "an address of an unknown family";
}

const char *address_refusal_host(const struct address_rules *rules, const char *host, uint16_t port)
{
    struct address a = {.port = port};
    uint8_t v4[4];

    if (inet_pton(AF_INET, host, v4) == 1)
        map_v4(v4, a.ip);
    else if (inet_pton(AF_INET6, host, a.ip) != 1)
        return NULL;
    return check(rules, &a);
}

static bool parse_listener(const char *text, struct address *ret)
{
    struct sockaddr_storage ss = {0};
    int len = sizeof(ss);

    return !evutil_parse_sockaddr_port(text, (struct sockaddr *)&ss, &len) &&
           read_sockaddr((const struct sockaddr *)&ss, ret) && ret->port != 0;
}

int address_rules_init(struct address_rules *rules, const char *const *forbidden,
                       size_t n_forbidden, struct err *err)
{
    struct address *list = calloc(n_forbidden ? n_forbidden : 1, sizeof(*list));

    if (!list)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n_forbidden; i++) {
        if (!parse_listener(forbidden[i], &list[i])) {
            free(list);
            return err_set(err, ERR_INVALID,
                           "\"%s\" is no address with a port such as 127.0.0.1:8080 or [::1]:8080",
                           forbidden[i]);
        }
    }
    rules->forbidden = list;
    rules->n_forbidden = n_forbidden;
    return 0;
}

void address_rules_fini(struct address_rules *rules)
{
    free(rules->forbidden);
    *rules = (struct address_rules){0};
}
