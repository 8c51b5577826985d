/* Preprocessing against published vectors: sizes, resize, transparency, normalisation and whole
 * pictures. All numbers come from runs of the reference processor and of Pillow. */
#include "form.h"

#include "bf16.h"
#include "resize_pass.h"

#include <math.h>

typedef struct {
    uint32_t w, h, new_w, new_h, pad_w, pad_h, grid_h, grid_w, tokens;
} size_case;

static void size_rule_matches_the_reference(void **state)
{
    (void)state;
    static const size_case cases[] = {
        {1, 1, 1, 1, 27, 27, 2, 2, 1},
        {30, 16, 30, 16, 26, 12, 2, 4, 2},
        {100, 100, 100, 100, 12, 12, 8, 8, 16},
        {224, 224, 224, 224, 0, 0, 16, 16, 64},
        {303, 181, 303, 181, 5, 15, 14, 22, 77},
        {448, 449, 448, 449, 0, 27, 34, 32, 272},
        {512, 512, 512, 512, 20, 20, 38, 38, 361},
        {1024, 768, 1024, 768, 12, 16, 56, 74, 1036},
        {1280, 720, 1280, 720, 8, 8, 52, 92, 1196},
        {1500, 500, 1500, 500, 12, 4, 36, 108, 972},
        {1920, 1080, 1920, 1080, 12, 12, 78, 138, 2691},
        {2048, 1365, 2048, 1365, 24, 7, 98, 148, 3626},
        {2875, 1500, 2875, 1500, 9, 12, 108, 206, 5562},
        {3584, 3584, 3584, 3584, 0, 0, 256, 256, 16384},
        {3840, 2160, 3840, 2160, 24, 24, 156, 276, 10764},
        {4000, 3000, 4000, 3000, 4, 24, 216, 286, 15444},
        {4096, 4096, 3591, 3591, 21, 21, 258, 258, 16641},
        {7168, 7168, 3584, 3584, 0, 0, 256, 256, 16384},
        {7169, 14, 7168, 13, 0, 15, 2, 512, 256},
        {8000, 8000, 3586, 3586, 26, 26, 258, 258, 16641},
        {10000, 100, 7168, 71, 0, 13, 6, 512, 768},
        {100000, 13, 7167, 1, 1, 27, 2, 512, 256},
        {13, 100000, 1, 7167, 27, 1, 512, 2, 256},
        {1861, 7041, 1850, 7002, 26, 26, 502, 134, 16817},
        {1889, 7377, 1821, 7113, 27, 27, 510, 132, 16830},
        {512, 384, 512, 384, 20, 8, 28, 38, 266},
    };
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_case *c = &cases[i];
        k3i_image_plan p;
        k3i_image_plan_size(&s, c->w, c->h, &p);
        assert_int_equal(p.w, c->w);
        assert_int_equal(p.h, c->h);
        assert_int_equal(p.new_w, c->new_w);
        assert_int_equal(p.new_h, c->new_h);
        assert_int_equal(p.grid_w * 14 - p.new_w, c->pad_w);
        assert_int_equal(p.grid_h * 14 - p.new_h, c->pad_h);
        assert_int_equal(p.grid_h, c->grid_h);
        assert_int_equal(p.grid_w, c->grid_w);
        assert_int_equal(p.n_tokens, c->tokens);
        char text[64], want[64];
        snprintf(want, sizeof want, "image %ux%u", c->w, c->h);
        k3i_image_label(&p, text, sizeof text);
        assert_string_equal(text, want);
    }
    k3i_image_plan p;
    s.patch_limit = 16384; /* the budget of the predecessor: a known wrong answer for K3 */
    k3i_image_plan_size(&s, 4000, 3000, &p);
    assert_int_equal(p.n_tokens, 4200);
}

static void size_rule_holds_its_bounds(void **state)
{
    (void)state;
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    uint64_t seed = 4;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 20000; i++) {
        uint32_t w = 1 + (uint32_t)(test_rnd(&seed) % (i % 2 ? 16000 : 200));
        uint32_t h = 1 + (uint32_t)(test_rnd(&seed) % (i % 3 ? 60000 : 200));
        k3i_image_plan p;
        k3i_image_plan_size(&s, w, h, &p);
        assert_true(p.new_w >= 1 && p.new_w <= w && p.new_h >= 1 && p.new_h <= h);
        assert_true(p.grid_w <= 512 && p.grid_h <= 512 && p.grid_w % 2 == 0 && p.grid_h % 2 == 0);
        assert_true(p.grid_w * 14 - p.new_w < 28 && p.grid_h * 14 - p.new_h < 28);
        assert_true(p.n_tokens <= 16830);
    }
}

typedef struct {
    k3i_pix mode;
    uint32_t w, h, new_w, new_h, in_crc, out_crc; /* in_crc 0: not given */
    int n_first;
    uint8_t first[6];
} resize_case;

static const resize_case resize_cases[] = {
    {K3I_PIX_RGB, 64, 48, 40, 30, 0xf68d3690, 0xe4ba09bb, 6, {47, 105, 163, 109, 147, 134}},
    {K3I_PIX_RGB, 64, 48, 23, 17, 0, 0x3ad8815f, 6, {99, 122, 133, 137, 120, 137}},
    {K3I_PIX_GRAY, 64, 48, 40, 48, 0x2e3f932b, 0x68b3e151, 4, {12, 69, 130, 201}},
    {K3I_PIX_GRAY, 64, 48, 64, 31, 0, 0xbe906e62, 4, {32, 69, 114, 151}},
    {K3I_PIX_RGB, 303, 181, 151, 90, 0x408e9d8e, 0x3b0286c6, 4, {81, 125, 149, 132}},
    {K3I_PIX_RGB, 97, 13, 5, 11, 0, 0x8dcd9021, 0, {0}},
    {K3I_PIX_RGB, 31, 200, 30, 7, 0, 0x23eff685, 0, {0}},
    {K3I_PIX_RGBA, 64, 48, 40, 30, 0xcde6e4c5, 0x7c8e4e0a, 4, {44, 99, 154, 172}},
    {K3I_PIX_RGBA, 64, 48, 64, 30, 0, 0xcb36e95b, 0, {0}},
    {K3I_PIX_RGBA, 64, 48, 23, 17, 0, 0x24480126, 0, {0}},
};

static void resize_is_pillow_bit_for_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof resize_cases / sizeof *resize_cases; i++) {
        const resize_case *c = &resize_cases[i];
        k3i_picture pic = form(c->mode, c->w, c->h);
        if (c->in_crc != 0)
            assert_int_equal(picture_crc(&pic), c->in_crc);
        assert_int_equal(k3i_picture_resize(&pic, c->new_w, c->new_h, NULL), K3_OK);
        assert_int_equal(picture_crc(&pic), c->out_crc);
        assert_memory_equal(pic.data, c->first, (size_t)c->n_first);
        k3i_picture_done(&pic);
    }
}

static void expect_row(k3i_pix mode, const uint8_t *in, uint32_t w, const uint8_t *want,
                       uint32_t new_w)
{
    k3i_picture pic;
    assert_int_equal(k3i_picture_new(mode, w, 1, &pic, NULL), K3_OK);
    memcpy(pic.data, in, w * k3i_pix_bytes(mode));
    assert_int_equal(k3i_picture_resize(&pic, new_w, 1, NULL), K3_OK);
    assert_memory_equal(pic.data, want, new_w * k3i_pix_bytes(mode));
    k3i_picture_done(&pic);
}

static void resize_of_single_rows(void **state)
{
    (void)state;
    const uint8_t a[] = {0, 255, 10, 200, 30, 90, 250, 5}, a5[] = {105, 116, 102, 124, 108};
    const uint8_t a3[] = {114, 102, 122}, b[] = {0, 0, 255, 255}, b3[] = {0, 128, 255};
    expect_row(K3I_PIX_GRAY, a, 8, a5, 5);
    expect_row(K3I_PIX_GRAY, a, 8, a3, 3);
    expect_row(K3I_PIX_GRAY, b, 4, b3, 3);
    const uint8_t c[] = {255, 0, 0, 0, 0, 0, 255, 255, 0, 255, 0, 128, 9, 9, 9, 255};
    const uint8_t c3[] = {0, 0, 255, 70, 0, 88, 176, 196, 8, 54, 0, 216};
    const uint8_t c2[] = {0, 31, 242, 123, 4, 77, 43, 206};
    expect_row(K3I_PIX_RGBA, c, 4, c3, 3);
    expect_row(K3I_PIX_RGBA, c, 4, c2, 2);
    /* Palette and 1-bit pictures: nearest neighbour, upscaling too. */
    const uint8_t d[] = {1, 2, 3, 4, 5}, d3[] = {1, 3, 5}, d2[] = {2, 4};
    expect_row(K3I_PIX_PALETTE, d, 5, d3, 3);
    expect_row(K3I_PIX_BIT, d, 5, d2, 2);
}

static void passes_agree_on_every_processor(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) {
        print_message("NOT RUN: no AVX2\n");
        return;
    }
    uint64_t seed = 7;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t n = 1; n < 70; n++) {
        uint8_t in[70 * 6], out[2][70];
        int32_t q[6], acc[2][70];
        uint32_t lo = 0, taps_n = 6;
        for (size_t i = 0; i < sizeof in; i++)
            in[i] = (uint8_t)test_rnd(&seed);
        for (size_t i = 0; i < 6; i++)
            q[i] = (int32_t)(test_rnd(&seed) % (1 << 21)) - (1 << 20);
        k3i_taps taps = {&lo, &taps_n, q, 6};
        k3i_resize_plain.down(out[0], in, &taps, 0, n, acc[0]);
        k3i_resize_avx2.down(out[1], in, &taps, 0, n, acc[1]);
        assert_memory_equal(out[0], out[1], n);
        for (size_t ch = 1; ch <= 4; ch++) {
            if (ch == 2)
                continue;
            k3i_resize_plain.across(out[0], in, &taps, 1, ch);
            k3i_resize_avx2.across(out[1], in, &taps, 1, ch);
            assert_memory_equal(out[0], out[1], ch);
        }
    }
#endif
}

static void composite_matches_every_pair(void **state)
{
    (void)state;
    static uint8_t table[65536];
    const struct {
        uint8_t bg;
        uint32_t sum, crc;
    } cases[] = {{255, 12501585, 0xc7a8b861}, {180, 10044191, 0xa5d1ef19}};
    for (size_t i = 0; i < 2; i++) {
        uint32_t sum = 0;
        for (unsigned p = 0; p < 65536; p++)
            sum += table[p] = k3i_composite((uint8_t)(p & 255), (uint8_t)(p >> 8), cases[i].bg);
        assert_int_equal(sum, cases[i].sum);
        assert_int_equal(crc_of(table, sizeof table), cases[i].crc);
    }
    assert_int_equal(k3i_composite(40, 128, 255), 147);
    assert_int_equal(k3i_composite(40, 128, 180), 109);
}

static void chessboard_shows_through(void **state)
{
    (void)state;
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    k3i_picture pic;
    assert_int_equal(k3i_picture_new(K3I_PIX_RGBA, 20, 20, &pic, NULL), K3_OK);
    memset(pic.data, 0, 1600);
    for (int i = 0; i < 400; i++)
        pic.data[4 * i] = (uint8_t)i; /* colours under alpha 0 never matter */
    assert_int_equal(k3i_picture_to_rgb(&pic, &s.background, NULL), K3_OK);
    uint8_t channel[400];
    for (int i = 0; i < 400; i++) {
        channel[i] = pic.data[3 * i];
        assert_int_equal(pic.data[3 * i], pic.data[3 * i + 2]);
    }
    assert_int_equal(crc_of(channel, 400), 0x3c6412f0);
    k3i_picture_done(&pic);

    pic = form(K3I_PIX_RGBA, 64, 48);
    assert_int_equal(k3i_picture_resize(&pic, 40, 30, NULL), K3_OK);
    assert_int_equal(k3i_picture_to_rgb(&pic, &s.background, NULL), K3_OK);
    assert_int_equal(picture_crc(&pic), 0x3b694d80);
    const uint8_t first[] = {112, 149, 186, 163, 186, 196};
    assert_memory_equal(pic.data, first, 6);
    k3i_picture_done(&pic);
}

static void levels_match_the_table(void **state)
{
    (void)state;
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    s.patch = 16;
    s.merge = 1;
    k3i_picture pic;
    assert_int_equal(k3i_picture_new(K3I_PIX_GRAY, 16, 16, &pic, NULL), K3_OK);
    for (int i = 0; i < 256; i++)
        pic.data[i] = (uint8_t)i;
    k3i_patches p;
    assert_int_equal(k3i_image_from_picture(&pic, &s, &p, NULL), K3_OK);
    assert_int_equal(crc_of(p.pixels, 1024), 0xb62c8544);
    k3i_bf16 half[256];
    for (int i = 0; i < 256; i++)
        half[i] = k3i_to_bf16(p.pixels[i]);
    assert_int_equal(crc_of(half, 512), 0x8770274a);
    assert_int_equal(half[180], 0x3ED3);
    k3i_patches_done(&p);
    k3i_picture_done(&pic);
}

typedef struct {
    k3i_pix mode;
    uint32_t w, h, limit, grid_h, grid_w, f32_crc, bf16_crc;
    double sum;
    float probe; /* [patch 1][c 2][y 3][x 4] */
} whole_case;

static void whole_pictures_match(void **state)
{
    (void)state;
    static const whole_case cases[] = {
        {K3I_PIX_RGB, 303, 181, 65536, 14, 22, 0x09e756cb, 0xb0ea64be, -16721.158318, -0.4117647f},
        {K3I_PIX_RGBA, 303, 181, 65536, 14, 22, 0xfd429f38, 0xfd0c2705, 33004.176981, 0.2862746f},
        {K3I_PIX_RGB, 303, 181, 64, 8, 12, 0xb6397b0c, 0xeedd599b, -14987.990929, -0.0352941f},
        {K3I_PIX_RGBA, 303, 181, 64, 8, 12, 0x346f65ff, 0x975bd1a3, -2554.390522, 0.4588236f},
        {K3I_PIX_RGB, 30, 16, 65536, 2, 4, 0x71d4615a, 0xc4559620, -3244.862724, -0.4117647f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const whole_case *c = &cases[i];
        k3i_image_settings s;
        k3i_image_settings_default(&s);
        s.patch_limit = c->limit;
        k3i_picture pic = form(c->mode, c->w, c->h);
        k3i_patches p;
        assert_int_equal(k3i_image_from_picture(&pic, &s, &p, NULL), K3_OK);
        assert_int_equal(p.plan.grid_h, c->grid_h);
        assert_int_equal(p.plan.grid_w, c->grid_w);
        size_t n = p.n_patches * p.patch_floats;
        assert_int_equal(n, (size_t)c->grid_h * c->grid_w * 588);
        assert_int_equal(crc_of(p.pixels, n * 4), c->f32_crc);
        double sum = 0;
        k3i_bf16 *half = malloc(n * 2);
        for (size_t k = 0; k < n; k++) {
            sum += (double)p.pixels[k];
            half[k] = k3i_to_bf16(p.pixels[k]);
        }
        assert_int_equal(crc_of(half, n * 2), c->bf16_crc);
        assert_true(fabs(sum - c->sum) < 1e-5);
        assert_true(fabsf(p.pixels[588 + 2 * 196 + 3 * 14 + 4] - c->probe) < 1e-6f);
        free(half);
        k3i_patches_done(&p);
        k3i_picture_done(&pic);
    }
}

static void modes_agree_where_they_must(void **state)
{
    (void)state;
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    for (uint32_t limit = 16; limit <= 65536; limit *= 4096) {
        s.patch_limit = limit;
        k3i_picture rgb = form(K3I_PIX_RGB, 90, 70), gray = form(K3I_PIX_GRAY, 90, 70);
        k3i_picture rgba = form(K3I_PIX_RGBA, 90, 70), rep = form(K3I_PIX_RGB, 90, 70);
        for (size_t i = 0; i < 90 * 70; i++) {
            memcpy(rgba.data + 4 * i, rgb.data + 3 * i, 3);
            rgba.data[4 * i + 3] = 255;
            memset(rep.data + 3 * i, gray.data[i], 3);
        }
        k3i_picture *pics[] = {&rgb, &rgba, &gray, &rep};
        k3i_patches p[4];
        for (int i = 0; i < 4; i++)
            assert_int_equal(k3i_image_from_picture(pics[i], &s, &p[i], NULL), K3_OK);
        size_t bytes = p[0].n_patches * p[0].patch_floats * 4;
        assert_memory_equal(p[0].pixels, p[1].pixels, bytes); /* opaque RGBA equals RGB */
        assert_memory_equal(p[2].pixels, p[3].pixels, bytes); /* gray equals its replica */
        for (int i = 0; i < 4; i++) {
            k3i_patches_done(&p[i]);
            k3i_picture_done(pics[i]);
        }
    }
}

static void fill_stage_changes_pixels(void **state)
{
    (void)state;
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    s.patch_limit = 16;
    k3i_patches p[2];
    for (int i = 0; i < 2; i++) {
        s.fill_before_resize = i == 1;
        k3i_picture pic = form(K3I_PIX_RGBA, 90, 70);
        assert_int_equal(k3i_image_from_picture(&pic, &s, &p[i], NULL), K3_OK);
        k3i_picture_done(&pic);
    }
    assert_memory_not_equal(p[0].pixels, p[1].pixels, p[0].n_patches * p[0].patch_floats * 4);
    k3i_patches_done(&p[0]);
    k3i_patches_done(&p[1]);
}

static void padding_is_minus_one(void **state)
{
    (void)state;
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    k3i_picture pic = form(K3I_PIX_RGB, 30, 16);
    k3i_patches p;
    assert_int_equal(k3i_image_from_picture(&pic, &s, &p, NULL), K3_OK);
    for (uint32_t y = 0; y < 28; y++) {
        for (uint32_t x = 0; x < 56; x++) {
            size_t at = (size_t)((y / 14) * 4 + x / 14) * 588 + (y % 14) * 14 + x % 14;
            if (x >= 30 || y >= 16)
                assert_true(p.pixels[at] == -1.0f);
        }
    }
    k3i_patches_done(&p);
    k3i_picture_done(&pic);
}

/* Asymmetric 3 x 2 picture: where the sample of the top-left pixel goes, and the size. */
static void orientation_turns_pixels(void **state)
{
    (void)state;
    static const uint8_t want[9][6] = {{0},
                                       {1, 2, 3, 4, 5, 6},
                                       {3, 2, 1, 6, 5, 4},
                                       {6, 5, 4, 3, 2, 1},
                                       {4, 5, 6, 1, 2, 3},
                                       {1, 4, 2, 5, 3, 6},
                                       {4, 1, 5, 2, 6, 3},
                                       {6, 3, 5, 2, 4, 1},
                                       {3, 6, 2, 5, 1, 4}};
    for (int o = 1; o <= 8; o++) {
        k3i_picture pic;
        assert_int_equal(k3i_picture_new(K3I_PIX_GRAY, 3, 2, &pic, NULL), K3_OK);
        memcpy(pic.data, want[1], 6);
        assert_int_equal(k3i_picture_orient(&pic, o, NULL), K3_OK);
        assert_int_equal(pic.w, o >= 5 ? 2 : 3);
        assert_memory_equal(pic.data, want[o], 6);
        k3i_picture_done(&pic);
    }
}

static void exif_is_read_within_its_block(void **state)
{
    (void)state;
    uint8_t block[] = "Exif\0\0MM\0*\0\0\0\x08\0\x02\x01\x0f\0\x02\0\0\0\x01\0\0\0\0"
                      "\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
    size_t n = sizeof block - 1;
    assert_int_equal(k3i_exif_orientation(block, n), 6);
    assert_int_equal(k3i_exif_orientation(block + 6, n - 6), 6);
    for (size_t cut = 0; cut < n - 2; cut++)
        assert_int_equal(k3i_exif_orientation(block, cut), 1);
    block[10] = 0xff; /* a directory far outside */
    assert_int_equal(k3i_exif_orientation(block, n), 1);
}

static void keys_depend_on_everything(void **state)
{
    (void)state;
    k3i_image_settings s, t;
    k3i_image_settings_default(&s);
    uint8_t a[32], b[32];
    k3i_image_key((const uint8_t *)"abc", 3, &s, "model", a);
    k3i_image_key((const uint8_t *)"abc", 3, &s, "model", b);
    assert_memory_equal(a, b, 32);
    k3i_image_key((const uint8_t *)"abd", 3, &s, "model", b);
    assert_memory_not_equal(a, b, 32);
    k3i_image_key((const uint8_t *)"abc", 3, &s, "other", b);
    assert_memory_not_equal(a, b, 32);
    for (int i = 0; i < 4; i++) {
        t = s;
        if (i == 0)
            t.patch_limit = 4096;
        else if (i == 1)
            t.decode.apply_exif = false;
        else if (i == 2)
            t.decode.gray16_clip = true;
        else
            t.fill_before_resize = true;
        k3i_image_key((const uint8_t *)"abc", 3, &t, "model", b);
        assert_memory_not_equal(a, b, 32);
    }
}

static void allocation_failures_are_clean(void **state)
{
    (void)state;
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    s.patch_limit = 16;
    const k3i_pix modes[] = {K3I_PIX_RGBA, K3I_PIX_PALETTE, K3I_PIX_GRAY};
    for (size_t m = 0; m < 3; m++) {
        for (uint64_t n = 1;; n++) {
            k3i_picture pic = form(modes[m], 90, 70);
            k3i_patches p;
            k3i_err err;
            k3i_alloc_fail_at(n);
            k3_status st = k3i_image_from_picture(&pic, &s, &p, &err);
            k3i_alloc_fail_at(0);
            k3i_picture_done(&pic);
            if (st == K3_OK) {
                k3i_patches_done(&p);
                assert_true(n > 3);
                break;
            }
            assert_int_equal(st, K3_E_NOMEM);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_rule_matches_the_reference),
        cmocka_unit_test(size_rule_holds_its_bounds),
        cmocka_unit_test(resize_is_pillow_bit_for_bit),
        cmocka_unit_test(resize_of_single_rows),
        cmocka_unit_test(passes_agree_on_every_processor),
        cmocka_unit_test(composite_matches_every_pair),
        cmocka_unit_test(chessboard_shows_through),
        cmocka_unit_test(levels_match_the_table),
        cmocka_unit_test(whole_pictures_match),
        cmocka_unit_test(modes_agree_where_they_must),
        cmocka_unit_test(fill_stage_changes_pixels),
        cmocka_unit_test(padding_is_minus_one),
        cmocka_unit_test(orientation_turns_pixels),
        cmocka_unit_test(exif_is_read_within_its_block),
        cmocka_unit_test(keys_depend_on_everything),
        cmocka_unit_test(allocation_failures_are_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
