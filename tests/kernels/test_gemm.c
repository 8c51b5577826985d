/* Matrix products: every instruction set against ref/ on ragged shapes with weights at odd
 * addresses, and the promise that the bits of an output depend on its own row and weights only. */
#include "fixture.h"

#include <math.h>

typedef enum { BF16, F32, WF32, MXFP4_BF16, MXFP4_F32, T_F32, N_KINDS } gemm_kind;
static const char *const kind_names[] = {"bf16", "f32", "wf32", "mxfp4_bf16", "mxfp4_f32", "t_f32"};

typedef struct {
    gemm_kind kind;
    size_t n_row, n_out, k, x_stride, y_stride;
    float *x;
    k3i_bf16 *xh;
    uint8_t *w; /* weights of any kind, at an odd address */
    uint8_t *scale;
} product;

/* Scales lie in scale_from..scale_to. */
static product product_new(fx *f, gemm_kind kind, size_t n_row, size_t n_out, size_t k,
                           uint8_t scale_from, uint8_t scale_to)
{
    product p = {.kind = kind, .n_row = n_row, .n_out = n_out, .k = k};
    p.x_stride = k + test_rnd(&f->seed) % 3;
    p.y_stride = n_out + test_rnd(&f->seed) % 3;
    p.x = fx_floats(f, n_row * p.x_stride, 1.0f);
    p.xh = fx_new(f, n_row * p.x_stride, 2, test_rnd(&f->seed) % 4);
    for (size_t i = 0; i < n_row * p.x_stride; i++)
        p.xh[i] = k3i_to_bf16(p.x[i]);
    if (kind == MXFP4_BF16 || kind == MXFP4_F32) {
        p.w = fx_bytes(f, n_out * k / 2, 0, 255);
        p.scale = fx_bytes(f, n_out * k / 32, scale_from, scale_to);
        return p;
    }
    size_t size = kind == WF32 ? 4 : 2;
    p.w = fx_new(f, n_out * k * size + 1, 1, 0);
    p.w++;
    for (size_t i = 0; i < n_out * k; i++) {
        float v = test_rnd_float(&f->seed);
        k3i_bf16 h = k3i_to_bf16(v);
        memcpy(p.w + i * size, size == 4 ? (const void *)&v : (const void *)&h, size);
    }
    return p;
}

/* Rows r0..r0+n_row-1 and outputs o0..o0+n_out-1 of p into the full y. */
static void run(const k3i_ops *ops, const product *p, float *y, size_t r0, size_t n_row, size_t o0,
                size_t n_out)
{
    const float *x = p->x + r0 * p->x_stride;
    const k3i_bf16 *xh = p->xh + r0 * p->x_stride;
    float *out = y + r0 * p->y_stride + o0;
    const void *w = p->w + o0 * p->k * (p->kind == WF32 ? 4 : 2);
    const uint8_t *packed = p->w + o0 * p->k / 2,
                  *scale = p->scale ? p->scale + o0 * p->k / 32 : NULL;
    switch (p->kind) {
    case BF16:
        ops->gemm_bf16(out, p->y_stride, xh, p->x_stride, w, n_row, n_out, p->k);
        break;
    case F32:
        ops->gemm_f32(out, p->y_stride, x, p->x_stride, w, n_row, n_out, p->k);
        break;
    case WF32:
        ops->gemm_wf32(out, p->y_stride, x, p->x_stride, w, n_row, n_out, p->k);
        break;
    case MXFP4_BF16:
        ops->gemm_mxfp4_bf16(out, p->y_stride, xh, p->x_stride, packed, scale, n_row, n_out, p->k);
        break;
    case MXFP4_F32:
        ops->gemm_mxfp4_f32(out, p->y_stride, x, p->x_stride, packed, scale, n_row, n_out, p->k);
        break;
    default: /* all columns: they cannot be split, the weight rows are n_out apart */
        ops->gemm_t_f32(out, p->y_stride, x, p->x_stride, w, n_row, n_out, p->k);
        break;
    }
}

static void run_t(const k3i_ops *ops, const product *p, float *y)
{
    ops->gemm_t_f32(y, p->y_stride, p->x, p->x_stride, (const k3i_bf16 *)(const void *)p->w,
                    p->n_row, p->k, p->n_out);
}

static void run_all(const k3i_ops *ops, const product *p, float *y)
{
    if (p->kind == T_F32) {
        run_t(ops, p, y);
    } else {
        run(ops, p, y, 0, p->n_row, 0, p->n_out);
    }
}

/* The largest sum of |x| |w| over all outputs: rounding errors are relative to what was added up.
 */
static float largest_sum(fx *f, const product *p)
{
    product m = *p;
    size_t n = p->n_row * p->x_stride, size = p->kind == WF32 ? 4 : 2, packed = p->n_out * p->k / 2;
    m.x = fx_copy(f, p->x, n);
    m.xh = fx_new(f, n, sizeof *m.xh, 0);
    for (size_t i = 0; i < n; i++) {
        m.x[i] = fabsf(m.x[i]);
        m.xh[i] = p->xh[i] & 0x7fff;
    }
    size_t bytes = p->scale ? packed : p->n_out * p->k * size;
    m.w = fx_new(f, bytes, 1, 0);
    for (size_t i = 0; i < bytes; i++)
        m.w[i] = p->w[i] & (p->scale ? 0x77 : i % size == size - 1 ? 0x7f : 0xff);
    float *y = fx_floats(f, p->n_row * p->y_stride, 0), top = 0;
    run_all(REF, &m, y);
    for (size_t i = 0; i < p->n_row * p->y_stride; i++)
        top = y[i] > top ? y[i] : top;
    return top;
}

static void expect_match(const k3i_ops *ops, gemm_kind kind, size_t n_row, size_t n_out, size_t k,
                         uint8_t from, uint8_t to)
{
    fx f;
    fx_init(&f, n_row * 10007 + n_out * 101 + k);
    product p = product_new(&f, kind, n_row, n_out, k, from, to);
    size_t n = n_row * p.y_stride;
    float *y = fx_out(&f, n), *want = fx_out(&f, n), top = 0;
    run_all(ops, &p, y);
    run_all(REF, &p, want);
    for (size_t i = 0; i < n; i++)
        top = fabsf(want[i]) > top ? fabsf(want[i]) : top;
    float cancel = 0.1f * largest_sum(&f, &p) / top;
    /* the gaps between rows hold guard bytes on both sides, compared as values */
    fx_expect(y, want, n, fx_tol.gemm_bf16 * (cancel > 1 ? cancel : 1),
              "%s %s rows %zu outputs %zu k %zu scales %d..%d", kind_names[kind], ops->isa, n_row,
              n_out, k, from, to);
    for (size_t r = 0; r < n_row; r++)
        fx_same(y + r * p.y_stride + n_out, want + r * p.y_stride + n_out, (p.y_stride - n_out) * 4,
                "gap");
    fx_done(&f, kind_names[kind]);
}

static void products_match_ref(void **state)
{
    (void)state;
    static const size_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 24, 25, 49, 65, 100, 131};
    static const size_t outs[] = {1,  2,  3,  4,  5,  6,  7,  8,  9, 11,
                                  12, 13, 15, 16, 17, 18, 19, 25, 33};
    static const size_t ks[] = {1,  2,  3,  7,   8,   9,   15,  16,  17,  31,  32,   33,
                                63, 65, 96, 127, 129, 191, 220, 320, 511, 513, 1025, 1056};
    const size_t n_rows = sizeof rows / sizeof rows[0], n_outs = sizeof outs / sizeof outs[0];
    uint64_t seed = 1;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (gemm_kind kind = 0; kind < N_KINDS; kind++) {
            for (size_t i = 0; i < 2 * sizeof ks / sizeof ks[0]; i++) {
                size_t k = ks[i / 2];
                if (kind == MXFP4_BF16 || kind == MXFP4_F32)
                    k = (k + 31) / 32 * 32;
                expect_match(ops, kind, rows[test_rnd(&seed) % n_rows],
                             outs[test_rnd(&seed) % n_outs], k, 110, 135);
            }
            for (size_t r = 0; r < n_rows; r++)
                expect_match(ops, kind, rows[r], 13, 96, 110, 135);
            for (size_t o = 0; o < n_outs; o++) {
                for (size_t r = 1; r < 8; r++) {
                    expect_match(ops, kind, r, outs[o], 32, 110, 135);
                    expect_match(ops, kind, r, outs[o], 64, 110, 135);
                }
            }
        }
}

/* Column blocks, row blocks and both at once. */
static void large_products_match_ref(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (gemm_kind kind = 0; kind < N_KINDS; kind++)
            expect_match(ops, kind, 70, 14, kind == T_F32 ? 70 : 3232, 120, 130);
}

/* Rows so long that few of them, or none, fit the buffers of a kernel. */
static void long_rows_match_ref(void **state)
{
    (void)state;
    static const size_t ks[] = {8224, 16416, 32800, 65536, 65568};
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++) {
            expect_match(ops, BF16, 6, 3, ks[i] - 1, 0, 0);
            expect_match(ops, MXFP4_BF16, 6, 3, ks[i], 120, 124);
        }
}

/* Each row alone, each block of rows, each range of outputs: the same bits as all at once. */
static void bits_do_not_depend_on_rows_or_split(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (gemm_kind kind = 0; kind < N_KINDS; kind++)
            for (uint64_t seed = 0; seed < 6; seed++) {
                fx f;
                fx_init(&f, 31 * seed + (uint64_t)kind);
                size_t n_row = seed == 3 ? 150 : 1 + test_rnd(&f.seed) % 80,
                       n_out = 5 + test_rnd(&f.seed) % 30;
                size_t k = seed == 2 ? 1120 : 32 * (1 + test_rnd(&f.seed) % 20);
                if (seed > 3) { /* single rows of large matrices may be read in another way */
                    n_row = 3;
                    n_out += 180;
                    k += 1280;
                }
                if (kind < MXFP4_BF16)
                    k -= test_rnd(&f.seed) % 31;
                int ends = seed == 1; /* scales that bf16 holds, and others */
                product p =
                    product_new(&f, kind, n_row, n_out, k, ends ? 0 : 110, ends ? 254 : 135);
                for (size_t i = 0; ends && p.scale && i < n_out / 2 * k / 32; i++)
                    p.scale[i] = (uint8_t)(110 + i % 20);
                float *all = fx_out(&f, n_row * p.y_stride),
                      *part = fx_copy(&f, all, n_row * p.y_stride);
                run_all(ops, &p, all);
                for (size_t r = 0; r < n_row; r++) {
                    product one = p;
                    one.n_row = 1;
                    one.x += r * p.x_stride;
                    one.xh += r * p.x_stride;
                    run_all(ops, &one, part + r * p.y_stride);
                }
                fx_same(part, all, n_row * p.y_stride * 4, "%s %s row by row, seed %d",
                        kind_names[kind], ops->isa, (int)seed);
                for (int round = 0; round < 8 && kind != T_F32; round++) {
                    memset(part, 0xa5, n_row * p.y_stride * 4);
                    for (size_t r = 0, nr; r < n_row; r += nr) {
                        nr = 1 + test_rnd(&f.seed) % (n_row - r);
                        for (size_t o = 0, no; o < n_out; o += no) {
                            no = 1 + test_rnd(&f.seed) % (n_out - o);
                            run(ops, &p, part, r, nr, o, no);
                        }
                    }
                    fx_same(part, all, n_row * p.y_stride * 4, "%s %s split, seed %d",
                            kind_names[kind], ops->isa, (int)seed);
                }
                fx_done(&f, "invariance");
            }
}

/* Every code under every scale, one at a time against x = 1: exact, -0 and subnormals included. In
 * f32 the smallest scale is exact; bf16 instructions flush what lies below 2^-126, so there the
 * product must still be right in sum. */
static void mxfp4_codes_and_scales_are_exact(void **state)
{
    (void)state;
    static const double value[16] = {0,    .5,  1,  1.5,  2,  3,  4,  6,
                                     -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (int e = 0; e < 255; e++)
            for (size_t c = 0; c < 32; c++) {
                uint8_t packed[16] = {0}, scale[1] = {(uint8_t)e};
                float x[32] = {0}, y[2];
                k3i_bf16 xh[32] = {0};
                unsigned code = (unsigned)(c * 7 + (size_t)e) % 16;
                packed[c / 2] = (uint8_t)(code << 4 * (c % 2));
                x[c] = 1.0f;
                xh[c] = 0x3f80;
                float want = (float)ldexp(value[code], e - 127);
                ops->gemm_mxfp4_f32(y, 1, x, 32, packed, scale, 1, 1, 32);
                ops->gemm_mxfp4_bf16(y + 1, 1, xh, 32, packed, scale, 1, 1, 32);
                for (int i = 0; i < 2; i++) {
                    if (isinf(want)) { /* 0 * inf elsewhere in the group cannot happen: the other
                                          codes are 0 */
                        assert_true(isinf(y[i]) && y[i] * want > 0);
                    } else if (y[i] != want) {
                        fail_msg("%s code %u scale %d column %zu: %g, expected %g", ops->isa, code,
                                 e, c, (double)y[i], (double)want);
                    }
                }
            }
}

/* Rows whose scales lie at one end, beside ordinary rows, in a tile. */
static void mxfp4_extreme_scales_match_ref(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (gemm_kind kind = MXFP4_BF16; kind <= MXFP4_F32; kind++)
            for (size_t n_row = 1; n_row < 12; n_row += 5) {
                expect_match(ops, kind, n_row, 7, 96, 0, 0);
                expect_match(ops, kind, n_row, 7, 96, 0, 3);
                expect_match(ops, kind, n_row, 7, 64, 246, 248);
                fx f;
                fx_init(&f, n_row);
                product p = product_new(&f, kind, n_row, 8, 64, 126, 128);
                memset(p.scale + 2 * 3, 0, 2);   /* output 3: all scales 0 */
                memset(p.scale + 2 * 5, 245, 2); /* output 5: huge */
                float *y = fx_out(&f, n_row * p.y_stride), *want = fx_out(&f, n_row * p.y_stride);
                run_all(ops, &p, y);
                run_all(REF, &p, want);
                for (size_t r = 0; r < n_row; r++) {
                    for (size_t o = 0; o < 8; o++)
                        assert_true(fabsf(y[r * p.y_stride + o] - want[r * p.y_stride + o]) <=
                                    2e-5f * fabsf(want[r * p.y_stride + o]) + (o == 3 ? 0 : 1e-5f));
                }
                fx_done(&f, "extreme");
            }
}

/* Infinity and NaN in one row reach the outputs of that row and no others; nor does a scale that
 * only f32 can hold reach the outputs beside its own. */
static void nonfinite_values_stay_in_their_row(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (gemm_kind kind = BF16; kind <= MXFP4_BF16; kind += MXFP4_BF16) {
            fx f;
            fx_init(&f, 5);
            product p = product_new(&f, kind, 9, 8, 96, 120, 130);
            float *clean = fx_out(&f, 9 * p.y_stride), *y = fx_copy(&f, clean, 9 * p.y_stride);
            run_all(ops, &p, clean);
            p.xh[4 * p.x_stride + 69] = 0x7fc0;
            p.xh[6 * p.x_stride + 1] = 0x7f80;
            if (p.scale)
                memset(p.scale + 2 * 3, 20, 3); /* output 2 */
            run_all(ops, &p, y);
            for (size_t r = 0; r < 9; r++) {
                for (size_t o = 0; o < 8; o++) {
                    float v = y[r * p.y_stride + o];
                    assert_true(r == 4              ? isnan(v)
                                : r == 6            ? !isfinite(v)
                                : p.scale && o == 2 ? v != 0 && fabsf(v) < 0x1p-90f
                                                    : v == clean[r * p.y_stride + o]);
                }
            }
            fx_done(&f, "nonfinite");
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_ref),
        cmocka_unit_test(large_products_match_ref),
        cmocka_unit_test(long_rows_match_ref),
        cmocka_unit_test(bits_do_not_depend_on_rows_or_split),
        cmocka_unit_test(mxfp4_codes_and_scales_are_exact),
        cmocka_unit_test(mxfp4_extreme_scales_match_ref),
        cmocka_unit_test(nonfinite_values_stay_in_their_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
