/* spec_config.c: see spec_config.h. */
#include "spec_config.h"

#include "policy.h"

#include <string.h>
#include <yyjson.h>

static k3_status set_key(const char *key, yyjson_val *v, k3i_spec_config *c, bool *has_method,
                         k3i_err *err)
{
    if (strcmp(key, "method") == 0) {
        if (!yyjson_equals_str(v, "dspark"))
            return k3i_fail(err, K3_E_OPTION,
                            "--speculative-config: \"method\" must be \"dspark\"");
        *has_method = true;
        return K3_OK;
    }
    if (strcmp(key, "model") == 0) {
        if (!yyjson_is_str(v) || strlen(yyjson_get_str(v)) != yyjson_get_len(v) ||
            yyjson_get_len(v) == 0)
            return k3i_fail(err, K3_E_OPTION,
                            "--speculative-config: \"model\" must be the folder of a draft");
        k3i_free(c->model);
        c->model = k3i_strdup(yyjson_get_str(v));
        return c->model != NULL ? K3_OK : k3i_fail(err, K3_E_NOMEM, "no memory");
    }
    if (strcmp(key, "num_speculative_tokens") == 0) {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) < 1 || yyjson_get_uint(v) > K3_MAX_WIDTH)
            return k3i_fail(err, K3_E_OPTION,
                            "--speculative-config: \"num_speculative_tokens\" must be in 1..%d",
                            K3_MAX_WIDTH);
        c->tokens = (int32_t)yyjson_get_uint(v);
        return K3_OK;
    }
    if (strcmp(key, "adaptive") == 0) {
        if (!yyjson_is_bool(v))
            return k3i_fail(err, K3_E_OPTION,
                            "--speculative-config: \"adaptive\" must be true or false");
        c->is_fixed = !yyjson_get_bool(v);
        return K3_OK;
    }
    return k3i_fail(err, K3_E_OPTION,
                    "--speculative-config: \"%.100s\" is not supported (method, model, "
                    "num_speculative_tokens and adaptive are)",
                    key);
}

static k3_status set_all(yyjson_val *root, k3i_spec_config *c, k3i_err *err)
{
    size_t i, max;
    yyjson_val *key, *v;
    bool has_method = false;
    if (!yyjson_is_obj(root))
        return k3i_fail(err, K3_E_OPTION, "--speculative-config must be a JSON object");
    yyjson_obj_foreach(root, i, max, key, v)
    {
        k3_status st = set_key(yyjson_get_str(key), v, c, &has_method, err);
        if (st != K3_OK)
            return st;
    }
    if (!has_method || c->model == NULL)
        return k3i_fail(err, K3_E_OPTION, "--speculative-config: \"%s\" is missing",
                        has_method ? "model" : "method");
    return K3_OK;
}

k3_status k3i_spec_config_parse(const char *json, k3i_spec_config *ret, k3i_err *err)
{
    k3i_spec_config c = {0};
    yyjson_doc *doc = yyjson_read(json, strlen(json), YYJSON_READ_NOFLAG);
    if (doc == NULL)
        return k3i_fail(err, K3_E_OPTION, "--speculative-config is not JSON: %.100s", json);
    k3_status st = set_all(yyjson_doc_get_root(doc), &c, err);
    yyjson_doc_free(doc);
    if (st != K3_OK) {
        k3i_spec_config_done(&c);
        return st;
    }
    *ret = c;
    return K3_OK;
}

void k3i_spec_config_done(k3i_spec_config *c)
{
    k3i_free(c->model);
    *c = (k3i_spec_config){0};
}
