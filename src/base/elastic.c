/* elastic.c: the rule, and the kernel's account of waiting (/proc/thread-self/schedstat). */
#include "elastic.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Work between two looks: a few slices of Linux's scheduler (3 ms). */
#define WINDOW INT64_C(20000000)

/* A look takes a hundredth of this time at most. Less before a step of the other kind counts as of
 * that kind. */
#define LEAST_WINDOW INT64_C(1000000)

/* All are tried again after this much work; twice as much after each time that was in vain, so that
 * trials take less than a hundredth of the time. */
#define LEAST_HOLD INT64_C(200000000)
#define MOST_HOLD INT64_C(3200000000)

/* What a member less must promise to win. */
static const double MARGIN = 0.9;

typedef struct {
    long thread;    /* whose account it is */
    int64_t waited; /* ns since that thread began */
    int64_t lately; /* since the look before */
    bool is_known;  /* it was the same thread then, and the kernel tells */
} account;

/* Steps of one kind, since its rule was last asked. */
typedef struct {
    k3i_elastic_rule rule;
    int64_t busy, waited, slept;
} tally;

struct k3i_elastic {
    k3i_team *team;
    tally kind[2];     /* steps that are short, long */
    bool was_long;     /* the last step */
    int64_t looked_at; /* busy time of the last look */
    int64_t slept_at;  /* member 0's sleep then */
    account member[];
};

void k3i_elastic_rule_init(k3i_elastic_rule *rule, size_t size)
{
    *rule = (k3i_elastic_rule){.size = size, .active = size, .hold = LEAST_HOLD};
}

size_t k3i_elastic_rule_saw(k3i_elastic_rule *r, int64_t busy, int64_t waited, int64_t slept)
{
    if (busy <= 0)
        return r->active;
    /* While one waits for a processor, the others sleep at the end of the step, unless they have
     * its pieces to do. Each has been late as often as member 0, whose sleep is all that is seen.
     */
    double n = (double)r->active, late = r->active > 1 ? (double)slept * n / (n - 1) : 0;
    double lost = (late < (double)waited ? late : (double)waited) / (double)busy;
    bool is_crowded = r->active > 1 && 1 - lost < MARGIN * (n - 1) / n;
    if (is_crowded && r->fallback > 0) {
        r->active = r->fallback;
        r->hold = r->hold < MOST_HOLD ? 2 * r->hold : MOST_HOLD;
    } else if (is_crowded) {
        size_t waiting = (size_t)((double)waited / (double)busy + 0.5); /* on average */
        waiting = waiting < 1 ? 1 : waiting;
        r->active = r->active > waiting ? r->active - waiting : 1;
    } else if (r->fallback > 0) {
        r->hold = LEAST_HOLD; /* the trial went well */
    }
    r->held = is_crowded || r->fallback > 0 ? 0 : r->held + busy;
    r->fallback = 0;
    if (r->active < r->size && r->held >= r->hold) {
        r->fallback = r->active;
        r->active = r->size;
    }
    return r->active;
}

k3_status k3i_elastic_new(k3i_team *team, k3i_elastic **ret, k3i_err *err)
{
    size_t n = k3i_team_size(team);
    k3i_elastic *e = k3i_alloc_zero(sizeof *e + n * sizeof *e->member); /* n <= 4096 */
    if (e == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the accounts of %zu threads", n);
    e->team = team;
    k3i_elastic_rule_init(&e->kind[0].rule, n);
    k3i_elastic_rule_init(&e->kind[1].rule, n);
    *ret = e;
    return K3_OK;
}

void k3i_elastic_free(k3i_elastic *elastic)
{
    k3i_free(elastic);
}

/* The file says: time on a processor, time waiting for one, turns. */
static int64_t waited_for_processor(void)
{
    char text[96], *end;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *second = strchr(text, ' ');
    long long ns = second != NULL ? strtoll(second, &end, 10) : -1;
    return second != NULL && *end == ' ' && ns >= 0 ? ns : -1;
}

static void look(void *arg, size_t i, size_t n)
{
    k3i_elastic *e = arg;
    account *a = &e->member[i], old = *a;
    (void)n;
    a->thread = syscall(SYS_gettid);
    a->waited = waited_for_processor();
    a->is_known = a->thread == old.thread && a->waited >= old.waited && old.waited >= 0;
    a->lately = a->is_known ? a->waited - old.waited : 0;
}

/* Adds what has happened since the last look; false if somebody's account is not known. */
static bool add_window(k3i_elastic *e, tally *t, int64_t busy)
{
    int64_t slept = k3i_team_slept(e->team), waited = 0;
    bool is_known = true;
    k3i_team_run(e->team, look, e);
    for (size_t i = 0; i < k3i_team_active(e->team); i++) {
        waited += e->member[i].lately;
        is_known = is_known && e->member[i].is_known;
    }
    if (is_known) {
        t->busy += busy - e->looked_at;
        t->waited += waited;
        t->slept += slept - e->slept_at;
    }
    e->looked_at = busy;
    e->slept_at = k3i_team_slept(e->team);
    return is_known;
}

void k3i_elastic_before(k3i_elastic *e, bool is_long, int64_t busy)
{
    tally *t = &e->kind[e->was_long];
    if (busy - e->looked_at >= (is_long == e->was_long ? WINDOW : LEAST_WINDOW) &&
        add_window(e, t, busy) && t->busy >= WINDOW) {
        k3i_elastic_rule_saw(&t->rule, t->busy, t->waited, t->slept);
        t->busy = t->waited = t->slept = 0;
    }
    e->was_long = is_long;
    k3i_team_set_active(e->team, e->kind[is_long].rule.active);
}
