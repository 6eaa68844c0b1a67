#include "workloads/common/error.h"

#include <stdarg.h>
#include <stdio.h>

int tc_error_set(struct tc_error *err, int code, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        /* A message longer than the buffer is cut; the code still tells the kind. */
        (void)vsnprintf(err->message, sizeof(err->message), format, args);
        va_end(args);
    }
    return -code;
}
