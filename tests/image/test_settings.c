/* preprocessor_config.json: the release's file, what a silent file means, and refusals by name. */
#include "test.h"

#include "settings.h"

#define HEAD                                                                                   \
    "{\"media_proc_cfg\":{\"patch_size\":14,\"merge_kernel_size\":2,\"in_patch_limit\":65536," \
    "\"patch_limit_on_one_side\":512,\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.5,0.5,0.5]"

static const char release[] =
    HEAD ",\"fixed_output_tokens\":null,\"in_patch_limit_each_frame\":16384,"
         "\"in_patch_limit_video\":655360,\"sample_fps\":8.0,\"max_num_frames_each_video\":null,"
         "\"temporal_merge_kernel_size\":4,\"timestamp_mode\":\"hh:mm:ss.fff\","
         "\"transparent_bg_config\":{\"pattern\":\"chessboard\",\"square_size\":8,"
         "\"chessboard_square_on_top_left\":true,\"white\":255,\"gray\":180},"
         "\"transparent_bg_fill_stage\":\"after_resize\",\"config_type\":\"x.y\"}}";

static k3_status parse(const char *text, k3i_image_settings *s, k3i_err *err)
{
    return k3i_image_settings_parse(text, strlen(text), "p.json", s, err);
}

static void release_file_is_the_default(void **state)
{
    (void)state;
    k3i_image_settings s, d;
    k3i_err err;
    k3i_image_settings_default(&d);
    if (parse(release, &s, &err) != K3_OK)
        fail_msg("%s", err.text);
    assert_int_equal(s.patch, d.patch);
    assert_int_equal(s.merge, d.merge);
    assert_int_equal(s.patch_limit, d.patch_limit);
    assert_int_equal(s.side_limit, d.side_limit);
    assert_memory_equal(s.mean, d.mean, sizeof s.mean);
    assert_memory_equal(s.std, d.std, sizeof s.std);
    assert_int_equal(s.fill_before_resize, d.fill_before_resize);
    assert_false(s.background.drop_alpha);
    assert_true(s.background.is_chessboard && s.background.white_first);
    assert_int_equal(s.background.square, 8);
    assert_int_equal(s.background.white, 255);
    assert_int_equal(s.background.gray, 180);
}

static void silence_means_what_the_reference_does(void **state)
{
    (void)state;
    k3i_image_settings s;
    k3i_err err;
    assert_int_equal(parse(HEAD "}}", &s, &err), K3_OK);
    assert_true(s.fill_before_resize && s.background.drop_alpha);
    assert_int_equal(parse(HEAD ",\"transparent_bg_config\":{}}}", &s, &err), K3_OK);
    assert_false(s.background.drop_alpha || s.background.is_chessboard);
    assert_int_equal(s.background.square, 16);
    assert_int_equal(s.background.gray, 200);
}

static void bad_values_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "not valid JSON"},
        {"{}", "media_proc_cfg is missing"},
        {"{\"media_proc_cfg\":{}}", "'patch_size' is missing"},
        {HEAD ",\"fixed_output_tokens\":256}}", "fixed_output_tokens must be null"},
        {HEAD ",\"new_key\":1}}", "unknown key 'new_key'"},
        {HEAD ",\"patch_size\":0}}", "patch_size must be"},
        {HEAD ",\"merge_kernel_size\":[2,2]}}", "merge_kernel_size must be"},
        {HEAD ",\"in_patch_limit\":-1}}", "in_patch_limit must be"},
        {HEAD ",\"image_std\":[0.5,0,0.5]}}", "image_std must be"},
        {HEAD ",\"image_mean\":[0.5]}}", "image_mean must be"},
        {HEAD ",\"transparent_bg_fill_stage\":\"never\"}}", "transparent_bg_fill_stage must be"},
        {HEAD ",\"transparent_bg_config\":{\"pattern\":\"dots\"}}}", "pattern must be"},
        {HEAD ",\"transparent_bg_config\":{\"square_size\":0}}}", "square_size must be"},
        {HEAD ",\"transparent_bg_config\":{\"white\":256}}}", "white must be"},
        {HEAD ",\"transparent_bg_config\":{\"colour\":1}}}", "unknown key 'colour'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        k3i_image_settings s;
        k3i_err err = {0};
        assert_int_equal(parse(cases[i][0], &s, &err), K3_E_CONFIG);
        if (strstr(err.text, cases[i][1]) == NULL)
            fail_msg("'%s' does not say '%s'", err.text, cases[i][1]);
    }
    k3i_image_settings s;
    k3i_err err;
    assert_int_equal(k3i_image_settings_read("/nonexistent", &s, &err), K3_E_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_file_is_the_default),
        cmocka_unit_test(silence_means_what_the_reference_does),
        cmocka_unit_test(bad_values_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
