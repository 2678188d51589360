/* SPDX-License-Identifier: Apache-2.0 */
#include "examples/order-service/jobflow_client.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MAX 65536

struct jobflow {
    CURL *curl; /* one connection, used again for each call */
    struct curl_slist *headers;
    const char *url;
    char answer[ANSWER_MAX];
    size_t len;
};

struct jobflow *jobflow_new(const char *url)
{
    struct jobflow *j = calloc(1, sizeof(*j));

    if (!j)
        return NULL;
    j->url = url;
    j->curl = curl_easy_init();
    j->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!j->curl || !j->headers) {
        jobflow_free(j);
        return NULL;
    }
    return j;
}

void jobflow_free(struct jobflow *j)
{
    if (!j)
        return;
    curl_easy_cleanup(j->curl);
    curl_slist_free_all(j->headers);
    free(j);
}

static size_t on_data(char *data, size_t size, size_t n, void *ctx)
{
    struct jobflow *j = ctx;
    size_t len = size * n;

    if (len > sizeof(j->answer) - j->len)
        return 0;
    memcpy(j->answer + j->len, data, len);
    j->len += len;
    return len;
}

/* Takes `body`, which may be NULL. */
static long call(struct jobflow *j, const char *method, const char *path, json_t *body,
                 json_t **ret)
{
    char url[1024];
    long status = 0;
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;

    json_decref(body);
    snprintf(url, sizeof(url), "%s%s", j->url, path);
    curl_easy_reset(j->curl);
    curl_easy_setopt(j->curl, CURLOPT_URL, url);
    curl_easy_setopt(j->curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(j->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(j->curl, CURLOPT_TIMEOUT_MS, 15000L);
    curl_easy_setopt(j->curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(j->curl, CURLOPT_WRITEDATA, j);
    if (text) {
        curl_easy_setopt(j->curl, CURLOPT_HTTPHEADER, j->headers);
        curl_easy_setopt(j->curl, CURLOPT_POSTFIELDS, text);
    }
    j->len = 0;
    CURLcode rc = curl_easy_perform(j->curl);
    if (rc == CURLE_OK)
        curl_easy_getinfo(j->curl, CURLINFO_RESPONSE_CODE, &status);
    *ret = rc == CURLE_OK ? json_loadb(j->answer, j->len, 0, NULL) : NULL;
    free(text);
    return status;
}

long jobflow_register(struct jobflow *j, const char *service, const char *base_url, json_t **ret)
{
    char path[256];

    snprintf(path, sizeof(path), "/api/services/%s", service);
    return call(j, "PUT", path, json_pack("{s:s}", "baseUrl", base_url), ret);
}

long jobflow_submit(struct jobflow *j, json_t *task, json_t **ret)
{
    return call(j, "POST", "/api/delay-tasks", task, ret);
}

long jobflow_cancel(struct jobflow *j, const char *biz_uuid, json_t **ret)
{
    char path[512];
    char *escaped = curl_easy_escape(j->curl, biz_uuid, 0);

    *ret = NULL;
    if (!escaped)
        return 0;
    snprintf(path, sizeof(path), "/api/delay-tasks/%s", escaped);
    curl_free(escaped);
    return call(j, "DELETE", path, NULL, ret);
}
