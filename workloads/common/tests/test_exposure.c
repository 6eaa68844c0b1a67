#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs those before it. */
#include <cmocka.h>

#include "workloads/common/exposure.h"
#include "workloads/common/options.h"

static bool is_private(const char *text)
{
    struct sockaddr_storage address;
    socklen_t length = 0;
    assert_int_equal(tc_parse_address(text, &address, &length, NULL), 0);
    return tc_address_is_private(&address);
}

static void private_addresses(void **state)
{
    static const char *const all[] = {"127.0.0.1:1", "127.255.255.255:1", "198.18.0.0:1",
                                      "198.19.255.255:1", "[::1]:1"};
    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        assert_true(is_private(all[i]));
    }
}

static void others(void **state)
{
    static const char *const all[] = {"0.0.0.0:1",    "126.255.255.255:1", "128.0.0.0:1",
                                      "198.20.0.0:1", "198.17.255.255:1",  "192.168.0.1:1",
                                      "[::]:1",       "[fe80::1]:1",       "[::ffff:192.0.2.1]:1"};
    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        assert_false(is_private(all[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(private_addresses),
        cmocka_unit_test(others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
