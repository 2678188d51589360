/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/etcdserver.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"

#define START_MS 60000
#define START_TRIES 3 /* another program may take a free port first */
#define WORDS_MAX 32

struct member {
    int client_port;
    int peer_port;
    int health_port; /* without TLS */
    pid_t pid;       /* 0 = not running */
    bool is_paused;
};

struct etcdserver {
    struct etcdserver_options o;
    char dir[64];
    char peers[512]; /* --initial-cluster */
    struct member members[ETCDSERVER_MEMBERS_MAX];
    struct etcdserver *next;
};

static struct etcdserver *running; /* for the exit handler */

static void nap(void)
{
    struct timespec ts = {.tv_nsec = 5000000};

    (void)nanosleep(&ts, NULL);
}

static const char *program(const char *env, const char *otherwise)
{
    const char *given = getenv(env);

    return given ? given : otherwise;
}

bool etcdserver_is_installed(void)
{
    char command[ETCDSERVER_PATH_MAX * 2];

    (void)snprintf(command, sizeof(command), "command -v '%s' '%s' >/dev/null",
                   program("ETCD", "etcd"), program("ETCDCTL", "etcdctl"));
    return system(command) == 0; /* NOLINT(cert-env33-c): a test's own words */
}

/* ---- Places -------------------------------------------------------------------------------- */

/* All sockets stay open until the last port is known, so that they differ. */
static bool choose_ports(int *ports, size_t n)
{
    int fds[ETCDSERVER_MEMBERS_MAX * 3];
    bool ok = true;

    for (size_t i = 0; i < n; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof(a);
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ok = ok && fds[i] >= 0 && !bind(fds[i], (struct sockaddr *)&a, len) &&
             !getsockname(fds[i], (struct sockaddr *)&a, &len);
        ports[i] = ntohs(a.sin_port);
    }
    for (size_t i = 0; i < n; i++)
        (void)close(fds[i]);
    return ok;
}

static bool choose_addresses(struct etcdserver *s)
{
    int ports[ETCDSERVER_MEMBERS_MAX * 3];
    size_t used = 0;

    if (!choose_ports(ports, (size_t)s->o.n_members * 3))
        return false;
    for (unsigned i = 0; i < s->o.n_members; i++) {
        struct member *m = &s->members[i];
        m->client_port = ports[i * 3];
        m->peer_port = ports[i * 3 + 1];
        m->health_port = ports[i * 3 + 2];
        used += (size_t)snprintf(s->peers + used, sizeof(s->peers) - used,
                                 "%sm%u=http://127.0.0.1:%d", i ? "," : "", i, m->peer_port);
    }
    return true;
}

void etcdserver_url(const struct etcdserver *s, unsigned member, char dst[ETCDSERVER_URL_MAX])
{
    (void)snprintf(dst, ETCDSERVER_URL_MAX, "%s://127.0.0.1:%d", s->o.has_tls ? "https" : "http",
                   s->members[member].client_port);
}

void etcdserver_file(const struct etcdserver *s, const char *name, char dst[ETCDSERVER_PATH_MAX])
{
    (void)snprintf(dst, ETCDSERVER_PATH_MAX, "%s/%s", s->dir, name);
}

/* Two authorities; the first one signs the members' and the client's certificates, the second one
 * the stranger's. */
static int make_certificates(const struct etcdserver *s, struct err *err)
{
    static const char script[] =
        "set -e; cd '%s'; exec >/dev/null 2>&1\n"
        "ca() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        " -subj /CN=$1 -keyout $1.key -out $1.pem; }\n"
        "cert() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$1"
        " -keyout $1.key -out $1.csr;"
        " echo 'subjectAltName=IP:127.0.0.1' >$1.ext;"
        " openssl x509 -req -days 2 -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial"
        " -extfile $1.ext -out $1.pem; }\n"
        "ca ca; ca other; cert server ca; cert client ca; cert stranger other\n";
    char command[sizeof(script) + sizeof(s->dir)];

    (void)snprintf(command, sizeof(command), script, s->dir);
    if (system(command)) /* NOLINT(cert-env33-c): a test's own words */
        return err_set(err, ERR_IO, "openssl makes no certificates in %s", s->dir);
    return 0;
}

/* ---- Members ------------------------------------------------------------------------------- */

struct words {
    char *argv[WORDS_MAX];
    size_t n;
    char text[4096];
    size_t used;
};

static void PRINTF_LIKE(2, 3) word(struct words *w, const char *fmt, ...)
{
    size_t room = sizeof(w->text) - w->used;
    va_list args;
    int len;

    va_start(args, fmt);
    len = vsnprintf(w->text + w->used, room, fmt, args);
    va_end(args);
    if (len < 0 || (size_t)len >= room || w->n + 1 >= WORDS_MAX)
        abort();
    w->argv[w->n++] = w->text + w->used;
    w->used += (size_t)len + 1;
}

static void command_line(const struct etcdserver *s, unsigned i, struct words *w)
{
    const struct member *m = &s->members[i];
    char url[ETCDSERVER_URL_MAX];

    etcdserver_url(s, i, url);
    word(w, "%s", program("ETCD", "etcd"));
    word(w, "--name=m%u", i);
    word(w, "--data-dir=%s/m%u", s->dir, i);
    word(w, "--listen-client-urls=%s", url);
    word(w, "--advertise-client-urls=%s", url);
    word(w, "--listen-peer-urls=http://127.0.0.1:%d", m->peer_port);
    word(w, "--initial-advertise-peer-urls=http://127.0.0.1:%d", m->peer_port);
    word(w, "--listen-metrics-urls=http://127.0.0.1:%d", m->health_port);
    word(w, "--initial-cluster=%s", s->peers);
    word(w, "--heartbeat-interval=%d", s->o.n_members > 1 ? 100 : 50);
    word(w, "--election-timeout=%d", s->o.n_members > 1 ? 1000 : 500);
    if (s->o.has_tls) {
        word(w, "--cert-file=%s/server.pem", s->dir);
        word(w, "--key-file=%s/server.key", s->dir);
        word(w, "--trusted-ca-file=%s/ca.pem", s->dir);
        word(w, "--client-cert-auth");
    }
    for (size_t k = 0; k < ETCDSERVER_FLAGS_MAX && s->o.flags[k]; k++)
        word(w, "%s", s->o.flags[k]);
}

static void become_member(const struct etcdserver *s, pid_t parent, char *const argv[])
{
    char log[ETCDSERVER_PATH_MAX];
    int fd;

    etcdserver_file(s, "log", log);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
        _exit(126);
    fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(126);
    (void)execvp(argv[0], argv);
    _exit(127);
}

/* GET from the member's port without TLS; false when nothing comes. Not for paused members. */
static bool get_page(const struct member *m, const char *path, struct buf *dst)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)m->health_port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char text[4096];
    ssize_t n = 0;

    if (fd < 0)
        return false;
    (void)snprintf(text, sizeof(text), "GET %s HTTP/1.0\r\n\r\n", path);
    if (!connect(fd, (struct sockaddr *)&a, sizeof(a)) &&
        write(fd, text, strlen(text)) == (ssize_t)strlen(text)) {
        while ((n = read(fd, text, sizeof(text))) > 0)
            buf_add(dst, text, (size_t)n);
    }
    (void)close(fd);
    buf_addc(dst, '\0');
    return buf_ok(dst) && dst->len > 1;
}

/* It says so when it has a leader. */
static bool is_healthy(const struct member *m)
{
    struct buf page = BUF_INIT;
    bool healthy = get_page(m, "/health", &page) && strstr(page.data, "\"health\":\"true\"");

    buf_fini(&page);
    return healthy;
}

double etcdserver_metric(const struct etcdserver *s, unsigned member, const char *name)
{
    struct buf page = BUF_INIT;
    double value = -1;
    char begin[128];

    (void)snprintf(begin, sizeof(begin), "\n%s ", name);
    if (get_page(&s->members[member], "/metrics", &page)) {
        const char *line = strstr(page.data, begin);
        value = line ? strtod(line + strlen(begin), NULL) : -1;
    }
    buf_fini(&page);
    return value;
}

static int wait_for_health(struct etcdserver *s, unsigned i, struct err *err)
{
    struct member *m = &s->members[i];
    mono_ms until = clock_mono() + START_MS;

    while (!is_healthy(m)) {
        if (waitpid(m->pid, NULL, WNOHANG) == m->pid) {
            m->pid = 0;
            return err_set(err, ERR_IO, "etcd ended at its start (%s/log)", s->dir);
        }
        if (clock_mono() > until)
            return err_set(err, ERR_TIMEOUT, "etcd does not become healthy (%s/log)", s->dir);
        nap();
    }
    return 0;
}

int etcdserver_start(struct etcdserver *s, unsigned member, bool wait, struct err *err)
{
    struct words words = {.n = 0};
    pid_t parent = getpid();
    pid_t pid;

    assert(!s->members[member].pid);
    command_line(s, member, &words);
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0)
        become_member(s, parent, words.argv);
    if (pid < 0)
        return err_set(err, ERR_IO, "fork: %s", strerror(errno));
    s->members[member].pid = pid;
    return wait ? wait_for_health(s, member, err) : 0;
}

void etcdserver_kill(struct etcdserver *s, unsigned member)
{
    struct member *m = &s->members[member];

    if (!m->pid)
        return;
    (void)kill(m->pid, SIGKILL); /* our child: it is there */
    (void)waitpid(m->pid, NULL, 0);
    m->pid = 0;
    m->is_paused = false;
}

void etcdserver_pause(struct etcdserver *s, unsigned member)
{
    int status;

    assert(s->members[member].pid);
    (void)kill(s->members[member].pid, SIGSTOP);
    (void)waitpid(s->members[member].pid, &status, WUNTRACED);
    s->members[member].is_paused = true;
}

void etcdserver_resume(struct etcdserver *s, unsigned member)
{
    (void)kill(s->members[member].pid, SIGCONT);
    s->members[member].is_paused = false;
}

/* ---- etcdctl ------------------------------------------------------------------------------- */

static void ctl_prefix(const struct etcdserver *s, char *dst, size_t cap)
{
    const char *separator = "";
    size_t used = (size_t)snprintf(dst, cap, "ETCDCTL_API=3 %s --command-timeout=20s",
                                   program("ETCDCTL", "etcdctl"));

    if (s->o.has_tls)
        used += (size_t)snprintf(dst + used, cap - used,
                                 " --cacert=%s/ca.pem --cert=%s/client.pem --key=%s/client.key",
                                 s->dir, s->dir, s->dir);
    used += (size_t)snprintf(dst + used, cap - used, " --endpoints=");
    for (unsigned i = 0; i < s->o.n_members; i++) {
        char url[ETCDSERVER_URL_MAX];
        if (!s->members[i].pid || s->members[i].is_paused)
            continue;
        etcdserver_url(s, i, url);
        used += (size_t)snprintf(dst + used, cap - used, "%s%s", separator, url);
        separator = ",";
    }
    (void)snprintf(dst + used, cap - used, " ");
}

int etcdserver_ctl(const struct etcdserver *s, char *dst, size_t cap, const char *fmt, ...)
{
    char command[2048];
    char rest[512];
    size_t len = 0;
    size_t n;
    va_list args;
    FILE *f;

    ctl_prefix(s, command, sizeof(command));
    len = strlen(command);
    va_start(args, fmt);
    (void)vsnprintf(command + len, sizeof(command) - len, fmt, args);
    va_end(args);
    len = strlen(command);
    (void)snprintf(command + len, sizeof(command) - len, " 2>>%s/log", s->dir);
    (void)fflush(NULL);
    f = popen(command, "re"); /* NOLINT(cert-env33-c): a test's own words */
    if (!f)
        return ERR_IO;
    len = 0;
    while (dst && len < cap - 1 && (n = fread(dst + len, 1, cap - 1 - len, f)) > 0)
        len += n;
    if (dst)
        dst[len] = '\0';
    while (fread(rest, 1, sizeof(rest), f) > 0)
        ;
    return pclose(f) == 0 ? 0 : ERR_IO;
}

int etcdserver_leader(const struct etcdserver *s)
{
    char text[4096];

    /* A line for each member: endpoint, id, version, size, whether it leads, … */
    if (etcdserver_ctl(s, text, sizeof(text), "endpoint status"))
        return -1;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        for (unsigned i = 0; strstr(line, ", true, ") && i < s->o.n_members; i++) {
            char url[ETCDSERVER_URL_MAX];
            etcdserver_url(s, i, url);
            if (!strncmp(line, url, strlen(url)))
                return (int)i;
        }
    }
    return -1;
}

/* ---- Birth and death ----------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    (void)remove(path);
    return 0;
}

static void release(struct etcdserver *s)
{
    for (unsigned i = 0; i < s->o.n_members; i++)
        etcdserver_kill(s, i);
    if (s->dir[0])
        (void)nftw(s->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(s);
}

static void on_exit_free_all(void)
{
    while (running)
        etcdserver_free(running);
}

static int start_all(struct etcdserver *s, struct err *err)
{
    const char *tmp = getenv("TMPDIR");
    int rc = 0;

    (void)snprintf(s->dir, sizeof(s->dir), "%.40s/etcdserver.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(s->dir)) {
        s->dir[0] = '\0';
        return err_set(err, ERR_IO, "mkdtemp: %s", strerror(errno));
    }
    if (!choose_addresses(s))
        return err_set(err, ERR_IO, "no free ports");
    if (s->o.has_tls)
        rc = make_certificates(s, err);
    for (unsigned i = 0; !rc && i < s->o.n_members; i++)
        rc = etcdserver_start(s, i, false, err);
    for (unsigned i = 0; !rc && i < s->o.n_members; i++)
        rc = wait_for_health(s, i, err);
    return rc;
}

static int try_new(const struct etcdserver_options *o, struct etcdserver **ret, struct err *err)
{
    struct etcdserver *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return ERR_NOMEM;
    s->o = *o;
    rc = start_all(s, err);
    if (rc) {
        release(s);
        return rc;
    }
    s->next = running;
    running = s;
    *ret = s;
    return 0;
}

int etcdserver_new(const struct etcdserver_options *o, struct etcdserver **ret, struct err *err)
{
    static bool at_exit;
    int rc = ERR_IO;

    assert(o->n_members >= 1 && o->n_members <= ETCDSERVER_MEMBERS_MAX);
    if (!etcdserver_is_installed())
        return err_set(err, ERR_NOT_FOUND, "etcd and etcdctl are not installed");
    for (int i = 0; rc == ERR_IO && i < START_TRIES; i++)
        rc = try_new(o, ret, err);
    if (!rc && !at_exit)
        at_exit = atexit(on_exit_free_all) == 0;
    return rc;
}

void etcdserver_free(struct etcdserver *s)
{
    struct etcdserver **link = &running;

    if (!s)
        return;
    while (*link && *link != s)
        link = &(*link)->next;
    if (*link)
        *link = s->next;
    release(s);
}
