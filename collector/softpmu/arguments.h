/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The plugin's arguments, as QEMU hands them over: key=value. */
#ifndef TC_SOFTPMU_ARGUMENTS_H
#define TC_SOFTPMU_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "workloads/common/error.h"

#define TC_ARGUMENTS_CPUS_MAX 256

/* Ways of counting. What is counted besides the models is there to be compared with them. */
enum tc_count_way {
    TC_COUNT_MODELS,
    TC_COUNT_INLINE,   /* and instructions by additions that QEMU inserts into each block */
    TC_COUNT_CALLBACK, /* and instructions one by one */
    TC_COUNT_NOTHING   /* empty callbacks: what the interface itself costs */
};

enum tc_armed { TC_ARMED_DEFAULT, TC_ARMED_OFF, TC_ARMED_ON };

/* Strings are the caller's argv. */
struct tc_arguments {
    const char *machine;     /* machine=FILE */
    const char *variant;     /* variant=NAME; NULL: all of them */
    const char *page;        /* page=FILE; NULL: no other process reads */
    uint32_t cpus;           /* cpus=N; 0: as many as the guest has, one in user mode */
    enum tc_armed armed;     /* armed=on|off */
    enum tc_count_way count; /* count=models|inline|callback|nothing */
    bool check_addresses;    /* check=addresses */
};

/* -EINVAL: names the argument, what was given and what is allowed. */
TC_MUST_CHECK int tc_arguments_parse(struct tc_arguments *arguments, int argc, char **argv,
                                     struct tc_error *err);

#endif
