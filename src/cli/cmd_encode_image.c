/* cmd_encode_image.c: what a picture becomes: its size and patches, and the rows that the text
 * model reads in its place. */
#include "args.h"
#include "pictures.h"
#include "progress.h"
#include "report.h"
#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* float32, little-endian as it lies in memory. "-" is standard output. */
static k3_status write_floats(const char *path, const float *x, size_t n, k3i_err *err)
{
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *f = to_stdout ? stdout : fopen(path, "wb");
    bool ok = f != NULL && fwrite(x, sizeof *x, n, f) == n;
    if (f != NULL && (to_stdout ? fflush(f) : fclose(f)) != 0)
        ok = false;
    return ok ? K3_OK : k3i_fail(err, K3_E_IO, "%s: cannot be written: %s", path, strerror(errno));
}

static k3_status print_info(const k3i_args *args, const k3i_patches *p, k3i_err *err)
{
    const k3i_image_plan *plan = &p->plan;
    k3i_table t;
    k3i_table_open(&t, k3i_arg_given(args, "json"));
    k3i_table_count(&t, "width", "width, pixels", plan->w);
    k3i_table_count(&t, "height", "height, pixels", plan->h);
    k3i_table_count(&t, "resized_width", "resized to, width", plan->new_w);
    k3i_table_count(&t, "resized_height", "resized to, height", plan->new_h);
    k3i_table_count(&t, "grid_width", "patches across", plan->grid_w);
    k3i_table_count(&t, "grid_height", "patches down", plan->grid_h);
    k3i_table_count(&t, "patches", "patches", p->n_patches);
    k3i_table_count(&t, "tokens", "rows of the text model", plan->n_tokens);
    return k3i_table_close(&t, err);
}

static k3_status encode(const k3i_args *args, const k3i_patches *p, k3i_err *err)
{
    k3_engine *e = NULL;
    k3_info info = {.size = sizeof info};
    const k3_image image = {.key = 1,
                            .pixels = p->pixels,
                            .n_patches = (int32_t)p->n_patches,
                            .grid_t = 1,
                            .grid_h = (int32_t)p->plan.grid_h,
                            .grid_w = (int32_t)p->plan.grid_w};
    int32_t n = (int32_t)p->plan.n_tokens;
    k3_status st = k3i_engine_open(args, 1, 1, NULL, &e, err);
    if (st != K3_OK)
        return st;
    float *rows = NULL;
    if ((st = k3_query(e, &info)) != K3_OK || (st = k3_encode_image(e, 1, &image)) != K3_OK) {
        k3i_fail(err, st, "%s", k3_last_error(e));
        goto out;
    }
    rows = k3i_alloc_array((size_t)n, (size_t)info.hidden_size * sizeof *rows);
    if (rows == NULL)
        st = k3i_fail(err, K3_E_NOMEM, "no memory for %d rows", (int)n);
    else if ((st = k3_image_rows(e, 1, rows, n, &n)) != K3_OK)
        k3i_fail(err, st, "%s", k3_last_error(e));
    k3i_progress_clear();
    if (st == K3_OK)
        st = write_floats(k3i_arg_text(args, "output"), rows, (size_t)n * (size_t)info.hidden_size,
                          err);
out:
    k3i_progress_clear();
    k3i_free(rows);
    k3_close(e);
    return st;
}

static k3_status check_options(const k3i_args *args, k3i_err *err)
{
    const char *output = k3i_arg_text(args, "output"), *patches = k3i_arg_text(args, "patches");
    bool info = k3i_arg_given(args, "info");
    if (args->operand == NULL)
        return k3i_fail(err, K3_E_OPTION, "the picture FILE is missing");
    if (output == NULL && patches == NULL && !info)
        return k3i_fail(err, K3_E_OPTION, "nothing to do: give --output, --patches or --info");
    if (k3i_arg_given(args, "json") && !info)
        return k3i_fail(err, K3_E_OPTION, "--json has no effect without --info");
    int to_stdout = info + (output != NULL && strcmp(output, "-") == 0) +
                    (patches != NULL && strcmp(patches, "-") == 0);
    if (to_stdout > 1)
        return k3i_fail(err, K3_E_OPTION, "only one thing can go to standard output");
    return K3_OK;
}

int k3i_cmd_encode_image(const k3i_args *args)
{
    k3i_err err;
    k3i_image_settings settings;
    k3i_patches p = {0};
    uint8_t digest[K3I_IMAGE_KEY_BYTES];
    const char *patches = k3i_arg_text(args, "patches");
    k3_status st = check_options(args, &err);
    if (st == K3_OK)
        st = k3i_picture_settings(args, &settings, &err);
    if (st == K3_OK)
        st = k3i_picture_read(args->operand, &settings, &p, digest, &err);
    if (st == K3_OK && k3i_arg_given(args, "info"))
        st = print_info(args, &p, &err);
    if (st == K3_OK && patches != NULL)
        st = write_floats(patches, p.pixels, p.n_patches * p.patch_floats, &err);
    if (st == K3_OK && k3i_arg_given(args, "output"))
        st = encode(args, &p, &err);
    k3i_patches_done(&p);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
