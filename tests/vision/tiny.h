/* tiny.h: vision towers made of numbers: the tiny configuration of the published expected output,
 * and random ones of any shape. */
#ifndef TINY_H
#define TINY_H

#include "test.h"

#include "vision.h"

typedef struct {
    k3i_vision_config cfg;
    k3i_vision_weights w;
    k3i_arena arena;
} tower;

/* fill(s): (((7 i) mod 11) - 5) s over the row-major index. */
static inline void fill(float *p, size_t n, double s)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(((double)(7 * i % 11) - 5.0) * s);
}

static inline k3i_weight weight_fill(tower *t, size_t n, double s)
{
    float *p = k3i_arena_new(&t->arena, float, n);
    assert_non_null(p);
    fill(p, n, s);
    return (k3i_weight){.f32 = p};
}

static inline k3i_weight weight_ones(tower *t, size_t n)
{
    float *p = k3i_arena_new(&t->arena, float, n);
    for (size_t i = 0; i < n; i++)
        p[i] = 1.0f;
    return (k3i_weight){.f32 = p};
}

/* 1 + fill(.03): norm weights that show where a norm rounds. */
static inline k3i_weight weight_gain(tower *t, size_t n)
{
    k3i_weight w = weight_fill(t, n, .03);
    float *p = (float *)(uintptr_t)w.f32;
    for (size_t i = 0; i < n; i++)
        p[i] += 1.0f;
    return w;
}

static inline tower tiny_tower(void)
{
    tower t = {.cfg = {.patch_size = 2,
                       .hidden_size = 16,
                       .qkv_hidden_size = 24,
                       .intermediate_size = 32,
                       .n_heads = 3,
                       .head_dim = 8,
                       .n_layers = 2,
                       .pos_height = 4,
                       .pos_width = 4,
                       .pos_time = 4,
                       .merge_size = 2,
                       .text_hidden_size = 24,
                       .projector_eps = 1e-5f}};
    k3i_arena_init(&t.arena, 1 << 20);
    t.w.patch_proj = weight_fill(&t, 16 * 12, .05);
    t.w.pos_emb = weight_fill(&t, 4 * 4 * 16, .1);
    t.w.final_layernorm = weight_ones(&t, 16);
    t.w.proj0 = weight_fill(&t, 64 * 64, .02);
    t.w.proj2 = weight_fill(&t, 24 * 64, .05);
    t.w.post_norm = weight_ones(&t, 24);
    t.w.blocks = k3i_arena_new(&t.arena, k3i_vision_block, 2);
    for (int i = 0; i < 2; i++) {
        t.w.blocks[i] = (k3i_vision_block){.norm0 = weight_ones(&t, 16),
                                           .norm1 = weight_ones(&t, 16),
                                           .wqkv = weight_fill(&t, 72 * 16, .05),
                                           .wo = weight_fill(&t, 16 * 24, .05),
                                           .fc0 = weight_fill(&t, 32 * 16, .05),
                                           .fc1 = weight_fill(&t, 16 * 32, .05)};
    }
    return t;
}

/* BF16 of standard deviation about `scale`. */
static inline k3i_weight weight_random(tower *t, size_t n, float scale, float offset,
                                       uint64_t *seed)
{
    k3i_bf16 *p = k3i_arena_new(&t->arena, k3i_bf16, n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = k3i_to_bf16(offset + 1.7f * scale * test_rnd_float(seed));
    return (k3i_weight){.bf16 = p};
}

static inline tower random_tower(const k3i_vision_config *cfg, uint64_t seed)
{
    tower t = {.cfg = *cfg};
    size_t F = cfg->hidden_size, A = cfg->qkv_hidden_size, G = cfg->intermediate_size;
    size_t merged = F * cfg->merge_size * cfg->merge_size,
           P = 3 * cfg->patch_size * cfg->patch_size;
    size_t H = cfg->text_hidden_size;
    k3i_arena_init(&t.arena, (size_t)4 << 30);
    t.w.patch_proj = weight_random(&t, F * P, .02f, 0, &seed);
    t.w.pos_emb = weight_random(&t, cfg->pos_height * cfg->pos_width * F, .1f, 0, &seed);
    t.w.final_layernorm = weight_random(&t, F, .2f, 1, &seed);
    t.w.proj0 = weight_random(&t, merged * merged, .02f, 0, &seed);
    t.w.proj2 = weight_random(&t, H * merged, .02f, 0, &seed);
    t.w.post_norm = weight_random(&t, H, .2f, 1, &seed);
    t.w.blocks = k3i_arena_new(&t.arena, k3i_vision_block, cfg->n_layers);
    for (size_t i = 0; i < cfg->n_layers; i++) {
        t.w.blocks[i] = (k3i_vision_block){.norm0 = weight_random(&t, F, .2f, 1, &seed),
                                           .norm1 = weight_random(&t, F, .2f, 1, &seed),
                                           .wqkv = weight_random(&t, 3 * A * F, .04f, 0, &seed),
                                           .wo = weight_random(&t, F * A, .03f, 0, &seed),
                                           .fc0 = weight_random(&t, G * F, .03f, 0, &seed),
                                           .fc1 = weight_random(&t, F * G, .02f, 0, &seed)};
    }
    return t;
}

static inline void tower_done(tower *t)
{
    k3i_arena_done(&t->arena);
}

/* Encodes on `threads` threads; rows are the caller's to free. */
static inline float *encode(const tower *t, const k3i_ops *op, size_t threads, bool bf16,
                            const k3i_vision_item *items, size_t n_items, size_t *ret_n)
{
    k3i_team *team;
    k3i_vision v;
    size_t n = 0;
    for (size_t i = 0; i < n_items; i++) {
        assert_int_equal(k3i_vision_check(&t->cfg, items[i].t, items[i].h, items[i].w, NULL),
                         K3_OK);
        n += k3i_vision_rows(&t->cfg, items[i].h, items[i].w) * t->cfg.text_hidden_size;
    }
    float *rows = k3i_alloc_array(n, sizeof *rows);
    k3i_vision_item *all = k3i_alloc_array(n_items, sizeof *all);
    for (size_t i = 0, at = 0; i < n_items; i++) {
        all[i] = items[i];
        all[i].rows = rows + at;
        at += k3i_vision_rows(&t->cfg, items[i].h, items[i].w) * t->cfg.text_hidden_size;
    }
    assert_int_equal(k3i_team_new(threads, NULL, 0, &team, NULL), K3_OK);
    assert_int_equal(k3i_vision_init(&v, &t->cfg, &t->w, op, team, bf16, NULL), K3_OK);
    assert_int_equal(k3i_vision_encode(&v, all, n_items, NULL, NULL, NULL), K3_OK);
    k3i_vision_done(&v);
    k3i_free(all);
    k3i_team_free(team);
    *ret_n = n;
    return rows;
}

#endif
