/* settings.c: preprocessor_config.json. A key of media_proc_cfg that is not known is refused:
 * silently ignored settings are how ports went wrong. Keys of video are checked by name only. */
#include "settings.h"

#include "map.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#define FILE_NAME "preprocessor_config.json"
#define MAX_FILE_BYTES (1u << 20)

void k3i_image_settings_default(k3i_image_settings *ret)
{
    *ret = (k3i_image_settings){
        .patch = 14,
        .merge = 2,
        .patch_limit = 65536,
        .side_limit = 512,
        .mean = {0.5f, 0.5f, 0.5f},
        .std = {0.5f, 0.5f, 0.5f},
        .background =
            {.is_chessboard = true, .white_first = true, .square = 8, .white = 255, .gray = 180},
        .decode = {.max_bytes = (size_t)32 << 20,
                   .max_pixels = 178956970,
                   .max_side = 1 << 20,
                   .apply_exif = true},
    };
}

/* What the reference does where the file is silent. */
static void set_fallbacks(k3i_image_settings *s)
{
    s->fill_before_resize = true;
    s->background = (k3i_background){.drop_alpha = true};
}

static k3_status bad(k3i_err *err, const char *file, const char *key, const char *want)
{
    return k3i_fail(err, K3_E_CONFIG, "%s: %s must be %s", file, key, want);
}

/* An integer of [lo, hi]. */
static k3_status get_uint(yyjson_val *v, const char *file, const char *key, uint64_t lo,
                          uint64_t hi, uint32_t *ret, k3i_err *err)
{
    char want[64];
    snprintf(want, sizeof want, "an integer of %llu to %llu", (unsigned long long)lo,
             (unsigned long long)hi);
    if (!yyjson_is_uint(v) || yyjson_get_uint(v) < lo || yyjson_get_uint(v) > hi)
        return bad(err, file, key, want);
    *ret = (uint32_t)yyjson_get_uint(v);
    return K3_OK;
}

static k3_status get_rgb(yyjson_val *v, const char *file, const char *key, bool positive,
                         float ret[3], k3i_err *err)
{
    const char *want = positive ? "three positive numbers" : "three numbers";
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) != 3)
        return bad(err, file, key, want);
    for (size_t i = 0; i < 3; i++) {
        yyjson_val *x = yyjson_arr_get(v, i);
        double d = yyjson_get_num(x);
        if (!yyjson_is_num(x) || !isfinite(d) || fabs(d) > 1e6 || (positive && d < 1e-6))
            return bad(err, file, key, want);
        ret[i] = (float)d;
    }
    return K3_OK;
}

static bool is_text(yyjson_val *v, const char *s)
{
    return yyjson_is_str(v) && strcmp(yyjson_get_str(v), s) == 0;
}

static k3_status get_background(yyjson_val *obj, const char *file, k3i_background *ret,
                                k3i_err *err)
{
    k3i_background bg = {.white_first = true, .square = 16, .white = 255, .gray = 200};
    if (!yyjson_is_obj(obj))
        return bad(err, file, "transparent_bg_config", "an object");
    yyjson_obj_iter it = yyjson_obj_iter_with(obj);
    k3_status st = K3_OK;
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL && st == K3_OK;
         k = yyjson_obj_iter_next(&it)) {
        yyjson_val *v = yyjson_obj_iter_get_val(k);
        const char *key = yyjson_get_str(k);
        uint32_t level = 0;
        if (is_text(k, "pattern")) {
            bg.is_chessboard = is_text(v, "chessboard");
            if (!bg.is_chessboard && !is_text(v, "black"))
                st = bad(err, file, key, "\"chessboard\" or \"black\"");
        } else if (is_text(k, "square_size")) {
            st = get_uint(v, file, key, 1, 65536, &bg.square, err);
        } else if (is_text(k, "chessboard_square_on_top_left")) {
            bg.white_first = yyjson_is_true(v);
            if (!yyjson_is_bool(v))
                st = bad(err, file, key, "true or false");
        } else if (is_text(k, "white")) {
            st = get_uint(v, file, key, 0, 255, &level, err);
            bg.white = (uint8_t)level;
        } else if (is_text(k, "gray")) {
            st = get_uint(v, file, key, 0, 255, &level, err);
            bg.gray = (uint8_t)level;
        } else {
            st = k3i_fail(err, K3_E_CONFIG, "%s: transparent_bg_config: unknown key '%s'", file,
                          key);
        }
    }
    if (st == K3_OK)
        *ret = bg;
    return st;
}

static bool is_unused(yyjson_val *key)
{
    static const char *const names[] = {"in_patch_limit_each_frame",
                                        "in_patch_limit_video",
                                        "sample_fps",
                                        "max_num_frames_each_video",
                                        "temporal_merge_kernel_size",
                                        "timestamp_mode",
                                        "config_type"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (is_text(key, names[i]))
            return true;
    }
    return false;
}

static k3_status get_key(yyjson_val *k, yyjson_val *v, const char *file, k3i_image_settings *s,
                         k3i_err *err)
{
    const char *key = yyjson_get_str(k);
    if (is_text(k, "patch_size"))
        return get_uint(v, file, key, 1, 256, &s->patch, err);
    if (is_text(k, "merge_kernel_size"))
        return get_uint(v, file, key, 1, 16, &s->merge, err);
    if (is_text(k, "in_patch_limit"))
        return get_uint(v, file, key, 1, 1u << 20, &s->patch_limit, err);
    if (is_text(k, "patch_limit_on_one_side"))
        return get_uint(v, file, key, 1, 4096, &s->side_limit, err);
    if (is_text(k, "image_mean"))
        return get_rgb(v, file, key, false, s->mean, err);
    if (is_text(k, "image_std"))
        return get_rgb(v, file, key, true, s->std, err);
    if (is_text(k, "transparent_bg_config"))
        return get_background(v, file, &s->background, err);
    if (is_text(k, "transparent_bg_fill_stage")) {
        s->fill_before_resize = is_text(v, "before_resize");
        if (!s->fill_before_resize && !is_text(v, "after_resize"))
            return bad(err, file, key, "\"after_resize\" or \"before_resize\"");
        return K3_OK;
    }
    if (is_text(k, "fixed_output_tokens"))
        return yyjson_is_null(v) ? K3_OK : bad(err, file, key, "null");
    if (is_unused(k))
        return K3_OK;
    return k3i_fail(err, K3_E_CONFIG, "%s: media_proc_cfg: unknown key '%s'", file, key);
}

k3_status k3i_image_settings_parse(const char *text, size_t n, const char *name,
                                   k3i_image_settings *ret, k3i_err *err)
{
    static const char *const required[] = {"patch_size",     "merge_kernel_size",
                                           "in_patch_limit", "patch_limit_on_one_side",
                                           "image_mean",     "image_std"};
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    set_fallbacks(&s);
    yyjson_doc *doc = yyjson_read(text, n, 0);
    yyjson_val *cfg = yyjson_obj_get(yyjson_doc_get_root(doc), "media_proc_cfg");
    k3_status st = K3_OK;
    if (doc == NULL)
        st = k3i_fail(err, K3_E_CONFIG, "%s: not valid JSON", name);
    else if (!yyjson_is_obj(cfg))
        st = k3i_fail(err, K3_E_CONFIG, "%s: the object media_proc_cfg is missing", name);
    for (size_t i = 0; st == K3_OK && i < sizeof required / sizeof *required; i++) {
        if (yyjson_obj_get(cfg, required[i]) == NULL)
            st = k3i_fail(err, K3_E_CONFIG, "%s: media_proc_cfg: '%s' is missing", name,
                          required[i]);
    }
    if (st == K3_OK) {
        yyjson_obj_iter it = yyjson_obj_iter_with(cfg);
        for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL && st == K3_OK;
             k = yyjson_obj_iter_next(&it))
            st = get_key(k, yyjson_obj_iter_get_val(k), name, &s, err);
    }
    yyjson_doc_free(doc);
    if (st == K3_OK)
        *ret = s;
    return st;
}

k3_status k3i_image_settings_read(const char *dir, k3i_image_settings *ret, k3i_err *err)
{
    char path[K3I_PATH];
    char *text;
    size_t n;
    k3_status st = k3i_read_in(dir, FILE_NAME, MAX_FILE_BYTES, path, &text, &n, err);
    if (st != K3_OK)
        return st;
    st = k3i_image_settings_parse(text, n, path, ret, err);
    k3i_free(text);
    return st;
}
