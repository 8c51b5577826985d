/* fixture.c: weights from a counter generator. Gains keep every term of a formula visible: a
 * missing norm, scale or rotation moves the result by far more than the tolerance. */
#include "test.h"

#include "fixture.h"

#include <math.h>

static void must(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fixture: %s\n", what);
        abort();
    }
}

static const k3i_bf16 *tensor(fixture *f, uint64_t seed, size_t n, float gain, float base)
{
    k3i_bf16 *w = k3i_arena_new(&f->arena, k3i_bf16, n);
    must(w != NULL, "memory");
    for (size_t i = 0; i < n; i++)
        w[i] = k3i_to_bf16(base + gain * test_rnd_float(&seed));
    return w;
}

static const k3i_bf16 *linear(fixture *f, uint64_t seed, size_t out, size_t in)
{
    return tensor(f, seed, out * in, (float)sqrt(3.0 / (double)in), 0);
}

static void fill_config(k3i_draft_config *c, fix_options o)
{
    *c = (k3i_draft_config){.is_mla = !o.gqa,
                            .vocab_size = FIX_VOCAB,
                            .hidden_size = 64,
                            .n_layers = o.layers,
                            .intermediate_size = 96,
                            .n_heads = 4,
                            .n_kv_heads = o.gqa ? 2 : 4,
                            .q_lora_rank = 32,
                            .kv_lora_rank = 32,
                            .qk_nope_head_dim = 16,
                            .qk_rope_head_dim = 8,
                            .v_head_dim = 16,
                            .head_dim = 16,
                            .max_position_embeddings = FIX_MAX_POS,
                            .rms_norm_eps = 1e-5f,
                            .rope_theta = 50000,
                            .rope_interleaved = !o.half_split,
                            .has_yarn = true,
                            .yarn_factor = 4,
                            .yarn_original_max = 32,
                            .yarn_beta_fast = 32,
                            .yarn_beta_slow = 1,
                            .yarn_mscale = 1,
                            .yarn_mscale_all_dim = 1,
                            .n_taps = 4,
                            .taps = {0, 2, 4, 7},
                            .has_tap_norms = o.tap_norms,
                            .causal = o.causal,
                            .mask_token_id = 95,
                            .markov_rank = 8,
                            .has_confidence = true,
                            .confidence_with_markov = true};
}

static void fill_layer(fixture *f, k3i_draft_layer *l, uint64_t seed)
{
    const k3i_draft_config *c = &f->files.config;
    size_t H = c->hidden_size, I = c->intermediate_size;
    l->input_layernorm = tensor(f, seed + 1, H, 0.25f, 1);
    l->post_attention_layernorm = tensor(f, seed + 2, H, 0.25f, 1);
    l->mlp.gate_proj = linear(f, seed + 3, I, H);
    l->mlp.up_proj = linear(f, seed + 4, I, H);
    l->mlp.down_proj = linear(f, seed + 5, H, I);
    size_t head = c->qk_nope_head_dim + c->qk_rope_head_dim;
    if (c->is_mla) {
        l->mla.q_a_proj = linear(f, seed + 6, c->q_lora_rank, H);
        l->mla.q_a_layernorm = tensor(f, seed + 7, c->q_lora_rank, 0.25f, 1);
        l->mla.q_b_proj = linear(f, seed + 8, c->n_heads * head, c->q_lora_rank);
        l->mla.kv_a_proj = linear(f, seed + 9, c->kv_lora_rank + c->qk_rope_head_dim, H);
        l->mla.kv_a_layernorm = tensor(f, seed + 10, c->kv_lora_rank, 0.25f, 1);
        l->mla.kv_b_proj = linear(f, seed + 11, c->n_heads * (c->qk_nope_head_dim + c->v_head_dim),
                                  c->kv_lora_rank);
        l->mla.o_proj = linear(f, seed + 12, H, c->n_heads * c->v_head_dim);
    } else {
        size_t D = c->head_dim;
        l->gqa.q_proj = linear(f, seed + 6, c->n_heads * D, H);
        l->gqa.k_proj = linear(f, seed + 7, c->n_kv_heads * D, H);
        l->gqa.v_proj = linear(f, seed + 8, c->n_kv_heads * D, H);
        l->gqa.o_proj = linear(f, seed + 9, H, c->n_heads * D);
        l->gqa.q_norm = tensor(f, seed + 10, D, 0.25f, 1);
        l->gqa.k_norm = tensor(f, seed + 11, D, 0.25f, 1);
    }
}

static void fill_weights(fixture *f)
{
    const k3i_draft_config *c = &f->files.config;
    k3i_draft_weights *w = &f->files.weights;
    size_t H = c->hidden_size, V = c->vocab_size, R = c->markov_rank;
    w->context_proj = linear(f, 1000, H, c->n_taps * H);
    w->context_norm = tensor(f, 1001, H, 0.25f, 1);
    for (size_t t = 0; c->has_tap_norms && t < c->n_taps; t++)
        w->tap_norm[t] = tensor(f, 1010 + t, H, 0.25f, 1);
    w->layers = k3i_arena_new(&f->arena, k3i_draft_layer, c->n_layers);
    must(w->layers != NULL, "memory");
    for (size_t l = 0; l < c->n_layers; l++)
        fill_layer(f, &w->layers[l], 2000 + 100 * l);
    w->final_norm = tensor(f, 1002, H, 0.25f, 1);
    w->markov_w1 = tensor(f, 1003, V * R, 1, 0);
    w->markov_w2 = tensor(f, 1004, V * R, 1, 0);
    w->confidence_proj = linear(f, 1005, 1, H + R);
    w->confidence_bias = tensor(f, 1006, 1, 1, 0);
    f->target.embed_tokens = tensor(f, 1007, V * H, 1, 0);
    f->target.lm_head = linear(f, 1008, V, H);
}

void fix_open(fixture *f, fix_options o)
{
    memset(f, 0, sizeof *f);
    k3i_arena_init(&f->arena, (size_t)64 << 20);
    fill_config(&f->files.config, o);
    fill_weights(f);
    const k3i_draft_config *c = &f->files.config;
    must(k3i_ops_select(o.isa, &f->run.op, NULL) == K3_OK, "isa");
    must(k3i_team_new(o.threads, NULL, 0, &f->run.team, NULL) == K3_OK, "team");
    f->run.n_members = o.threads;
    f->run.rows_pay = o.rows;
    f->run.ranks.size = 1;
    f->run.bf16 = o.bf16;
    f->run.act_bytes = o.bf16 ? 2 : 4;
    f->run.scratch_bytes = k3i_linear_scratch();
    if (k3i_dspark_scratch(c, o.max_draft) > f->run.scratch_bytes)
        f->run.scratch_bytes = k3i_dspark_scratch(c, o.max_draft);
    f->run.scratch_bytes = (f->run.scratch_bytes + 63) / 64 * 64;
    f->run.scratch = k3i_arena_alloc(&f->arena, f->run.scratch_bytes * o.threads);
    must(f->run.scratch != NULL, "memory");
    must(k3i_dspark_init(&f->d, &f->files, &f->target, &f->run, 1, o.max_draft, FIX_MAX_POS,
                         NULL) == K3_OK,
         "init");
    size_t row = f->d.row_width * f->run.act_bytes;
    /* Layer 0 of the page stands for the target's: the draft must not touch it. */
    for (size_t l = 0; l <= c->n_layers; l++)
        f->layer_offset[l] = l * FIX_BLOCK * row;
    f->pool = (k3i_pool){.page_bytes = (c->n_layers + 1) * FIX_BLOCK * row + 40,
                         .block_tokens = FIX_BLOCK,
                         .layer_offset = f->layer_offset};
    f->pool.base = k3i_arena_alloc(&f->arena, f->pool.page_bytes * FIX_PAGES);
    must(f->pool.base != NULL, "memory");
    memset(f->pool.base, 0xff, f->pool.page_bytes * FIX_PAGES); /* NaN in bf16 and f32 */
    size_t n = c->n_taps * c->hidden_size * FIX_MAX_POS;
    f->taps = k3i_arena_new(&f->arena, float, n);
    f->acts = k3i_arena_alloc(&f->arena, n * f->run.act_bytes);
    must(f->taps != NULL && f->acts != NULL, "memory");
    uint64_t seed = 77;
    for (size_t i = 0; i < n; i++)
        f->taps[i] = k3i_round_bf16(2 * test_rnd_float(&seed));
    k3i_act_store(&f->run, f->acts, f->taps, n);
}

void fix_close(fixture *f)
{
    k3i_dspark_done(&f->d);
    k3i_team_free(f->run.team);
    k3i_arena_done(&f->arena);
}

void fix_table(uint64_t seed, size_t n, unsigned char *taken, int32_t *table)
{
    for (size_t i = 0; i < (n + FIX_BLOCK - 1) / FIX_BLOCK; i++) {
        size_t b;
        do {
            b = 1 + test_rnd(&seed) % (FIX_PAGES - 1);
        } while (taken[b]);
        taken[b] = 1;
        table[i] = (int32_t)b;
    }
}

void fix_context(fixture *f, size_t from, size_t to, const int32_t *table)
{
    k3i_context_row rows[FIX_MAX_POS];
    size_t width = f->files.config.n_taps * f->files.config.hidden_size;
    for (size_t i = from; i < to; i++)
        rows[i] = (k3i_context_row){.pos = i, .block = table[i / FIX_BLOCK]};
    k3i_dspark_context(&f->d, &f->run, &f->pool, k3i_act_at(&f->run, f->acts, from * width),
                       rows + from, to - from);
}
