/* The profile reader takes any file: it either refuses it with a message or gives a whole profile.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "workloads/common/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

/* Directives that would have OpenSSL open other files are not this reader's. */
static bool includes(const uint8_t *data, size_t length)
{
    static const char directive[] = ".include";
    return memmem(data, length, directive, sizeof(directive) - 1) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    struct tc_profile profile;
    struct tc_error err = {""};
    char path[64];
    if (includes(data, length)) {
        return 0;
    }
    int fd = memfd_create("profile", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, length) != (ssize_t)length) {
        abort();
    }
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int rc = tc_profile_open(&profile, path, &err);
    if ((rc == 0) != (err.message[0] == '\0')) {
        abort();
    }
    if (rc == 0) {
        if (profile.conf == NULL || profile.key[0] == '\0' || profile.expect_cipher[0] == '\0' ||
            tc_profile_protocol(profile.expect_protocol) == 0) {
            abort();
        }
        tc_profile_close(&profile);
    }
    (void)close(fd);
    return 0;
}
