/* options.c: the JSON text of k3_open. One table names every key; an unknown key, a wrong type or a
 * value out of range is refused with the key's name. */
#include "engine.h"

#include <string.h>
#include <yyjson.h>

#define MAX_OPTION_BYTES ((size_t)1 << 20) /* a CPU list of 4096 takes 20 KiB */

/* Ranks beyond this would have less than one tile of the narrowest matrices. */
#define MAX_RANKS 1024

static void *json_malloc(void *ctx, size_t n)
{
    (void)ctx;
    return k3i_alloc(n);
}

static void *json_realloc(void *ctx, void *p, size_t old, size_t n)
{
    (void)ctx;
    (void)old;
    return k3i_realloc(p, n);
}

static void json_free(void *ctx, void *p)
{
    (void)ctx;
    k3i_free(p);
}

/* An integer of the range, or K3_E_OPTION. */
static k3_status get_int(const char *key, yyjson_val *v, uint64_t min, uint64_t max, uint64_t *ret,
                         k3i_err *err)
{
    if (!yyjson_is_uint(v) || yyjson_get_uint(v) < min || yyjson_get_uint(v) > max)
        return k3i_fail(err, K3_E_OPTION, "option '%s' must be an integer in %llu..%llu", key,
                        (unsigned long long)min, (unsigned long long)max);
    *ret = yyjson_get_uint(v);
    return K3_OK;
}

static k3_status get_size(const char *key, yyjson_val *v, uint64_t min, uint64_t max, size_t *ret,
                          k3i_err *err)
{
    uint64_t n = 0;
    k3_status st = get_int(key, v, min, max, &n, err);
    if (st == K3_OK)
        *ret = (size_t)n;
    return st;
}

/* A copy of a string without NUL inside; null leaves *ret alone where `nullable`. */
static k3_status get_string(const char *key, yyjson_val *v, bool nullable, char **ret, k3i_err *err)
{
    if (nullable && yyjson_is_null(v))
        return K3_OK;
    if (!yyjson_is_str(v) || strlen(yyjson_get_str(v)) != yyjson_get_len(v))
        return k3i_fail(err, K3_E_OPTION, "option '%s' must be a string", key);
    *ret = k3i_strdup(yyjson_get_str(v));
    return *ret != NULL ? K3_OK : k3i_fail(err, K3_E_NOMEM, "no memory for option '%s'", key);
}

/* One of two words; *ret_second says which. */
static k3_status get_word(const char *key, yyjson_val *v, const char *first, const char *second,
                          bool *ret_second, k3i_err *err)
{
    bool is_second = yyjson_equals_str(v, second);
    if (!is_second && !yyjson_equals_str(v, first))
        return k3i_fail(err, K3_E_OPTION, "option '%s' must be \"%s\" or \"%s\"", key, first,
                        second);
    *ret_second = is_second;
    return K3_OK;
}

static k3_status get_bool(const char *key, yyjson_val *v, bool *ret, k3i_err *err)
{
    if (!yyjson_is_bool(v))
        return k3i_fail(err, K3_E_OPTION, "option '%s' must be true or false", key);
    *ret = yyjson_get_bool(v);
    return K3_OK;
}

static k3_status get_cpus(yyjson_val *v, k3i_options *o, k3i_err *err)
{
    size_t n = yyjson_arr_size(v);
    if (!yyjson_is_arr(v) || n == 0 || n > 4096)
        return k3i_fail(err, K3_E_OPTION, "option 'cpus' must be an array of 1..4096 CPU numbers");
    o->cpus = k3i_alloc_array(n, sizeof *o->cpus);
    if (o->cpus == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for option 'cpus'");
    size_t i, max;
    yyjson_val *item;
    yyjson_arr_foreach(v, i, max, item)
    {
        uint64_t cpu = 0;
        k3_status st = get_int("cpus", item, 0, 65535, &cpu, err);
        if (st != K3_OK)
            return st;
        o->cpus[i] = (int32_t)cpu;
    }
    o->n_cpus = n;
    return K3_OK;
}

static k3_status get_eps(yyjson_val *v, k3i_options *o, k3i_err *err)
{
    double eps = yyjson_is_num(v) ? yyjson_get_num(v) : -1;
    if (!(eps > 0) || eps > 1)
        return k3i_fail(err, K3_E_OPTION, "option 'latent_norm_eps' must be a number in (0, 1]");
    o->latent_norm_eps = eps;
    return K3_OK;
}

/* One of two words, of which *ret becomes a constant copy. */
static k3_status get_name(const char *key, yyjson_val *v, const char *first, const char *second,
                          const char **ret, k3i_err *err)
{
    bool is_second = false;
    k3_status st = get_word(key, v, first, second, &is_second, err);
    if (st == K3_OK)
        *ret = is_second ? second : first;
    return st;
}

static k3_status set_option(const char *key, yyjson_val *v, k3i_options *o, k3i_err *err)
{
    bool f32 = false;
    if (strcmp(key, "model") == 0)
        return get_string(key, v, false, &o->model, err);
    if (strcmp(key, "draft") == 0)
        return get_string(key, v, true, &o->draft, err);
    if (strcmp(key, "isa") == 0)
        return get_string(key, v, true, &o->isa, err);
    if (strcmp(key, "mode") == 0) {
        k3_status st = get_word(key, v, "bf16", "f32", &f32, err);
        o->bf16 = !f32;
        return st;
    }
    if (strcmp(key, "threads") == 0)
        return get_size(key, v, 0, 4096, &o->threads, err);
    if (strcmp(key, "fixed_threads") == 0)
        return get_bool(key, v, &o->fixed_threads, err);
    if (strcmp(key, "split") == 0)
        return get_name(key, v, "outputs", "rows", &o->split, err);
    if (strcmp(key, "cpus") == 0)
        return get_cpus(v, o, err);
    if (strcmp(key, "max_num_seqs") == 0)
        return get_size(key, v, 1, 4096, &o->max_num_seqs, err);
    if (strcmp(key, "max_num_batched_tokens") == 0)
        return get_size(key, v, 1, 1 << 20, &o->max_num_batched_tokens, err);
    if (strcmp(key, "max_model_len") == 0)
        return get_size(key, v, 1, INT32_MAX, &o->max_model_len, err);
    if (strcmp(key, "num_speculative_tokens") == 0)
        return get_size(key, v, 0, K3I_MAX_DRAFT, &o->num_speculative_tokens, err);
    if (strcmp(key, "aux_hidden_stream") == 0)
        return get_name(key, v, "prefix", "attn_res", &o->aux_hidden_stream, err);
    if (strcmp(key, "latent_norm_eps") == 0)
        return get_eps(v, o, err);
    if (strcmp(key, "image_cache_bytes") == 0)
        return get_int(key, v, 0, INT64_MAX, &o->image_cache_bytes, err);
    if (strcmp(key, "tp_rank") == 0)
        return get_size(key, v, 0, MAX_RANKS - 1, &o->tp_rank, err);
    if (strcmp(key, "tp_size") == 0)
        return get_size(key, v, 1, MAX_RANKS, &o->tp_size, err);
    return k3i_fail(err, K3_E_OPTION, "unknown option '%.100s'", key);
}

static k3_status set_all(yyjson_val *root, k3i_options *o, k3i_err *err)
{
    size_t i, max;
    yyjson_val *key, *v;
    if (!yyjson_is_obj(root))
        return k3i_fail(err, K3_E_OPTION, "the options must be a JSON object");
    yyjson_obj_foreach(root, i, max, key, v)
    {
        if (yyjson_obj_get(root, yyjson_get_str(key)) != v)
            return k3i_fail(err, K3_E_OPTION, "option '%.100s' is given twice",
                            yyjson_get_str(key));
        k3_status st = set_option(yyjson_get_str(key), v, o, err);
        if (st != K3_OK)
            return st;
    }
    if (o->model == NULL)
        return k3i_fail(err, K3_E_OPTION, "option 'model' is missing");
    if (o->tp_rank >= o->tp_size)
        return k3i_fail(err, K3_E_OPTION, "option 'tp_rank' is %zu, 'tp_size' %zu", o->tp_rank,
                        o->tp_size);
    return K3_OK;
}

k3_status k3i_options_parse(const char *json, k3i_options *ret, k3i_err *err)
{
    k3i_options o = {.bf16 = true,
                     .max_num_seqs = 8,
                     .max_num_batched_tokens = 512,
                     .tp_size = 1,
                     .image_cache_bytes = (uint64_t)256 << 20};
    const yyjson_alc alc = {json_malloc, json_realloc, json_free, NULL};
    yyjson_read_err problem;
    size_t n = json != NULL ? strlen(json) : 0;
    if (json == NULL || n > MAX_OPTION_BYTES)
        return k3i_fail(err, K3_E_OPTION, "the options must be a JSON text of at most 1 MiB");
    char *copy = k3i_strdup(json); /* yyjson takes a mutable pointer, though it only reads */
    if (copy == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the options");
    yyjson_doc *doc = yyjson_read_opts(copy, n, 0, &alc, &problem);
    k3i_free(copy);
    if (doc == NULL && problem.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the options");
    if (doc == NULL)
        return k3i_fail(err, K3_E_OPTION, "the options are not JSON: %s at byte %zu", problem.msg,
                        problem.pos);
    k3_status st = set_all(yyjson_doc_get_root(doc), &o, err);
    yyjson_doc_free(doc);
    if (st != K3_OK) {
        k3i_options_done(&o);
        return st;
    }
    *ret = o;
    return K3_OK;
}

void k3i_options_done(k3i_options *o)
{
    k3i_free(o->model);
    k3i_free(o->draft);
    k3i_free(o->isa);
    k3i_free(o->cpus);
    *o = (k3i_options){0};
}
