/* Decoding: every kind of file in tests/data/image against what Pillow makes of it (make_files.py),
 * and files that must be refused. */
#include "form.h"

#include "map.h"

#define DIR_IMAGE K3_TEST_DATA "/image/"
#define MAX_FILE (1u << 20)

static uint8_t *load(const char *name, size_t *n)
{
    char path[4096];
    char *data;
    k3i_err err;
    snprintf(path, sizeof path, "%s%s", DIR_IMAGE, name);
    if (k3i_read_file(path, MAX_FILE, &data, n, &err) != K3_OK)
        fail_msg("%s", err.text);
    return (uint8_t *)data;
}

static void check_line(const char *line)
{
    char name[64];
    int exif;
    unsigned budget, w, h, new_w, new_h, crc;
    assert_int_equal(sscanf(line, "%63s %d %u %u %u %u %u %x", name, &exif, &budget, &w, &h, &new_w,
                            &new_h, &crc),
                     8);
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    s.patch_limit = budget;
    s.decode.apply_exif = exif != 0;
    s.decode.gray16_clip = strstr(name, "-clip") != NULL;
    size_t n;
    uint8_t *data = load(name, &n);
    k3i_picture pic;
    k3i_err err;
    if (k3i_decode(data, n, &s.decode, &pic, &err) != K3_OK)
        fail_msg("%s: %s", name, err.text);
    k3i_image_plan p;
    k3i_image_plan_size(&s, pic.w, pic.h, &p);
    if (p.w != w || p.h != h || p.new_w != new_w || p.new_h != new_h)
        fail_msg("%s: %u x %u to %u x %u", name, p.w, p.h, p.new_w, p.new_h);
    assert_int_equal(k3i_picture_resize(&pic, new_w, new_h, &err), K3_OK);
    assert_int_equal(k3i_picture_to_rgb(&pic, &s.background, &err), K3_OK);
    if (picture_crc(&pic) != crc)
        fail_msg("%s, budget %u: CRC %08x, Pillow has %08x", name, budget, picture_crc(&pic), crc);
    k3i_picture_done(&pic);
    k3i_free(data);
}

static void every_file_equals_pillow(void **state)
{
    (void)state;
    FILE *f = fopen(DIR_IMAGE "expect.txt", "r");
    assert_non_null(f);
    char line[256];
    int n = 0;
    for (; fgets(line, sizeof line, f) != NULL; n++)
        check_line(line);
    fclose(f);
    assert_in_range(n, 150, 1000);
}

static const char *const one_of_each[] = {
    "rgb8.png",      "pal4-alpha.png",   "rgba16-adam7.png",
    "gray1.png",     "rgb420.jpg",       "progressive.jpg",
    "cmyk.jpg",      "lossy.webp",       "lossless-alpha.webp",
    "animated.webp", "palette.gif",      "interlaced.gif",
    "gray.jpg",      "lossy-alpha.webp", "transparent.gif"};
#define N_EACH (sizeof one_of_each / sizeof *one_of_each)

static k3_status try_decode(const uint8_t *data, size_t n, k3i_err *err)
{
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    s.decode.max_pixels = 1 << 22;
    k3i_patches p;
    k3_status st = k3i_image_prepare(data, n, &s, &p, err);
    if (st == K3_OK)
        k3i_patches_done(&p);
    return st;
}

static void truncated_files_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_EACH; i++) {
        size_t n;
        uint8_t *data = load(one_of_each[i], &n);
        k3i_err err;
        assert_int_equal(try_decode(data, n, &err), K3_OK); /* the control */
        bool is_png = strstr(one_of_each[i], ".png") != NULL;
        bool is_gif = strstr(one_of_each[i], ".gif") != NULL;
        /* Behind the pixels a PNG has 12 bytes and a GIF has 1 that carry nothing. */
        size_t end = n - (is_png ? 12 : is_gif ? 1 : 0);
        for (size_t cut = 0; cut < end; cut += cut < 64 || cut + 64 > end ? 1 : 17) {
            uint8_t *part = malloc(cut + 1); /* its own block, so that a sanitizer sees overruns */
            memcpy(part, data, cut);
            err = (k3i_err){0};
            k3_status st = try_decode(part, cut, &err);
            if (st == K3_OK)
                fail_msg("%s cut at %zu of %zu was accepted", one_of_each[i], cut, n);
            assert_true(st == K3_E_FORMAT || st == K3_E_UNSUPPORTED);
            assert_int_equal(err.code, st);
            free(part);
        }
        k3i_free(data);
    }
}

static void corrupt_files_do_no_harm(void **state)
{
    (void)state;
    uint64_t seed = 11;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < N_EACH; i++) {
        size_t n;
        uint8_t *data = load(one_of_each[i], &n);
        for (int trial = 0; trial < 300; trial++) {
            uint8_t *bad = malloc(n);
            memcpy(bad, data, n);
            for (int k = 0; k <= trial % 4; k++)
                bad[test_rnd(&seed) % n] ^= (uint8_t)(1 + test_rnd(&seed) % 255);
            k3i_err err = {0};
            k3_status st = try_decode(bad, n, &err);
            assert_true(st == K3_OK || (st < 0 && st > K3_E_FATAL && err.text[0] != '\0'));
            free(bad);
        }
        k3i_free(data);
    }
}

static void expect_refusal(const void *bytes, size_t n, k3_status want, const char *part)
{
    k3i_err err = {0};
    assert_int_equal(try_decode(bytes, n, &err), want);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, part);
}

#define REFUSE(text, want, part) expect_refusal(text, sizeof(text) - 1, want, part)

static void foreign_bytes_are_named(void **state)
{
    (void)state;
    REFUSE("", K3_E_FORMAT, "empty");
    REFUSE("hello, world", K3_E_FORMAT, "no picture");
    REFUSE("BM\x36\x00\x00\x00", K3_E_UNSUPPORTED, "BMP");
    REFUSE("II*\0\x08\0\0\0", K3_E_UNSUPPORTED, "TIFF");
    REFUSE("\0\0\0\x20"
           "ftypavif\0\0",
           K3_E_UNSUPPORTED, "AVIF");
    REFUSE("\0\0\0\x20"
           "ftypisom\0\0",
           K3_E_UNSUPPORTED, "video");
    REFUSE("\x1a\x45\xdf\xa3\x01", K3_E_UNSUPPORTED, "video");
    REFUSE("RIFF\x10\0\0\0AVI LIST", K3_E_UNSUPPORTED, "video");
    REFUSE("\xff\xd8\xff", K3_E_FORMAT, "JPEG");
    REFUSE("\x89PNG\r\n\x1a\n", K3_E_FORMAT, "PNG");
    REFUSE("GIF89a", K3_E_FORMAT, "GIF");
    REFUSE("RIFF\x04\0\0\0WEBP", K3_E_FORMAT, "WebP");
}

static void put_le(uint8_t *p, uint32_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static void put_be(uint8_t *p, uint32_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * (n - 1 - i));
}

/* Each writes a size into the header of a file of its format. */

static void png_size(uint8_t *file, size_t n, uint32_t w, uint32_t h)
{
    (void)n;
    put_be(file + 16, w, 4);
    put_be(file + 20, h, 4);
    put_be(file + 29, crc_of(file + 12, 17), 4);
}

static void jpeg_size(uint8_t *file, size_t n, uint32_t w, uint32_t h)
{
    for (size_t i = 2; i + 9 < n && file[i] == 0xff; i += 2 + file[i + 2] * 256u + file[i + 3]) {
        if (file[i + 1] != 0xc0 && file[i + 1] != 0xc2)
            continue;
        put_be(file + i + 5, h, 2);
        put_be(file + i + 7, w, 2);
        return;
    }
    fail_msg("the JPEG has no frame header");
}

static void gif_canvas(uint8_t *file, size_t n, uint32_t w, uint32_t h)
{
    (void)n;
    put_le(file + 6, w, 2);
    put_le(file + 8, h, 2);
}

static void gif_frame(uint8_t *file, size_t n, uint32_t w, uint32_t h)
{
    static const uint8_t descriptor[] = {',', 0, 0, 0, 0, 45, 0, 37, 0};
    uint8_t *at = memmem(file, n, descriptor, sizeof descriptor);
    assert_non_null(at);
    put_le(at + 5, w, 2);
    put_le(at + 7, h, 2);
}

static void webp_lossy(uint8_t *file, size_t n, uint32_t w, uint32_t h)
{
    (void)n;
    assert_memory_equal(file + 12, "VP8 ", 4);
    put_le(file + 26, w, 2);
    put_le(file + 28, h, 2);
}

static void webp_lossless(uint8_t *file, size_t n, uint32_t w, uint32_t h)
{
    (void)n;
    assert_memory_equal(file + 12, "VP8L", 4);
    put_le(file + 21, (w - 1) | (h - 1) << 14, 4); /* 14 bits each; what follows is not read */
}

static void webp_canvas(uint8_t *file, size_t n, uint32_t w, uint32_t h)
{
    (void)n;
    assert_memory_equal(file + 12, "VP8X", 4);
    put_le(file + 24, w - 1, 3);
    put_le(file + 27, h - 1, 3);
}

/* Headers that promise huge or empty pictures: refused before memory is taken. */
static void giant_and_empty_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*set)(uint8_t *file, size_t n, uint32_t w, uint32_t h);
        uint32_t w, h;
        k3_status want;
        const char *part;
    } cases[] = {
        {"rgb8.png", png_size, 0, 10, K3_E_FORMAT, "PNG"},
        {"rgb8.png", png_size, 10, 0, K3_E_FORMAT, "PNG"},
        {"rgb8.png", png_size, 0, 0, K3_E_FORMAT, "PNG"},
        {"rgba16-adam7.png", png_size, 0, 0, K3_E_FORMAT, "PNG"},
        {"animated.png", png_size, 0, 0, K3_E_FORMAT, "PNG"},
        {"rgb8.png", png_size, 0x7fffffff, 0x7fffffff, K3_E_LIMIT, "PNG"},
        {"rgb8.png", png_size, 60000, 60000, K3_E_LIMIT, "60000 x 60000"},
        {"rgb8.png", png_size, 2000000, 1, K3_E_LIMIT, "2000000 x 1"},
        {"rgb8.png", png_size, 1, 0x7fffffff, K3_E_LIMIT, "PNG"},
        {"rgb8.png", png_size, 4097, 4097, K3_E_LIMIT, "4097 x 4097"},
        {"pal4-alpha.png", png_size, 4097, 4097, K3_E_LIMIT, "4097 x 4097"},
        {"rgb420.jpg", jpeg_size, 0, 37, K3_E_FORMAT, "JPEG"},
        {"rgb420.jpg", jpeg_size, 45, 0, K3_E_FORMAT, "JPEG"},
        {"progressive.jpg", jpeg_size, 0, 0, K3_E_FORMAT, "JPEG"},
        {"cmyk.jpg", jpeg_size, 0, 0, K3_E_FORMAT, "JPEG"},
        {"rgb420.jpg", jpeg_size, 61680, 61680, K3_E_LIMIT, "61680 x 61680"},
        {"progressive.jpg", jpeg_size, 65500, 65500, K3_E_LIMIT, "65500 x 65500"},
        {"cmyk.jpg", jpeg_size, 65500, 65, K3_E_LIMIT, "65500 x 65"},
        {"palette.gif", gif_frame, 0, 37, K3_E_FORMAT, "empty (0 x 37)"},
        {"palette.gif", gif_frame, 45, 0, K3_E_FORMAT, "empty (45 x 0)"},
        {"palette.gif", gif_frame, 0, 0, K3_E_FORMAT, "empty (0 x 0)"},
        {"interlaced.gif", gif_frame, 0, 0, K3_E_FORMAT, "empty (0 x 0)"},
        {"palette.gif", gif_frame, 65535, 65535, K3_E_LIMIT, "65535 x 65535"},
        {"palette.gif", gif_canvas, 65535, 65535, K3_E_LIMIT, "65535 x 65535"},
        {"lossy.webp", webp_lossy, 0, 37, K3_E_FORMAT, "WebP"},
        {"lossy.webp", webp_lossy, 45, 0, K3_E_FORMAT, "WebP"},
        {"lossy.webp", webp_lossy, 0, 0, K3_E_FORMAT, "WebP"},
        {"lossy.webp", webp_lossy, 16383, 16383, K3_E_LIMIT, "16383 x 16383"},
        {"lossless.webp", webp_lossless, 16384, 16384, K3_E_LIMIT, "16384 x 16384"},
        {"animated.webp", webp_canvas, 65535, 65535, K3_E_LIMIT, "65535 x 65535"},
        {"animated.webp", webp_canvas, 1, 1, K3_E_FORMAT, "WebP"}, /* smaller than its frame */
        {"animated.webp", webp_canvas, 1 << 24, 1 << 24, K3_E_FORMAT, "WebP"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        uint8_t *file = load(cases[i].name, &n);
        cases[i].set(file, n, cases[i].w, cases[i].h);
        expect_refusal(file, n, cases[i].want, cases[i].part);
        k3i_free(file);
    }
    /* A GIF may have a canvas of no size: the frame is the picture, as when it sticks out. */
    size_t n;
    k3i_err err;
    uint8_t *gif = load("palette.gif", &n);
    gif_canvas(gif, n, 0, 0);
    assert_int_equal(try_decode(gif, n, &err), K3_OK);
    k3i_free(gif);
}

/* What follows the first frame of an animation does not matter, damaged or not. */
static void only_the_first_frame_is_read(void **state)
{
    (void)state;
    size_t n, n_plain;
    uint8_t *file = load("animated.png", &n), *plain = load("rgb8.png", &n_plain);
    uint8_t *second = memmem(file, n, "fdAT", 4);
    assert_non_null(second);
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    k3i_picture want, got;
    assert_int_equal(k3i_decode(plain, n_plain, &s.decode, &want, NULL), K3_OK);
    for (int damaged = 0; damaged < 2; damaged++) {
        if (damaged)
            second[20] ^= 0xff;
        assert_int_equal(k3i_decode(file, n, &s.decode, &got, NULL), K3_OK);
        assert_int_equal(picture_crc(&got), picture_crc(&want));
        k3i_picture_done(&got);
    }
    k3i_picture_done(&want);
    k3i_free(file);
    k3i_free(plain);
}

static void limits_hold_exactly(void **state)
{
    (void)state;
    size_t n;
    uint8_t *data = load("rgb8.png", &n);
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    for (int k = 0; k < 6; k++) {
        k3i_decode_options o = s.decode;
        o.max_bytes = k == 0 ? n - 1 : n;
        o.max_pixels = k == 1 ? 45 * 37 - 1 : 45 * 37;
        o.max_side = k == 2 ? 44 : 45;
        k3i_picture pic;
        k3_status st = k3i_decode(data, n, &o, &pic, NULL);
        assert_int_equal(st, k < 3 ? K3_E_LIMIT : K3_OK);
        if (st == K3_OK)
            k3i_picture_done(&pic);
    }
    k3i_free(data);
}

static void allocation_failures_are_clean(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_EACH; i++) {
        size_t n;
        uint8_t *data = load(one_of_each[i], &n);
        uint64_t k = 1;
        for (;; k++) {
            k3i_err err = {0};
            k3i_alloc_fail_at(k);
            k3_status st = try_decode(data, n, &err);
            k3i_alloc_fail_at(0);
            if (st == K3_OK)
                break;
            assert_true(st == K3_E_NOMEM || st == K3_E_FORMAT);
        }
        assert_in_range(k, 3, 100);
        k3i_free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_equals_pillow),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(corrupt_files_do_no_harm),
        cmocka_unit_test(foreign_bytes_are_named),
        cmocka_unit_test(giant_and_empty_headers_are_refused),
        cmocka_unit_test(only_the_first_frame_is_read),
        cmocka_unit_test(limits_hold_exactly),
        cmocka_unit_test(allocation_failures_are_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
