/* bench_vision: time of the vision tower on the shapes of the release, random weights.
 *
 *   bench_vision [grid_h grid_w [layers [threads [mode [isa]]]]]     default 52 92 27 2 bf16
 *
 * Prints seconds, FLOP by the formulas of docs/MODEL.md, and the share of the peak measured before
 * and after, in processor time. 52 x 92 is a picture of 1280 x 720. */
#include "peak.h"
#include "vision.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const k3i_vision_config release = {.patch_size = 14,
                                          .hidden_size = 1024,
                                          .qkv_hidden_size = 1536,
                                          .intermediate_size = 4096,
                                          .n_heads = 12,
                                          .head_dim = 128,
                                          .n_layers = 27,
                                          .pos_height = 64,
                                          .pos_width = 64,
                                          .pos_time = 4,
                                          .merge_size = 2,
                                          .text_hidden_size = 7168,
                                          .projector_eps = 1e-5f};

static k3i_weight matrix(k3i_arena *arena, size_t n, float scale, float offset)
{
    k3i_bf16 *p = k3i_arena_new(arena, k3i_bf16, n);
    uint32_t seed = (uint32_t)arena->used | 1; /* xorshift, another start for each matrix */
    if (p == NULL) {
        fprintf(stderr, "bench_vision: no memory\n");
        exit(1);
    }
    for (size_t i = 0; i < n; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        p[i] = k3i_to_bf16(offset + scale * ((float)(seed >> 8) * 0x1p-23f - 1.0f));
    }
    return (k3i_weight){.bf16 = p};
}

static k3i_vision_weights weights(k3i_arena *a, const k3i_vision_config *c)
{
    size_t F = c->hidden_size, A = c->qkv_hidden_size, G = c->intermediate_size;
    size_t merged = F * c->merge_size * c->merge_size, H = c->text_hidden_size;
    k3i_vision_weights w = {.patch_proj = matrix(a, F * 3 * c->patch_size * c->patch_size, .03f, 0),
                            .pos_emb = matrix(a, c->pos_height * c->pos_width * F, .1f, 0),
                            .final_layernorm = matrix(a, F, .2f, 1),
                            .proj0 = matrix(a, merged * merged, .03f, 0),
                            .proj2 = matrix(a, H * merged, .03f, 0),
                            .post_norm = matrix(a, H, .2f, 1),
                            .blocks = k3i_arena_new(a, k3i_vision_block, c->n_layers)};
    for (size_t i = 0; i < c->n_layers; i++)
        w.blocks[i] = (k3i_vision_block){.norm0 = matrix(a, F, .2f, 1),
                                         .norm1 = matrix(a, F, .2f, 1),
                                         .wqkv = matrix(a, 3 * A * F, .05f, 0),
                                         .wo = matrix(a, F * A, .04f, 0),
                                         .fc0 = matrix(a, G * F, .04f, 0),
                                         .fc1 = matrix(a, F * G, .03f, 0)};
    return w;
}

/* Linear layers, attention and projector: two per multiply-add. */
static double flop(const k3i_vision_config *c, double n)
{
    double F = (double)c->hidden_size, A = (double)c->qkv_hidden_size,
           G = (double)c->intermediate_size;
    double L = (double)c->n_layers, P = 3.0 * (double)(c->patch_size * c->patch_size);
    double merged = F * 4, H = (double)c->text_hidden_size;
    double per_patch = 2 * (P * F + L * (4 * A * F + 2 * F * G));
    return n * per_patch + L * 4 * n * n * A + n / 4 * 2 * merged * (merged + H);
}

static void show_progress(void *user, size_t done, size_t total)
{
    (void)user;
    fprintf(stderr, "\rlayer %zu of %zu ", done, total);
}

int main(int argc, char **argv)
{
    k3i_vision_config c = release;
    size_t h = argc > 2 ? strtoul(argv[1], NULL, 10) : 52,
           w = argc > 2 ? strtoul(argv[2], NULL, 10) : 92;
    if (argc > 3)
        c.n_layers = strtoul(argv[3], NULL, 10);
    size_t threads = argc > 4 ? strtoul(argv[4], NULL, 10) : 2;
    bool bf16 = argc <= 5 || strcmp(argv[5], "f32") != 0;
    k3i_err err = {0};
    const k3i_ops *op;
    k3i_team *team;
    k3i_vision v;
    k3i_arena arena;
    k3i_arena_init(&arena, (size_t)8 << 30);
    if (k3i_vision_check(&c, 1, h, w, &err) != K3_OK || threads < 1 ||
        k3i_ops_select(argc > 6 ? argv[6] : NULL, &op, &err) != K3_OK ||
        k3i_team_new(threads, NULL, 0, &team, &err) != K3_OK) {
        fprintf(stderr, "bench_vision: %s\n", err.text);
        return 1;
    }
    k3i_vision_weights wt = weights(&arena, &c);
    size_t n = h * w, rows_n = k3i_vision_rows(&c, h, w);
    float *pixels = k3i_alloc_array(n * 588, sizeof *pixels);
    float *rows = k3i_alloc_array(rows_n * c.text_hidden_size, sizeof *rows);
    for (size_t i = 0; pixels != NULL && i < n * 588; i++)
        pixels[i] = k3i_round_bf16((float)(i % 511) / 255.0f - 1.0f);
    const char *peak_name;
    double peak = k3b_peak_flops(team, op->isa, &peak_name);
    k3i_vision_item item = {.pixels = pixels, .t = 1, .h = h, .w = w, .rows = rows};
    double from = k3b_now(), from_cpu = k3b_cpu();
    if (pixels == NULL || rows == NULL ||
        k3i_vision_init(&v, &c, &wt, op, team, bf16, &err) != K3_OK ||
        k3i_vision_encode(&v, &item, 1, show_progress, NULL, &err) != K3_OK) {
        fprintf(stderr, "bench_vision: %s\n", err.text);
        return 1;
    }
    double seconds = k3b_now() - from, cpu = k3b_cpu() - from_cpu;
    double after = k3b_peak_flops(team, op->isa, &peak_name);
    double best = peak > after ? peak : after, work = flop(&c, (double)n);
    printf("\rgrid %zux%zu, %zu layers, %zu threads, %s, %s: %.2f s, %.3f TFLOP, %.1f GFLOP/s\n", h,
           w, c.n_layers, threads, op->isa, bf16 ? "bf16" : "f32", seconds, work * 1e-12,
           work / seconds * 1e-9);
    printf("peak of a thread (%s) %.1f GFLOP/s before, %.1f after; processor time %.2f s: %.1f %% "
           "of peak\n",
           peak_name, peak * 1e-9, after * 1e-9, cpu, 100 * work / cpu / best);
    k3i_vision_done(&v);
    k3i_team_free(team);
    k3i_arena_done(&arena);
    k3i_free(pixels);
    k3i_free(rows);
    return 0;
}
