/* SPDX-License-Identifier: Apache-2.0 */
/* Names of keys, sections, variables and flags, and what a person may have meant by a wrong one. */
#include "node/config_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define FLAGS_WITHOUT_KEY 5

static const char *const flags_without_key[FLAGS_WITHOUT_KEY] = {
    "--check-config", "--config", "--help", "--migrate-only", "--version"};

static struct str section_of(const struct config_key *k)
{
    return (struct str){k->name, strcspn(k->name, ".")};
}

/* Behind the section; of a policy's key the last part, since the policy's name is in between. */
static const char *last_part(const struct config_key *k)
{
    return strrchr(k->name, '.') + 1;
}

int config_key_find(struct str section, struct str name)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        if (str_eq(section_of(k), section) && str_eqz(name, last_part(k)))
            return (int)i;
    }
    return -1;
}

size_t config_first_policy_key(void)
{
    int first = config_key_find(STR("policies"), STR("cap"));
    assert(first >= 0);
    return (size_t)first;
}

void config_env_name(const struct config_key *k, char dst[CONFIG_NAME_MAX])
{
    int n = snprintf(dst, CONFIG_NAME_MAX, "JOBFLOW_%s", k->name);
    assert(n > 0 && n < CONFIG_NAME_MAX);
    for (char *p = dst; *p != '\0'; p++) {
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
        else if (*p == '.')
            *p = '_';
    }
}

static bool copy(char dst[CONFIG_NAME_MAX], struct str name)
{
    assert(name.len < CONFIG_NAME_MAX);
    memcpy(dst, name.p, name.len);
    dst[name.len] = '\0';
    return true;
}

bool config_name_at(enum config_names names, struct str section, size_t i,
                    char dst[CONFIG_NAME_MAX])
{
    if (names == NAMES_FLAGS && i >= config_n_keys)
        return copy(dst, str_from(flags_without_key[i - config_n_keys]));
    if (i >= config_n_keys)
        return false;
    const struct config_key *k = &config_keys[i];
    switch (names) {
    case NAMES_SECTIONS:
        return copy(dst, section_of(k));
    case NAMES_KEYS:
        return str_eq(section_of(k), section) && copy(dst, str_from(last_part(k)));
    case NAMES_VARIABLES:
        config_env_name(k, dst);
        return true;
    case NAMES_FLAGS:
        return k->flag && copy(dst, str_from(k->flag));
    }
    return false;
}

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Levenshtein's distance; b is shorter than CONFIG_NAME_MAX. */
static size_t distance(struct str a, struct str b)
{
    size_t row[CONFIG_NAME_MAX];
    for (size_t j = 0; j <= b.len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a.len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.len; j++) {
            size_t above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a.p[i - 1] != b.p[j - 1]));
            diagonal = above;
        }
    }
    return row[b.len];
}

const char *config_hint(enum config_names names, struct str section, struct str wrong,
                        char dst[CONFIG_HINT_MAX])
{
    char name[CONFIG_NAME_MAX];
    char best[CONFIG_NAME_MAX] = "";
    size_t best_distance = SIZE_MAX;
    if (wrong.len < CONFIG_NAME_MAX) {
        for (size_t i = 0; i < config_n_keys + FLAGS_WITHOUT_KEY; i++) {
            if (!config_name_at(names, section, i, name))
                continue;
            size_t d = distance(wrong, str_from(name));
            if (d < best_distance) {
                best_distance = d;
                memcpy(best, name, sizeof(best));
            }
        }
    }
    /* A third of the letters wrong is a typing error, more is another word. */
    bool near = best_distance <= 1 || best_distance <= wrong.len / 3;
    dst[0] = '\0';
    if (near)
        snprintf(dst, CONFIG_HINT_MAX, " (did you mean %s?)", best);
    return dst;
}
