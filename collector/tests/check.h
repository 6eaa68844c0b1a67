/* What every test file needs before cmocka. */
#ifndef TC_COLLECTOR_TESTS_CHECK_H
#define TC_COLLECTOR_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

/* Ends the test as skipped, by name and reason. */
#define SKIP(reason)                                                                               \
    do {                                                                                           \
        print_message("skipped: %s: %s\n", __func__, reason);                                      \
        skip();                                                                                    \
    } while (0)

#endif
