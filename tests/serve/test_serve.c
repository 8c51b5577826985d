/* The engine thread under concurrent clients, on the double of the engine. */
#include "fake_engine.h"
#include "serve.h"
#include "test.h"

enum { CLIENTS = 16, PER_CLIENT = 20 };

static const fake_config CONFIG = {.vocab = 60,
                                   .max_num_seqs = 4,
                                   .max_num_batched_tokens = 64,
                                   .max_model_len = 200,
                                   .snapshot_blocks = 2,
                                   .draft_tokens = 4,
                                   .draft_mode = DRAFT_MIXED,
                                   .poison = -1,
                                   .image_budget = 4};

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    k3i_serve *serve;
    uint64_t seed;
    int32_t n_done, n_busy, n_wrong;
} client;

static void wake(void *user)
{
    client *c = user;
    pthread_mutex_lock(&c->lock);
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->lock);
}

static k3i_request *new_request(client *c, int32_t i)
{
    int32_t prompt[30];
    for (int32_t t = 0; t < 30; t++)
        prompt[t] = 1 + (t * (i + 3)) % 50;
    k3i_request *r;
    assert_int_equal(k3i_request_new(prompt, 30, &r, NULL), K3_OK);
    r->max_tokens = 20;
    r->sampling.seed = (uint64_t)i;
    r->notify = wake;
    r->user = c;
    return r;
}

static k3i_finish wait_for(client *c, k3i_request *r)
{
    k3i_finish finish = K3_FINISH_NONE;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        pthread_mutex_lock(&r->lock);
        finish = r->finish;
        pthread_mutex_unlock(&r->lock);
        if (finish != K3_FINISH_NONE)
            break;
        pthread_cond_wait(&c->cond, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return finish;
}

static void *run_client(void *arg)
{
    client *c = arg;
    for (int32_t i = 0; i < PER_CLIENT; i++) {
        k3i_request *r = new_request(c, i);
        k3_status status = k3i_serve_submit(c->serve, r, NULL);
        if (status != K3_OK) {
            c->n_busy += status == K3_E_BUSY;
            k3i_request_unref(r);
            continue;
        }
        bool cancel = test_rnd(&c->seed) % 5 == 0;
        if (cancel)
            k3i_request_cancel(r);
        k3i_finish finish = wait_for(c, r);
        c->n_wrong += finish == K3_FINISH_ERROR || (finish == K3_FINISH_ABORT && !cancel);
        c->n_done++;
        k3i_request_unref(r);
    }
    return NULL;
}

static k3i_serve *new_serve(k3_engine *e, int32_t max_waiting)
{
    k3i_sched_config config = {
        .engine = e, .num_blocks = 80, .block_tokens = 8, .speculative_tokens = 4};
    k3i_serve *s;
    assert_int_equal(k3i_serve_new(&config, max_waiting, &s, NULL), K3_OK);
    return s;
}

static void init_client(client *c, k3i_serve *s, uint64_t seed)
{
    *c = (client){.serve = s, .seed = seed};
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->cond, NULL);
}

static void many_clients(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&CONFIG);
    k3i_serve *s = new_serve(e, 100);
    client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    for (int32_t i = 0; i < CLIENTS; i++) {
        init_client(&clients[i], s, (uint64_t)i);
        pthread_create(&threads[i], NULL, run_client, &clients[i]);
    }
    for (int32_t i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(clients[i].n_done, PER_CLIENT);
        assert_int_equal(clients[i].n_wrong, 0);
    }
    assert_string_equal(fake_violation(e), "");
    k3i_serve_free(s);
    fake_free(e);
}

static void full_queue_is_refused(void **state)
{
    (void)state;
    fake_config slow = CONFIG;
    slow.step_ns = 2000000;
    slow.max_num_seqs = 1;
    k3_engine *e = fake_new(&slow);
    k3i_serve *s = new_serve(e, 3);
    client c;
    init_client(&c, s, 1);
    k3i_request *r[12];
    int32_t n_busy = 0;
    k3i_err err = {0};
    for (int32_t i = 0; i < 12; i++) {
        r[i] = new_request(&c, i);
        r[i]->max_tokens = 150;
        k3_status status = k3i_serve_submit(s, r[i], &err);
        assert_true(status == K3_OK || status == K3_E_BUSY);
        n_busy += status == K3_E_BUSY;
    }
    assert_true(n_busy >= 7);
    k3i_serve_drain(s, 1); /* cut at once */
    assert_int_equal(k3i_serve_submit(s, r[0], &err), K3_E_STATE);
    for (int32_t i = 0; i < 12; i++) {
        assert_true(r[i]->finish == K3_FINISH_ABORT || r[i]->submit_ns == 0 || r[i]->n_refs == 1);
        k3i_request_unref(r[i]);
    }
    k3i_serve_free(s);
    fake_free(e);
}

static void first_step_is_counted(void **state)
{
    (void)state;
    fake_config slow = CONFIG;
    slow.step_ns = 500000000;
    slow.max_num_seqs = 1;
    k3_engine *e = fake_new(&slow);
    k3i_serve *s = new_serve(e, 3);
    k3i_stats stats = {0};
    client c;
    init_client(&c, s, 1);
    k3i_request *r[4];
    int64_t start = k3i_now_ns();
    for (int32_t i = 0; i < 4; i++) {
        r[i] = new_request(&c, i);
        assert_int_equal(k3i_serve_submit(s, r[i], NULL), K3_OK);
        while (stats.running == 0 && k3i_now_ns() < start + slow.step_ns / 2) {
            struct timespec short_while = {.tv_nsec = 1000000};
            nanosleep(&short_while, NULL);
            k3i_serve_stats(s, &stats);
        }
    }
    k3i_serve_stats(s, &stats);
    assert_int_equal(stats.running, 1);
    assert_int_equal(stats.waiting, 3);
    assert_int_equal(stats.steps, 0);
    k3i_serve_drain(s, 1);
    for (int32_t i = 0; i < 4; i++)
        k3i_request_unref(r[i]);
    k3i_serve_free(s);
    fake_free(e);
}

static void drain_lets_requests_finish(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&CONFIG);
    k3i_serve *s = new_serve(e, 50);
    client c;
    init_client(&c, s, 1);
    k3i_request *r[10];
    for (int32_t i = 0; i < 10; i++) {
        r[i] = new_request(&c, i);
        assert_int_equal(k3i_serve_submit(s, r[i], NULL), K3_OK);
    }
    k3i_serve_drain(s, 60000000000);
    for (int32_t i = 0; i < 10; i++) {
        assert_true(r[i]->finish == K3_FINISH_LENGTH || r[i]->finish == K3_FINISH_STOP);
        k3i_request_unref(r[i]);
    }
    k3i_serve_free(s);
    fake_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_clients),
        cmocka_unit_test(full_queue_is_refused),
        cmocka_unit_test(first_step_is_counted),
        cmocka_unit_test(drain_lets_requests_finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
