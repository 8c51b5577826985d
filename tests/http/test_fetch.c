/* Which addresses and URLs a picture may come from. */
#include "fetch.h"
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static bool is_public(const char *text)
{
    struct sockaddr_storage s;
    memset(&s, 0, sizeof s);
    struct sockaddr_in *in = (struct sockaddr_in *)&s;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&s;
    if (inet_pton(AF_INET, text, &in->sin_addr) == 1) {
        s.ss_family = AF_INET;
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
        s.ss_family = AF_INET6;
    }
    return k3i_is_public_address((struct sockaddr *)&s);
}

static void addresses(void **state)
{
    (void)state;
    static const char *const closed[] = {"0.0.0.0",
                                         "10.1.2.3",
                                         "100.64.0.1",
                                         "100.127.255.255",
                                         "127.0.0.1",
                                         "127.255.0.9",
                                         "169.254.169.254",
                                         "172.16.0.1",
                                         "172.31.255.255",
                                         "192.0.0.8",
                                         "192.0.2.1",
                                         "192.168.1.1",
                                         "198.18.0.1",
                                         "198.19.255.255",
                                         "198.51.100.7",
                                         "203.0.113.9",
                                         "224.0.0.1",
                                         "239.1.1.1",
                                         "240.0.0.1",
                                         "255.255.255.255",
                                         "::",
                                         "::1",
                                         "::ffff:127.0.0.1",
                                         "::ffff:10.0.0.1",
                                         "::ffff:169.254.169.254",
                                         "64:ff9b::7f00:1",
                                         "64:ff9b::a9fe:a9fe",
                                         "2002:7f00:1::",
                                         "2002:a00:1::1",
                                         "2001::1",
                                         "2001:db8::1",
                                         "fc00::1",
                                         "fdff::1",
                                         "fe80::1",
                                         "febf::1",
                                         "ff02::1",
                                         "100::1",
                                         "::7f00:1",
                                         "4000::1"};
    static const char *const open[] = {
        "1.1.1.1",      "8.8.8.8",        "100.63.255.255",   "100.128.0.0",     "172.15.0.1",
        "172.32.0.1",   "192.167.0.1",    "198.17.0.1",       "223.255.255.255", "2606:4700::1111",
        "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"};
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        if (is_public(closed[i]))
            fail_msg("%s counts as public", closed[i]);
    }
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        if (!is_public(open[i]))
            fail_msg("%s counts as closed", open[i]);
    }
}

static int32_t fetch_status(const char *url, const char *const *domains, int32_t n,
                            bool allow_private)
{
    k3i_media_config c = {.allowed_domains = domains,
                          .n_allowed_domains = n,
                          .allow_private = allow_private,
                          .max_bytes = 1 << 20,
                          .timeout_s = 3,
                          .max_redirects = 3};
    k3i_fault fault = {0};
    uint8_t *bytes = NULL;
    size_t len;
    bool ok = k3i_fetch(&c, url, strlen(url), "image 1", &bytes, &len, &fault);
    k3i_free(bytes);
    return ok ? 200 : fault.status;
}

static void urls(void **state)
{
    (void)state;
    const char *const all[] = {"*"}, *const one[] = {"127.0.0.1", "example.invalid"};
    assert_int_equal(fetch_status("http://127.0.0.1/a.png", NULL, 0, true), 400); /* not enabled */
    assert_int_equal(fetch_status("http://10.0.0.1/a.png", one, 2, true),
                     400); /* not on the list */
    assert_int_equal(fetch_status("http://127.0.0.1:9/a.png", all, 1, false), 400); /* not public */
    assert_int_equal(fetch_status("http://localhost:9/a.png", all, 1, false), 400);
    assert_int_equal(fetch_status("http://[::1]:9/a.png", all, 1, false), 400);
    assert_int_equal(fetch_status("http://2130706433:9/a.png", all, 1, false), 400); /* 127.0.0.1 */
    assert_int_equal(fetch_status("http://0x7f.1:9/a.png", all, 1, false), 400);
    assert_int_equal(fetch_status("http://user:pw@127.0.0.1/", all, 1, true),
                     400); /* credentials */
    assert_int_equal(fetch_status("ftp://127.0.0.1/a.png", all, 1, true), 422);
    assert_int_equal(fetch_status("http://", all, 1, true), 422);
    assert_int_equal(fetch_status("http://127.0.0.1:1/a.png", one, 2, true),
                     400); /* nobody listens */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(addresses), cmocka_unit_test(urls)};
    return k3i_fetch_init() ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
