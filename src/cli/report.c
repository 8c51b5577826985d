/* report.c: see report.h. */
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TITLE_WIDTH 34

void k3i_table_open(k3i_table *t, bool json)
{
    *t = (k3i_table){0};
    if (!json)
        return;
    t->doc = yyjson_mut_doc_new(NULL);
    t->at = yyjson_mut_obj(t->doc);
    yyjson_mut_doc_set_root(t->doc, t->at);
    t->failed = t->at == NULL;
}

void k3i_table_begin(k3i_table *t, const char *key, const char *title)
{
    if (t->doc == NULL) {
        printf("\n%s\n", title);
        return;
    }
    yyjson_mut_val *section = yyjson_mut_obj(t->doc);
    t->failed |= !yyjson_mut_obj_add_val(t->doc, yyjson_mut_doc_get_root(t->doc), key, section);
    t->at = section;
}

void k3i_table_end(k3i_table *t)
{
    if (t->doc != NULL)
        t->at = yyjson_mut_doc_get_root(t->doc);
}

/* A key that lives on the caller's stack is copied. */
static void add(k3i_table *t, const char *key, yyjson_mut_val *value)
{
    t->failed |= !yyjson_mut_obj_add(t->at, yyjson_mut_strcpy(t->doc, key), value);
}

void k3i_table_text(k3i_table *t, const char *key, const char *title, const char *value)
{
    if (t->doc != NULL)
        add(t, key, yyjson_mut_strcpy(t->doc, value));
    else
        printf("  %-*s %s\n", TITLE_WIDTH, title, value);
}

void k3i_table_count(k3i_table *t, const char *key, const char *title, uint64_t value)
{
    if (t->doc != NULL)
        add(t, key, yyjson_mut_uint(t->doc, value));
    else
        printf("  %-*s %" PRIu64 "\n", TITLE_WIDTH, title, value);
}

void k3i_table_bytes(k3i_table *t, const char *key, const char *title, uint64_t value)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
    double x = (double)value;
    size_t unit = 0;
    if (t->doc != NULL) {
        add(t, key, yyjson_mut_uint(t->doc, value));
        return;
    }
    for (; x >= 1000.0 && unit < 5; unit++)
        x /= 1000.0;
    printf("  %-*s %.*f %s", TITLE_WIDTH, title, unit == 0 ? 0 : 2, x, units[unit]);
    if (unit > 0)
        printf("  (%" PRIu64 ")", value);
    printf("\n");
}

void k3i_table_real(k3i_table *t, const char *key, const char *title, double value,
                    const char *unit)
{
    if (t->doc != NULL)
        add(t, key, yyjson_mut_real(t->doc, value));
    else
        printf("  %-*s %.4g%s%s\n", TITLE_WIDTH, title, value, unit[0] == 0 ? "" : " ", unit);
}

void k3i_table_flag(k3i_table *t, const char *key, const char *title, bool value)
{
    if (t->doc != NULL)
        add(t, key, yyjson_mut_bool(t->doc, value));
    else
        printf("  %-*s %s\n", TITLE_WIDTH, title, value ? "yes" : "no");
}

k3_status k3i_table_close(k3i_table *t, k3i_err *err)
{
    bool failed = t->failed;
    if (t->doc != NULL) {
        char *text = failed ? NULL : yyjson_mut_write(t->doc, YYJSON_WRITE_PRETTY, NULL);
        failed |= text == NULL || puts(text) < 0;
        free(text);
        yyjson_mut_doc_free(t->doc);
    }
    if (fflush(stdout) != 0 || failed)
        return k3i_fail(err, K3_E_IO, "the output cannot be written");
    return K3_OK;
}
