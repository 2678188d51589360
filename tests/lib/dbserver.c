/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/dbserver.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/lib/dbserver_kind.h"

#define START_MS 60000
#define STOP_MS 60000
#define START_TRIES 3 /* another program may take the free port first */

struct dbserver {
    const struct dbserver_kind *kind;
    struct dbserver_place place;
    bool switch_user;
    uid_t uid;
    gid_t gid;
    pid_t pid; /* 0 = not running */
    pid_t guardian;
    int guard_fd; /* closing it tells the guardian to clean up */
    struct dbserver *next;
};

static struct dbserver *running; /* for the exit handler */

static void nap(void)
{
    struct timespec ts = {.tv_nsec = 5000000};

    (void)nanosleep(&ts, NULL);
}

/* ---- Programs ------------------------------------------------------------------------------ */

#define LOG_TAIL 2048

/* What a program said last goes to stderr: its log goes with its folder. */
static void show_log(const struct dbserver *s)
{
    char path[DBSERVER_PATH_MAX + 16];
    char tail[LOG_TAIL];
    size_t len;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/log", s->place.dir);
    f = fopen(path, "re");
    if (!f)
        return;
    if (fseek(f, -LOG_TAIL, SEEK_END))
        rewind(f); /* it is shorter */
    len = fread(tail, 1, sizeof(tail), f);
    (void)fclose(f);
    (void)fprintf(stderr, "%s: the end of %s:\n%.*s\n", s->kind->name, path, (int)len, tail);
}

void dbserver_word(struct dbserver_words *w, const char *fmt, ...)
{
    size_t room = sizeof(w->text) - w->used;
    va_list args;
    int len;

    va_start(args, fmt);
    len = vsnprintf(w->text + w->used, room, fmt, args);
    va_end(args);
    if (len < 0 || (size_t)len >= room || w->n + 1 >= DBSERVER_WORDS_MAX)
        abort();
    w->argv[w->n++] = w->text + w->used;
    w->used += (size_t)len + 1;
}

bool dbserver_is_installed(const struct dbserver_kind *kind)
{
    struct dbserver_place place;

    return kind->find(&place);
}

/* In the child. The death signal is set after the change of user, which clears it. */
static void become_program(const struct dbserver *s, pid_t parent, int death_signal,
                           char *const argv[])
{
    char log[DBSERVER_PATH_MAX + 16];
    int fd;

    (void)snprintf(log, sizeof(log), "%s/log", s->place.dir);
    if (s->switch_user && (setgroups(0, NULL) || setgid(s->gid) || setuid(s->uid)))
        _exit(126);
    if (prctl(PR_SET_PDEATHSIG, death_signal) || getppid() != parent || chdir(s->place.dir))
        _exit(126);
    fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(126);
    fd = open("/dev/null", O_RDONLY);
    if (fd < 0 || dup2(fd, STDIN_FILENO) < 0)
        _exit(126);
    (void)execv(argv[0], argv);
    _exit(127);
}

static pid_t spawn(const struct dbserver *s, int death_signal, char *const argv[])
{
    pid_t parent = getpid();
    pid_t pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid == 0)
        become_program(s, parent, death_signal, argv);
    return pid;
}

static int create_data(struct dbserver *s, struct err *err)
{
    struct dbserver_words words = {.n = 0};
    int status;
    pid_t pid;

    s->kind->create(&s->place, &words);
    pid = spawn(s, SIGKILL, words.argv);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return err_set(err, ERR_IO, "%s does not start: %s", words.argv[0], strerror(errno));
    if (!status)
        return 0;
    show_log(s);
    return err_set(err, ERR_IO, "%s ended with status %d", words.argv[0], status);
}

/* ---- The guardian -------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    (void)remove(path);
    return 0;
}

static pid_t server_pid(const struct dbserver *s)
{
    char path[DBSERVER_PATH_MAX + 32];
    long pid = 0;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/%s", s->place.dir, s->kind->pid_file);
    f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%ld", &pid) != 1)
        pid = 0;
    (void)fclose(f);
    return (pid_t)pid;
}

/* Lives until its parent closes the pipe or dies; then nothing of the server may stay. The
 * server's pid file is its own word for "still running". */
static void guard(const struct dbserver *s, int fd)
{
    mono_ms until;
    char c;

    (void)setsid();
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    while (read(fd, &c, 1) < 0 && errno == EINTR)
        ;
    until = clock_mono() + STOP_MS;
    for (pid_t pid = server_pid(s); pid > 0 && clock_mono() < until; pid = server_pid(s)) {
        if (kill(pid, s->kind->crash_signal) && errno == ESRCH)
            break;
        nap();
    }
    (void)nftw(s->place.dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    _exit(0);
}

static int start_guardian(struct dbserver *s, struct err *err)
{
    int fds[2];
    int null;

    if (pipe2(fds, O_CLOEXEC))
        return err_set(err, ERR_IO, "pipe: %s", strerror(errno));
    (void)fflush(NULL);
    s->guardian = fork();
    if (s->guardian == 0) {
        (void)close(fds[1]);
        null = open("/dev/null", O_RDWR); /* whoever reads our output must not wait for us */
        if (null >= 0) {
            (void)dup2(null, STDIN_FILENO);
            (void)dup2(null, STDOUT_FILENO);
            (void)dup2(null, STDERR_FILENO);
        }
        guard(s, fds[0]);
    }
    (void)close(fds[0]);
    if (s->guardian < 0) {
        (void)close(fds[1]);
        return err_set(err, ERR_IO, "fork: %s", strerror(errno));
    }
    s->guard_fd = fds[1];
    return 0;
}

/* ---- The server ---------------------------------------------------------------------------- */

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = 0;

    if (fd < 0)
        return 0;
    if (!bind(fd, (struct sockaddr *)&a, len) && !getsockname(fd, (struct sockaddr *)&a, &len))
        port = ntohs(a.sin_port);
    (void)close(fd);
    return port;
}

void dbserver_url(const struct dbserver *s, const char *database, char dst[DBSERVER_URL_MAX])
{
    s->kind->url(&s->place, database, dst);
}

static int wait_for_start(struct dbserver *s, struct err *err)
{
    mono_ms until = clock_mono() + START_MS;

    while (!s->kind->is_up(&s->place)) {
        if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
            s->pid = 0;
            show_log(s);
            return err_set(err, ERR_IO, "the server ended at its start");
        }
        if (clock_mono() > until) {
            show_log(s);
            return err_set(err, ERR_TIMEOUT, "the server takes no connections");
        }
        nap();
    }
    return 0;
}

int dbserver_start(struct dbserver *s, struct err *err)
{
    struct dbserver_words words = {.n = 0};

    s->kind->serve(&s->place, &words);
    s->pid = spawn(s, s->kind->crash_signal, words.argv);
    if (s->pid < 0) {
        s->pid = 0;
        return err_set(err, ERR_IO, "fork: %s", strerror(errno));
    }
    return wait_for_start(s, err);
}

static int halt(struct dbserver *s, bool crash, struct err *err)
{
    mono_ms until = clock_mono() + STOP_MS;

    if (!s->pid)
        return 0;
    if (kill(s->pid, crash ? s->kind->crash_signal : s->kind->stop_signal))
        return err_set(err, ERR_IO, "kill: %s", strerror(errno));
    while (waitpid(s->pid, NULL, WNOHANG) == 0) {
        if (clock_mono() > until)
            return err_set(err, ERR_TIMEOUT, "the server does not stop");
        nap();
    }
    s->pid = 0;
    return 0;
}

bool dbserver_is_running(const struct dbserver *s)
{
    return s->pid != 0;
}

int dbserver_stop(struct dbserver *s, bool crash, struct err *err)
{
    return halt(s, crash, err);
}

/* ---- Birth and death ----------------------------------------------------------------------- */

static int choose_user(struct dbserver *s, struct err *err)
{
    const struct passwd *pw;

    if (geteuid() != 0)
        return 0;
    pw = getpwnam(s->kind->user);
    if (!pw)
        pw = getpwnam("nobody"); /* its package made no user */
    if (!pw)
        return err_set(err, ERR_NOT_FOUND,
                       "the server does not run as root, and there is no user nobody");
    s->switch_user = true;
    s->uid = pw->pw_uid;
    s->gid = pw->pw_gid;
    return 0;
}

static int make_dir(struct dbserver *s, struct err *err)
{
    const char *tmp = getenv("TMPDIR");

    (void)snprintf(s->place.dir, sizeof(s->place.dir), "%s/dbserver.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(s->place.dir))
        return err_set(err, ERR_IO, "%s: %s", s->place.dir, strerror(errno));
    if (s->switch_user && chown(s->place.dir, s->uid, s->gid)) {
        (void)rmdir(s->place.dir);
        return err_set(err, ERR_IO, "%s: %s", s->place.dir, strerror(errno));
    }
    return 0;
}

static void release(struct dbserver *s)
{
    (void)halt(s, true, NULL); /* else the guardian does it */
    if (s->guard_fd >= 0) {
        (void)close(s->guard_fd);
        (void)waitpid(s->guardian, NULL, 0);
    } else if (s->place.dir[0]) {
        (void)rmdir(s->place.dir);
    }
    free(s);
}

static void on_exit_free_all(void)
{
    while (running)
        dbserver_free(running);
}

static int start_somewhere(struct dbserver *s, struct err *err)
{
    int rc = ERR_IO;

    for (int i = 0; rc == ERR_IO && i < START_TRIES; i++) {
        s->place.port = free_port();
        rc = dbserver_start(s, err);
    }
    return rc;
}

int dbserver_new(const struct dbserver_kind *kind, struct dbserver **ret, struct err *err)
{
    static bool at_exit;
    struct dbserver *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return ERR_NOMEM;
    s->kind = kind;
    s->guard_fd = -1;
    rc = kind->find(&s->place)
             ? choose_user(s, err)
             : err_set(err, ERR_NOT_FOUND, "no %s server is installed", kind->name);
    if (!rc)
        rc = make_dir(s, err);
    if (!rc)
        rc = start_guardian(s, err);
    if (!rc)
        rc = create_data(s, err);
    if (!rc)
        rc = start_somewhere(s, err);
    if (rc) {
        release(s);
        return rc;
    }
    s->next = running;
    running = s;
    if (!at_exit)
        (void)atexit(on_exit_free_all);
    at_exit = true;
    *ret = s;
    return 0;
}

void dbserver_free(struct dbserver *s)
{
    struct dbserver **link = &running;

    if (!s)
        return;
    while (*link && *link != s)
        link = &(*link)->next;
    if (*link)
        *link = s->next;
    release(s);
}
