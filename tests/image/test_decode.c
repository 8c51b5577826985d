/* Decoding: every kind of file in tests/data/image against what Pillow makes of it (make_files.py), and
 * files that must be refused. */
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
    "rgb8.png",    "pal4-alpha.png", "rgba16-adam7.png", "gray1.png",   "rgb420.jpg",
    "progressive.jpg", "cmyk.jpg",   "lossy.webp",       "lossless-alpha.webp", "animated.webp",
    "palette.gif", "interlaced.gif"};
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
    REFUSE("\0\0\0\x20" "ftypavif\0\0", K3_E_UNSUPPORTED, "AVIF");
    REFUSE("\0\0\0\x20" "ftypisom\0\0", K3_E_UNSUPPORTED, "video");
    REFUSE("\x1a\x45\xdf\xa3\x01", K3_E_UNSUPPORTED, "video");
    REFUSE("RIFF\x10\0\0\0AVI LIST", K3_E_UNSUPPORTED, "video");
    REFUSE("\xff\xd8\xff", K3_E_FORMAT, "JPEG");
    REFUSE("\x89PNG\r\n\x1a\n", K3_E_FORMAT, "PNG");
    REFUSE("GIF89a", K3_E_FORMAT, "GIF");
    REFUSE("RIFF\x04\0\0\0WEBP", K3_E_FORMAT, "WebP");
}

static uint32_t be(uint32_t v)
{
    return v >> 24 | (v >> 8 & 0xff00) | (v << 8 & 0xff0000) | v << 24;
}

/* Headers that promise huge or empty pictures: refused before memory is taken. */
static void giant_and_empty_headers_are_refused(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{0, 10}, {10, 0}, {0x7fffffff, 0x7fffffff}, {60000, 60000},
                                        {2000000, 1}, {1, 0x7fffffff}, {4097, 4097}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n;
        uint8_t *data = load("rgb8.png", &n);
        uint32_t w = be(sizes[i][0]), h = be(sizes[i][1]);
        memcpy(data + 16, &w, 4);
        memcpy(data + 20, &h, 4);
        uint32_t crc = be(crc_of(data + 12, 17));
        memcpy(data + 29, &crc, 4);
        k3i_err err = {0};
        bool empty = sizes[i][0] == 0 || sizes[i][1] == 0;
        assert_int_equal(try_decode(data, n, &err), empty ? K3_E_FORMAT : K3_E_LIMIT);
        k3i_free(data);
    }
    size_t n;
    uint8_t *jpg = load("rgb420.jpg", &n);
    for (size_t i = 0; i + 9 < n; i++) {
        if (jpg[i] == 0xff && jpg[i + 1] == 0xc0)
            memset(jpg + i + 5, 0xf0, 4);
    }
    expect_refusal(jpg, n, K3_E_LIMIT, "61680 x 61680");
    k3i_free(jpg);
    uint8_t *gif = load("palette.gif", &n);
    memset(gif + 6, 0xff, 4);
    expect_refusal(gif, n, K3_E_LIMIT, "65535 x 65535");
    k3i_free(gif);
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
        cmocka_unit_test(limits_hold_exactly),
        cmocka_unit_test(allocation_failures_are_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
