/* --speculative-config: what vLLM's users write is read, everything else is refused by name. */
#include "test.h"

#include "spec_config.h"

static void reads_what_vllm_takes(void **state)
{
    (void)state;
    k3i_spec_config c;
    k3i_err err;
    assert_int_equal(
        k3i_spec_config_parse(
            "{\"method\":\"dspark\",\"model\":\"/d\",\"num_speculative_tokens\":7}", &c, &err),
        K3_OK);
    assert_string_equal(c.model, "/d");
    assert_int_equal(c.tokens, 7);
    assert_false(c.is_fixed);
    k3i_spec_config_done(&c);
    assert_int_equal(k3i_spec_config_parse(
                         "{\"model\":\"d\",\"adaptive\":false,\"method\":\"dspark\"}", &c, &err),
                     K3_OK);
    assert_int_equal(c.tokens, 0);
    assert_true(c.is_fixed);
    k3i_spec_config_done(&c);
}

static void refuses_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } wrong[] = {
        {"", "not JSON"},
        {"[]", "object"},
        {"{}", "\"method\" is missing"},
        {"{\"method\":\"dspark\"}", "\"model\" is missing"},
        {"{\"method\":\"eagle\",\"model\":\"d\"}", "\"method\""},
        {"{\"method\":\"dspark\",\"model\":7}", "\"model\""},
        {"{\"method\":\"dspark\",\"model\":\"\"}", "\"model\""},
        {"{\"method\":\"dspark\",\"model\":\"a\\u0000b\"}", "\"model\""},
        {"{\"method\":\"dspark\",\"model\":\"d\",\"num_speculative_tokens\":0}", "1..16"},
        {"{\"method\":\"dspark\",\"model\":\"d\",\"num_speculative_tokens\":17}", "1..16"},
        {"{\"method\":\"dspark\",\"model\":\"d\",\"num_speculative_tokens\":1.5}", "1..16"},
        {"{\"method\":\"dspark\",\"model\":\"d\",\"adaptive\":1}", "\"adaptive\""},
        {"{\"method\":\"dspark\",\"model\":\"d\",\"draft_tensor_parallel_size\":1}",
         "draft_tensor_parallel_size"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        k3i_spec_config c;
        k3i_err err = {0};
        assert_int_equal(k3i_spec_config_parse(wrong[i].json, &c, &err), K3_E_OPTION);
        if (strstr(err.text, wrong[i].says) == NULL)
            fail_msg("%s: '%s' does not say '%s'", wrong[i].json, err.text, wrong[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_vllm_takes),
        cmocka_unit_test(refuses_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
