/* pictures.c: see pictures.h. A picture in a prompt is begin, "image WxH", content, one placeholder
 * a row, end (vision 3.6); what is bound to what is remembered as positions, never searched for in
 * ids that came from text. */
#include "pictures.h"

#include "ids.h"
#include "map.h"
#include "progress.h"

#include <string.h>

enum { LARGE_FILE = 1 << 20 }; /* bytes; smaller pictures are ready at once */

k3_status k3i_picture_settings(const k3i_args *args, k3i_image_settings *ret, k3i_err *err)
{
    k3_status st = k3i_image_settings_read(k3i_arg_text(args, "model"), ret, err);
    if (st != K3_OK)
        return st;
    if (k3i_arg_given(args, "image-patches"))
        ret->patch_limit = (uint32_t)k3i_arg_int(args, "image-patches");
    ret->decode.apply_exif = strcmp(k3i_arg_text(args, "exif"), "apply") == 0;
    ret->decode.gray16_clip = strcmp(k3i_arg_text(args, "gray16"), "clip") == 0;
    return K3_OK;
}

k3_status k3i_picture_read(const char *path, const k3i_image_settings *s, k3i_patches *ret,
                           uint8_t digest[K3I_IMAGE_KEY_BYTES], k3i_err *err)
{
    char *bytes;
    size_t n;
    k3_status st = k3i_read_file(path, s->decode.max_bytes, &bytes, &n, err);
    if (st != K3_OK)
        return st;
    if (n >= LARGE_FILE)
        k3i_progress_note("preparing", path);
    st = k3i_image_prepare((const uint8_t *)bytes, n, s, ret, err);
    k3i_progress_clear();
    if (st == K3_OK)
        k3i_image_key((const uint8_t *)bytes, n, s, "", digest);
    else
        k3i_err_prefix(err, "%s", path);
    k3i_free(bytes);
    return st;
}

k3_status k3i_pictures_load(const k3i_args *args, k3i_pictures *ret, k3i_err *err)
{
    k3i_image_settings s;
    size_t n = 0;
    while (k3i_arg_nth(args, "image", n) != NULL)
        n++;
    if (n == 0) {
        static const char *const idle[] = {"image-patches", "exif", "gray16"};
        for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
            if (k3i_arg_given(args, idle[i]))
                return k3i_fail(err, K3_E_OPTION, "--%s has no effect without --image", idle[i]);
        }
        return K3_OK;
    }
    uint8_t(*digest)[K3I_IMAGE_KEY_BYTES] = k3i_alloc_array(n, sizeof *digest);
    ret->file = k3i_alloc_array(n, sizeof *ret->file);
    k3_status st = digest == NULL || ret->file == NULL
                       ? k3i_fail(err, K3_E_NOMEM, "no memory for %zu pictures", n)
                       : k3i_picture_settings(args, &s, err);
    for (size_t i = 0; i < n && st == K3_OK; i++) {
        k3i_picture_file *f = &ret->file[i];
        st = k3i_picture_read(k3i_arg_nth(args, "image", i), &s, &f->patches, digest[i], err);
        if (st != K3_OK)
            break;
        ret->n++;
        f->key = i + 1;
        for (size_t k = 0; k < i; k++) {
            if (memcmp(digest[k], digest[i], sizeof digest[i]) == 0)
                f->key = ret->file[k].key;
        }
    }
    k3i_free(digest);
    return st;
}

void k3i_pictures_done(k3i_pictures *p)
{
    for (size_t i = 0; i < p->n; i++)
        k3i_patches_done(&p->file[i].patches);
    k3i_free(p->file);
    *p = (k3i_pictures){0};
}

/* The placeholders of the next picture. */
static k3_status place_rows(k3i_pictures *p, const k3i_tok *tok, k3i_ids *ids, k3i_err *err)
{
    k3i_picture_file *f = &p->file[p->n_placed++];
    k3_status st = K3_OK;
    f->at = ids->n;
    for (uint32_t i = 0; i < f->patches.plan.n_tokens && st == K3_OK; i++)
        st = k3i_ids_add(ids, k3i_tok_special_ids(tok)->media_pad, err);
    return st;
}

/* The whole block of the next picture. */
static k3_status place_block(k3i_pictures *p, const k3i_tok *tok, k3i_ids *ids, k3i_err *err)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    char label[64];
    k3i_image_label(&p->file[p->n_placed].patches.plan, label, sizeof label);
    k3_status st = k3i_ids_add(ids, special->media_begin, err);
    if (st == K3_OK)
        st = k3i_tok_encode(tok, label, strlen(label), K3I_TOK_PLAIN, ids, err);
    if (st == K3_OK)
        st = k3i_ids_add(ids, special->media_content, err);
    if (st == K3_OK)
        st = place_rows(p, tok, ids, err);
    return st == K3_OK ? k3i_ids_add(ids, special->media_end, err) : st;
}

static const char *find_mark(const char *from, const char *end)
{
    return memmem(from, (size_t)(end - from), K3I_PICTURE_MARK, strlen(K3I_PICTURE_MARK));
}

k3_status k3i_pictures_place_text(k3i_pictures *p, const k3i_tok *tok, const char *text, size_t n,
                                  k3i_ids *ret, k3i_err *err)
{
    const size_t mark = strlen(K3I_PICTURE_MARK);
    size_t n_marks = 0;
    for (const char *at = text; p->n > 0 && (at = find_mark(at, text + n)) != NULL; at += mark)
        n_marks++;
    if (n_marks != 0 && n_marks != p->n)
        return k3i_fail(err, K3_E_OPTION, "the prompt has %zu marks %s for %zu pictures", n_marks,
                        K3I_PICTURE_MARK, p->n);
    k3_status st = K3_OK;
    while (n_marks == 0 && p->n_placed < p->n && st == K3_OK)
        st = place_block(p, tok, ret, err);
    for (const char *from = text, *end = text + n; st == K3_OK;) {
        const char *at = n_marks > 0 ? find_mark(from, end) : NULL;
        st = k3i_tok_encode(tok, from, (size_t)((at != NULL ? at : end) - from), K3I_TOK_PLAIN, ret,
                            err);
        if (at == NULL)
            break;
        if (st == K3_OK)
            st = place_block(p, tok, ret, err);
        from = at + mark;
    }
    return st;
}

k3_status k3i_pictures_place_ids(k3i_pictures *p, const k3i_tok *tok, k3i_ids *ids, k3i_err *err)
{
    int32_t pad = k3i_tok_special_ids(tok)->media_pad;
    size_t n_marks = 0;
    for (size_t i = 0; i < ids->n; i++)
        n_marks += ids->id[i] == pad;
    if (n_marks != p->n)
        return k3i_fail(err, K3_E_OPTION, "the ids hold %zu placeholders (%d) for %zu pictures",
                        n_marks, (int)pad, p->n);
    k3i_ids out = K3I_IDS(ids->max);
    k3_status st = K3_OK;
    for (size_t i = 0; i < ids->n && st == K3_OK; i++)
        st = ids->id[i] == pad ? place_rows(p, tok, &out, err) : k3i_ids_add(&out, ids->id[i], err);
    if (st != K3_OK) {
        k3i_ids_done(&out);
        return st;
    }
    k3i_ids_done(ids);
    *ids = out;
    return K3_OK;
}

k3_status k3i_pictures_give(k3i_pictures *p, k3i_request *r, k3i_err *err)
{
    if (p->n == 0)
        return K3_OK;
    r->media = k3i_alloc_array(p->n, sizeof *r->media);
    if (r->media == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for %zu pictures", p->n);
    for (size_t i = 0; i < p->n; i++) {
        k3i_patches *patches = &p->file[i].patches;
        r->media[r->n_media++] = (k3i_media){.key = p->file[i].key,
                                             .at = (int32_t)p->file[i].at,
                                             .rows = (int32_t)patches->plan.n_tokens,
                                             .pixels = patches->pixels,
                                             .grid_t = 1,
                                             .grid_h = (int32_t)patches->plan.grid_h,
                                             .grid_w = (int32_t)patches->plan.grid_w};
        patches->pixels = NULL;
    }
    return K3_OK;
}
