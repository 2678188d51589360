/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a program: its names are those of a file that a test rewrites, and nobody outside
 * is asked. In the folder that FAKE_NAMES names,
 *
 *   names     has a line for each name: NAME [wait=MS] ADDRESS…
 *   lookups   gets a line for each look-up of a name
 *   connects  gets a line "ADDRESS PORT" for each connection that the program tries to open
 *
 * Names that do not stand there do not exist; literal addresses go to the library's own function.
 * glibc's freeaddrinfo frees a list element by element, so lists may be joined. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int getaddrinfo_function(const char *, const char *, const struct addrinfo *,
                                 struct addrinfo **);
typedef int connect_function(int, const struct sockaddr *, socklen_t);

static void *next_function(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);

    if (!f)
        abort();
    return f;
}

static void path_of(const char *file, char *dst, size_t cap)
{
    const char *folder = getenv("FAKE_NAMES");

    if (!folder || snprintf(dst, cap, "%s/%s", folder, file) >= (int)cap)
        abort();
}

/* One write for a line: several threads do this. */
static void note(const char *file, const char *line)
{
    char path[512];

    path_of(file, path, sizeof(path));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, strlen(line)) != (ssize_t)strlen(line))
        abort();
    (void)close(fd);
}

static bool is_literal(const char *name)
{
    unsigned char address[sizeof(struct in6_addr)];

    return inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
}

/* Puts what stands behind the name's line into rest. */
static bool find_line(const char *name, char *rest, size_t cap)
{
    char path[512];
    char line[512];
    size_t len = strlen(name);
    bool found = false;

    path_of("names", path, sizeof(path));
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof(line), f)) {
        found = !strncmp(line, name, len) && (line[len] == ' ' || line[len] == '\n');
        if (found)
            (void)snprintf(rest, cap, "%s", line + len);
    }
    (void)fclose(f);
    return found;
}

static int add_address(const char *address, const char *port, const struct addrinfo *hints,
                       struct addrinfo **list)
{
    struct addrinfo numeric = hints ? *hints : (struct addrinfo){0};
    struct addrinfo *added = NULL;
    getaddrinfo_function *real = (getaddrinfo_function *)next_function("getaddrinfo");

    numeric.ai_flags |= AI_NUMERICHOST;
    int rc = real(address, port, &numeric, &added);
    if (rc)
        return rc;
    while (*list)
        list = &(*list)->ai_next;
    *list = added;
    return 0;
}

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict req, struct addrinfo **restrict pai)
{
    char line[512];
    char *save = NULL;
    struct addrinfo *list = NULL;
    int rc = 0;

    if (!name || is_literal(name))
        return ((getaddrinfo_function *)next_function("getaddrinfo"))(name, service, req, pai);
    (void)snprintf(line, sizeof(line), "%s\n", name);
    note("lookups", line);
    if (!find_line(name, line, sizeof(line)))
        return EAI_NONAME;
    for (char *w = strtok_r(line, " \n", &save); w && !rc; w = strtok_r(NULL, " \n", &save)) {
        if (!strncmp(w, "wait=", 5))
            (void)usleep((useconds_t)(strtoul(w + 5, NULL, 10) * 1000));
        else
            rc = add_address(w, service, req, &list);
    }
    if (rc && list)
        freeaddrinfo(list);
    if (!rc && !list)
        rc = EAI_NONAME;
    if (!rc)
        *pai = list;
    return rc;
}

int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    char text[INET6_ADDRSTRLEN] = "?";
    char line[128];
    unsigned port = 0;

    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
        (void)inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
        port = ntohs(in->sin_port);
    } else if (addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;
        (void)inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text));
        port = ntohs(in6->sin6_port);
    }
    (void)snprintf(line, sizeof(line), "%s %u\n", text, port);
    note("connects", line);
    return ((connect_function *)next_function("connect"))(fd, addr, len);
}
