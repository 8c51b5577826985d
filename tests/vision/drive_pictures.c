#include "drive_pictures.h"

#include "map.h"

enum { BLOCK = 16, BLOCKS = 200 };

k3_engine *pictures_open(const char *model_dir, const char *mode, int threads)
{
    char json[5000], err[600] = "";
    k3_engine *e;
    snprintf(json, sizeof json, "{\"model\":\"%s\",\"mode\":\"%s\",\"threads\":%d}", model_dir,
             mode, threads);
    if (k3_open(json, NULL, NULL, &e, err, sizeof err) != K3_OK)
        fail_msg("%s", err);
    const k3_kv_config kv = {
        .size = sizeof kv, .num_blocks = BLOCKS, .block_tokens = BLOCK, .n_slots = 1};
    assert_int_equal(k3_kv_init(e, &kv, NULL), K3_OK);
    return e;
}

k3i_patches pictures_load(const char *model_dir, const char *dir, const char *file)
{
    char path[4096], *bytes = NULL;
    size_t n;
    k3i_err err;
    k3i_image_settings s;
    k3i_patches p = {0};
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (k3i_image_settings_read(model_dir, &s, &err) != K3_OK ||
        k3i_read_file(path, 16 << 20, &bytes, &n, &err) != K3_OK ||
        k3i_image_prepare((uint8_t *)bytes, n, &s, &p, &err) != K3_OK)
        fail_msg("%s", err.text);
    k3i_free(bytes);
    return p;
}

k3_image pictures_image(uint64_t key, const k3i_patches *p)
{
    return (k3_image){.key = key,
                      .pixels = p->pixels,
                      .n_patches = (int32_t)p->n_patches,
                      .grid_t = 1,
                      .grid_h = (int32_t)p->plan.grid_h,
                      .grid_w = (int32_t)p->plan.grid_w};
}

void pictures_encode(k3_engine *e, const char *model_dir, const char *dir, const picture_prompt *p,
                     uint64_t base)
{
    k3i_patches patches[MAX_PICTURES];
    k3_image im[MAX_PICTURES];
    for (size_t i = 0; i < p->n_pictures; i++) {
        patches[i] = pictures_load(model_dir, dir, p->picture[i].file);
        assert_int_equal(patches[i].plan.n_tokens, p->picture[i].tokens);
        im[i] = pictures_image(base + i, &patches[i]);
    }
    if (k3_encode_image(e, (int32_t)p->n_pictures, im) != K3_OK)
        fail_msg("%s", k3_last_error(e));
    for (size_t i = 0; i < p->n_pictures; i++)
        k3i_patches_done(&patches[i]);
}

void pictures_feed(k3_engine *e, const picture_prompt *p, uint64_t base, int32_t from, int32_t to,
                   float *logits)
{
    int32_t token[MAX_PICTURES], row[MAX_PICTURES], count[MAX_PICTURES], n_media = 0;
    uint64_t key[MAX_PICTURES];
    for (size_t i = 0; i < p->n_pictures; i++) {
        int32_t a = p->picture[i].first, b = a + p->picture[i].tokens;
        int32_t lo = a > from ? a : from, hi = b < to ? b : to;
        if (lo >= hi)
            continue;
        token[n_media] = lo - from;
        row[n_media] = lo - a;
        count[n_media] = hi - lo;
        key[n_media++] = base + i;
    }
    int32_t n = to - from, last = n - 1, q_start[] = {0, n}, ctx = from, slot = 0, zero = 0;
    int32_t op = from == 0 ? K3_SLOT_RESET : K3_SLOT_KEEP, off[] = {0, (to + BLOCK - 1) / BLOCK};
    int32_t table[BLOCKS];
    for (int32_t i = 0; i < BLOCKS - 1; i++)
        table[i] = i + 1;
    k3_info info = {.size = sizeof info};
    k3_query(e, &info);
    const k3_batch b = {.size = sizeof b,
                        .n_reqs = 1,
                        .n_tokens = n,
                        .n_logit_rows = 1,
                        .n_media = n_media,
                        .token_ids = p->ids + from,
                        .q_start = q_start,
                        .ctx_len = &ctx,
                        .slot = &slot,
                        .slot_op = &op,
                        .n_spec = &zero,
                        .mla_off = off,
                        .mla_table = table,
                        .logit_row = &last,
                        .media_token = token,
                        .media_key = key,
                        .media_row = row,
                        .media_count = count};
    if (k3_forward(e, &b, logits, info.vocab_size) != K3_OK)
        fail_msg("%s", k3_last_error(e));
    const k3_commit_args c = {.size = sizeof c, .n_reqs = 1, .accepted = &n};
    assert_int_equal(k3_commit(e, &c), K3_OK);
}

void pictures_prefill(k3_engine *e, const picture_prompt *p, uint64_t base, int32_t chunk,
                      float *logits)
{
    int32_t n = (int32_t)p->n;
    for (int32_t at = 0; at < n;) {
        int32_t to = chunk == 0 || at + chunk > n ? n : at + chunk;
        pictures_feed(e, p, base, at, to, logits);
        at = to;
    }
}

void pictures_check_chunks(k3_engine *e, const picture_prompt *p, uint64_t base)
{
    static const int32_t chunks[] = {1, 3, 7, 16, 33};
    k3_info info = {.size = sizeof info};
    k3_query(e, &info);
    size_t bytes = (size_t)info.vocab_size * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    pictures_prefill(e, p, base, 0, want);
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        pictures_prefill(e, p, base, chunks[c], got);
        assert_memory_equal(want, got, bytes);
    }
    for (size_t k = 0; k < p->n_pictures; k++) {
        int32_t first = p->picture[k].first;
        for (int32_t cut = first; cut <= first + p->picture[k].tokens && cut < (int32_t)p->n;
             cut++) {
            if (cut == 0)
                continue;
            pictures_feed(e, p, base, 0, cut, got);
            pictures_feed(e, p, base, cut, (int32_t)p->n, got);
            assert_memory_equal(want, got, bytes);
        }
    }
    free(want);
    free(got);
}
