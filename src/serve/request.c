/* request.c: making, sharing and freeing of requests. */
#include "request.h"

#include <string.h>

k3_status k3i_request_new(const int32_t *tokens, int32_t n_prompt, k3i_request **ret, k3i_err *err)
{
    k3i_request *r = k3i_alloc_zero(sizeof *r);
    if (r == NULL)
        return k3i_fail(err, K3_E_NOMEM, "request: out of memory");
    r->prompt = k3i_alloc_array((size_t)n_prompt + 1, sizeof *r->prompt);
    if (r->prompt == NULL) {
        k3i_free(r);
        return k3i_fail(err, K3_E_NOMEM, "request of %d tokens: out of memory", n_prompt);
    }
    memcpy(r->prompt, tokens, (size_t)n_prompt * sizeof *tokens);
    r->n_prompt = r->n_tokens = n_prompt;
    r->sampling = k3i_sampling_default();
    r->max_tokens = 16;
    r->n_choices = 1;
    r->logprobs = r->prompt_logprobs = -1;
    r->slot = r->hit_snap = -1;
    atomic_init(&r->n_refs, 1);
    atomic_init(&r->is_cancelled, false);
    pthread_mutex_init(&r->lock, NULL);
    *ret = r;
    return K3_OK;
}

void k3i_request_ref(k3i_request *r)
{
    atomic_fetch_add(&r->n_refs, 1);
}

void k3i_request_unref(k3i_request *r)
{
    if (r == NULL || atomic_fetch_sub(&r->n_refs, 1) != 1)
        return;
    k3i_request_unref(r->leader);
    if (r->constraint.self != NULL && r->constraint.free != NULL)
        r->constraint.free(r->constraint.self);
    if (r->free_keep != NULL)
        r->free_keep(r->keep);
    for (int32_t i = 0; i < r->n_media; i++) {
        if (!r->media[i].is_borrowed)
            k3i_free((void *)(uintptr_t)r->media[i].pixels);
    }
    k3i_sampler_free(r->sampler);
    k3i_free(r->media);
    k3i_free(r->prompt);
    k3i_free(r->tokens);
    k3i_free(r->salt);
    k3i_free(r->ready);
    k3i_free(r->lp);
    k3i_free(r->prompt_lp);
    k3i_free(r->wide);
    k3i_free(r->table);
    pthread_mutex_destroy(&r->lock);
    k3i_free(r);
}

void k3i_request_cancel(k3i_request *r)
{
    atomic_store(&r->is_cancelled, true);
}
