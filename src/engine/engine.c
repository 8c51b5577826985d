/* engine.c: opening and closing, questions about what was opened, messages. */
#include "engine.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Longest sequence unless asked otherwise: block tables stay small, and the model's own million
 * tokens would surprise nobody who sets it. */
#define DEFAULT_MODEL_LEN 32768

int32_t k3_abi_version(void)
{
    return K3_ABI_VERSION;
}

void k3i_log(const k3_engine *e, int32_t level, const char *format, ...)
{
    char text[K3I_ERR_TEXT];
    if (e->log == NULL)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    e->log(e->log_user, level, text);
}

static size_t available_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    return n > 0 ? (size_t)n : 1;
}

/* Bytes of the last-level cache; 0 if the system does not say. */
static size_t shared_cache(void)
{
    unsigned long kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (f == NULL)
        return 0;
    if (fscanf(f, "%luK", &kib) != 1 || kib > SIZE_MAX / 1024)
        kib = 0;
    fclose(f);
    return (size_t)kib * 1024;
}

/* Rows of a step that is mostly products; those of fewer are over before their pieces could be
 * dealt out. */
enum { LONG_STEP = 64 };

static bool rows_pay(const k3_engine *e)
{
    /* One member has nobody to share with; ranks gather outputs behind each product. */
    if (e->opt.threads == 1 || e->opt.tp_size > 1)
        return false;
    if (e->opt.split != NULL)
        return e->opt.split[0] == 'r';
    return k3i_ckpt_bytes(e->target.ckpt) <= shared_cache();
}

static k3_status open_model(k3_engine *e, k3i_err *err)
{
    k3i_options *o = &e->opt;
    k3_status st = k3i_target_open(o->model, &e->target, err);
    if (st != K3_OK)
        return st;
    k3i_config *cfg = &e->target.config;
    if (o->max_model_len == 0)
        o->max_model_len = cfg->max_position_embeddings < DEFAULT_MODEL_LEN
                               ? cfg->max_position_embeddings
                               : DEFAULT_MODEL_LEN;
    if (o->max_model_len > cfg->max_position_embeddings)
        return k3i_fail(err, K3_E_OPTION,
                        "option 'max_model_len' is %zu, the model takes at most %zu",
                        o->max_model_len, cfg->max_position_embeddings);
    if (o->latent_norm_eps > 0)
        cfg->latent_norm_eps = (float)o->latent_norm_eps;
    return k3i_draft_setup(e, err);
}

static k3_status open_run(k3_engine *e, k3i_err *err)
{
    k3i_options *o = &e->opt;
    k3i_run *run = &e->run;
    if (o->threads == 0)
        o->threads = o->n_cpus > 0 ? o->n_cpus : available_cores();
    k3_status st = k3i_ops_select(o->isa, &run->op, err);
    if (st == K3_OK)
        st = k3i_team_new(o->threads, o->cpus, o->n_cpus, &run->team, err);
    if (st != K3_OK)
        return st;
    run->n_members = o->threads;
    if (o->threads > 1 && !o->fixed_threads && o->n_cpus == 0)
        st = k3i_elastic_new(run->team, &e->elastic, err);
    if (st != K3_OK)
        return st;
    run->bf16 = o->bf16;
    run->rows_pay = rows_pay(e);
    run->ranks = (k3i_ranks){.rank = o->tp_rank, .size = o->tp_size};
    run->act_bytes = o->bf16 ? sizeof(k3i_bf16) : sizeof(float);
    if (!e->target.config.has_vision)
        return K3_OK;
    return k3i_vision_init(&e->vision, &e->target.config.vision, &e->target.vision, run->op,
                           run->team, o->bf16, err);
}

static k3_status open_step(k3_engine *e, k3i_err *err)
{
    const k3i_options *o = &e->opt;
    size_t seqs = o->max_num_seqs, rows = o->max_num_batched_tokens;
    e->seq = k3i_alloc_array(seqs, sizeof *e->seq);
    e->req = k3i_alloc_array(seqs, sizeof *e->req);
    e->accept = k3i_alloc_array(seqs, sizeof *e->accept);
    e->accept_of = k3i_alloc_array(seqs, sizeof *e->accept_of);
    e->snap = k3i_alloc_array(rows, sizeof *e->snap);
    e->media = k3i_alloc_array(rows, sizeof *e->media);
    e->row_bad = k3i_alloc_array(rows, sizeof *e->row_bad);
    if (e->seq == NULL || e->req == NULL || e->accept == NULL || e->accept_of == NULL ||
        e->snap == NULL || e->media == NULL || e->row_bad == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for a batch of %zu tokens", rows);
    k3_status st = k3i_text_init(&e->text, &e->target.config, &e->target.text, &e->run, rows,
                                 o->num_speculative_tokens, k3i_draft_scratch(e), err);
    return st == K3_OK ? k3i_draft_init(e, err) : st;
}

k3_status k3_open(const char *options, k3_log_fn log, void *log_user, k3_engine **ret, char *err,
                  size_t err_bytes)
{
    k3i_err problem = {0};
    k3_engine *e = k3i_alloc_zero(sizeof *e);
    k3_status st = K3_OK;
    if (e == NULL)
        st = k3i_fail(&problem, K3_E_NOMEM, "no memory for an engine");
    if (st == K3_OK) {
        e->log = log;
        e->log_user = log_user;
        st = k3i_options_parse(options, &e->opt, &problem);
    }
    if (st == K3_OK)
        st = open_model(e, &problem);
    if (st == K3_OK)
        st = open_run(e, &problem);
    if (st == K3_OK)
        st = open_step(e, &problem);
    if (st != K3_OK) {
        k3_close(e);
        if (err != NULL && err_bytes > 0)
            snprintf(err, err_bytes, "%s", problem.text);
        return st;
    }
    k3i_log(e, 2, "%s: %zu layers, %zu experts, kernels %s, %zu threads, mode %s", e->opt.model,
            e->target.config.n_layers, e->target.config.n_experts, e->run.op->isa, e->run.n_members,
            e->opt.bf16 ? "bf16" : "f32");
    *ret = e;
    return K3_OK;
}

void k3_close(k3_engine *e)
{
    if (e == NULL)
        return;
    k3i_kv_done(&e->kv);
    k3i_images_done(&e->images);
    k3i_draft_close(&e->draft);
    k3i_text_done(&e->text);
    k3i_vision_done(&e->vision);
    k3i_ranks_done(&e->run.ranks);
    k3i_elastic_free(e->elastic);
    k3i_team_free(e->run.team);
    k3i_target_done(&e->target);
    k3i_free(e->seq);
    k3i_free(e->req);
    k3i_free(e->accept);
    k3i_free(e->accept_of);
    k3i_free(e->snap);
    k3i_free(e->media);
    k3i_free(e->row_bad);
    k3i_options_done(&e->opt);
    k3i_free(e);
}

const char *k3_last_error(const k3_engine *e)
{
    return e != NULL ? e->err.text : "no engine";
}

void k3i_threads_before(k3_engine *e, size_t n_rows)
{
    const k3_stats_t *s = &e->stats;
    if (e->elastic == NULL)
        return;
    k3i_elastic_before(e->elastic, n_rows > LONG_STEP,
                       s->forward_ns + s->commit_ns + s->draft_ns + s->image_ns);
    size_t n = k3i_team_active(e->run.team);
    if (n != e->run.n_members)
        k3i_log(e, 3, "%zu of %zu threads work", n, k3i_team_size(e->run.team));
    e->run.n_members = n;
}

k3_status k3_query(const k3_engine *e, k3_info *ret)
{
    if (e == NULL || ret == NULL || ret->size != sizeof *ret)
        return K3_E_ARG;
    const k3i_config *c = &e->target.config;
    const k3i_options *o = &e->opt;
    bool has_draft = e->draft.is_open;
    k3_info info = {
        .size = sizeof info,
        .vocab_size = (int32_t)c->vocab_size,
        .hidden_size = (int32_t)c->hidden_size,
        .num_layers = (int32_t)c->n_layers,
        .num_kda_layers = (int32_t)c->n_kda_layers,
        .num_mla_layers = (int32_t)c->n_mla_layers,
        .num_experts = (int32_t)c->n_experts,
        .num_experts_per_token = (int32_t)c->n_experts_per_token,
        .bos_token_id = c->bos_token_id,
        .eos_token_id = c->eos_token_id,
        .pad_token_id = c->pad_token_id,
        .media_token_id = c->media_token_id,
        .max_model_len = (int32_t)o->max_model_len,
        .max_num_seqs = (int32_t)o->max_num_seqs,
        .max_num_batched_tokens = (int32_t)o->max_num_batched_tokens,
        .has_vision = c->has_vision,
        .image_patch_size = c->has_vision ? (int32_t)c->vision.patch_size : 0,
        .image_merge_size = c->has_vision ? (int32_t)c->vision.merge_size : 0,
        .draft_layers = (int32_t)k3i_draft_layers(e),
        .draft_tokens = has_draft ? (int32_t)o->num_speculative_tokens : 0,
        .draft_mask_id = has_draft ? e->draft.files.config.mask_token_id : -1,
        .threads = (int32_t)k3i_team_size(e->run.team),
        .tp_rank = (int32_t)o->tp_rank,
        .tp_size = (int32_t)o->tp_size,
        .weight_bytes = (int64_t)(k3i_ckpt_bytes(e->target.ckpt) +
                                  (has_draft ? k3i_ckpt_bytes(e->draft.files.ckpt) : 0)),
        .latent_bytes_per_token =
            (int64_t)(c->n_mla_layers * k3i_latent_width(c) * e->run.act_bytes +
                      k3i_draft_layers(e) * k3i_draft_row_bytes(e)),
        .state_bytes = (int64_t)e->text.kda.state_bytes,
        .record_bytes = (int64_t)e->text.kda.slot_record_bytes,
        .workspace_bytes = (int64_t)(e->text.workspace_bytes + e->draft.model.workspace_bytes +
                                     e->draft.taps_bytes),
    };
    snprintf(info.isa, sizeof info.isa, "%s", e->run.op->isa);
    snprintf(info.mode, sizeof info.mode, "%s", e->opt.bf16 ? "bf16" : "f32");
    *ret = info;
    return K3_OK;
}

k3_status k3_stats(const k3_engine *e, k3_stats_t *ret)
{
    if (e == NULL || ret == NULL || ret->size != sizeof *ret)
        return K3_E_ARG;
    *ret = e->stats;
    ret->size = sizeof *ret;
    ret->slots_used = 0;
    for (size_t i = 0; i < e->kv.shape.n_slots; i++)
        ret->slots_used += e->kv.slot[i].used;
    ret->image_bytes = (int64_t)e->images.bytes;
    ret->threads_active = (int64_t)k3i_team_active(e->run.team);
    ret->weight_bytes_read = (int64_t)e->run.weight_bytes;
    return K3_OK;
}

k3_status k3_set_collective(k3_engine *e, k3_all_gather_fn fn, void *user)
{
    if (e == NULL)
        return K3_E_ARG;
    if (e->run.ranks.size == 1)
        return k3i_fail(&e->err, K3_E_UNSUPPORTED,
                        "this engine is one rank of one: it gathers nothing");
    if (fn == NULL)
        return k3i_fail(&e->err, K3_E_ARG, "the collective is NULL");
    e->run.ranks.fn = fn;
    e->run.ranks.user = user;
    return K3_OK;
}

k3_status k3i_ranks_check(k3_engine *e)
{
    if (!e->run.ranks.failed)
        return K3_OK;
    return k3i_fail(&e->err, K3_E_FATAL, "an exchange between ranks has failed: close the engine");
}
