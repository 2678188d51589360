/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of node/config*.c: the table of keys and the steps that read it. */
#ifndef JF_NODE_CONFIG_INTERNAL_H
#define JF_NODE_CONFIG_INTERNAL_H

#include "common/buf.h"
#include "node/config.h"

enum config_kind {
    KIND_STRING,
    KIND_DURATION, /* int64_t, milliseconds */
    KIND_SIZE,     /* size_t, bytes */
    KIND_U32,
    KIND_I32,
    KIND_DOUBLE,
    KIND_BOOL,
    KIND_LOG_FORMAT,
    KIND_LOG_LEVEL,
};

struct config_key {
    const char *name; /* "http.max_body" */
    enum config_kind kind;
    size_t offset; /* of the value in struct config */
    const char
        *preset; /* the default as a person would write it; NULL = none, then null is allowed */
    double min;  /* of numbers, sizes and durations, in the unit of the field */
    double max;
    int (*check)(struct str value, struct err *err); /* of a string; may be NULL */
    const char *flag;                                /* "--listen"; NULL = none */
    const char *flag_hint;                           /* "ADDR:PORT" */
    const char *flag_help;
    bool secret; /* never printed; a URL has its password masked anyway */
    bool url;
};

/* Ascending by name. The rows "policies.default.…" also describe the keys of the other policies:
 * their values lie at the same place in another element of `policies`. */
extern const struct config_key config_keys[];
extern const size_t config_n_keys;

#define CONFIG_MAX_KEYS 80
#define CONFIG_POLICY_KEYS 5

enum origin_kind { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENV, ORIGIN_FLAG };

struct origin {
    enum origin_kind kind;
    unsigned line; /* of FILE */
};

struct config_origins {
    char *file; /* owned; NULL = no file was read */
    struct origin keys[CONFIG_MAX_KEYS];
    /* Of policies[1] on; the default's stand in `keys`. */
    struct origin policies[CONFIG_MAX_POLICIES][CONFIG_POLICY_KEYS];
};

/* The index of the key, or -1. `section` absent: `name` is the whole name. */
int config_key_find(struct str section, struct str name);
size_t config_first_policy_key(void);

#define CONFIG_NAME_MAX 64
/* Where wrong names are looked up: sections, the keys of one section, variables, flags. */
enum config_names { NAMES_SECTIONS, NAMES_KEYS, NAMES_VARIABLES, NAMES_FLAGS };

/* The i-th name of a kind, in dst; false where row i has none. `section` only for KEYS. */
bool config_name_at(enum config_names names, struct str section, size_t i,
                    char dst[CONFIG_NAME_MAX]);

/* Completes "unknown …" with the name that is nearest to a wrong one: " (did you mean …?)", or
 * nothing when none is near. Returns dst. */
#define CONFIG_HINT_MAX (CONFIG_NAME_MAX + 24)
const char *config_hint(enum config_names names, struct str section, struct str wrong,
                        char dst[CONFIG_HINT_MAX]);

/* "http.max_body" → "JOBFLOW_HTTP_MAX_BODY". */
void config_env_name(const struct config_key *k, char dst[CONFIG_NAME_MAX]);

/* Where a value of the key comes from: "jobflow.yaml:7", "JOBFLOW_HTTP_LISTEN", "--listen" or
 * "default". */
void config_origin_put(const struct config_origins *o, size_t key, struct origin where,
                       struct buf *dst);

/* Reads a value and replaces the field by it. An absent or empty text is null: only for keys
 * without a default. Errors: ERR_INVALID, ERR_NOMEM. */
MUST_CHECK int config_value_set(const struct config_key *k, struct str text, void *field,
                                struct err *err);

/* Writes the value as a YAML scalar that reads back to the same, masked where it must be. */
void config_value_put(const struct config_key *k, const void *field, struct buf *dst);

/* The URL with its password and what looks like a secret in its query as "***". */
void config_mask_url(struct str url, struct buf *dst);

static inline void *config_field(struct config *c, const struct config_key *k)
{
    return (char *)c + k->offset;
}

/* Reads the file into `c`, which holds the defaults. Errors: ERR_IO, ERR_INVALID, ERR_NOMEM. */
MUST_CHECK int config_read_file(struct config *c, const char *path, struct err *err);

/* What no single value shows. Errors: ERR_INVALID. */
MUST_CHECK int config_check_contradictions(const struct config *c, struct err *err);

#endif
