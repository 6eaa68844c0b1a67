/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A machine file: what a simulated machine is made of. Every constant in it names its source. */
#ifndef TC_SOFTPMU_MACHINE_H
#define TC_SOFTPMU_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collector/softpmu_page.h"
#include "workloads/common/error.h"

#define TC_MACHINE_TEXT_MAX 256

struct tc_cache_geometry {
    uint64_t bytes;
    uint32_t ways;
    uint32_t line_bytes;
};

struct tc_machine_variant {
    char name[TC_SOFTPMU_NAME_MAX];
    uint64_t l2_bytes;
};

struct tc_machine_predictor {
    uint32_t btb_entries;
    uint32_t btb_ways;
    uint32_t index_shift; /* address bits below the BTB's index */
    uint32_t history_bits;
    uint32_t return_stack; /* entries */
};

/* Clocks of the CPU; see timing.c for what each is multiplied with. */
struct tc_machine_timing {
    double issue_cpi;
    double l1i_miss;
    double l1d_load_miss;
    double l1d_store_miss;
    double l2_load_miss;
    double l2_store_miss;
    double l2_ifetch_miss;
    double llc_miss;
    double hitm;
    double upgrade;
    double mispredict;
    double redirect;
};

struct tc_machine {
    char name[TC_SOFTPMU_NAME_MAX];
    char description[TC_MACHINE_TEXT_MAX];
    char qemu_cpu[TC_MACHINE_TEXT_MAX];
    char guest[TC_SOFTPMU_NAME_MAX]; /* "i386" or "x86_64" */
    uint64_t clock_hz;
    uint64_t bus_clock_hz; /* 0: no front-side bus whose data clocks could be counted */
    struct tc_cache_geometry l1i;
    struct tc_cache_geometry l1d;
    struct tc_cache_geometry llc; /* one, shared by all CPUs */
    struct tc_machine_variant variant[TC_SOFTPMU_VARIANTS_MAX];
    struct tc_machine_timing timing;
    struct tc_machine_predictor predictor;
    uint32_t fetch_block_bytes;
    uint32_t l2_ways;
    uint32_t variants;
    uint32_t bus_width_bytes;
    bool has_llc;
};

/* Reads and checks a machine file. variant: the only one to keep; NULL: all. -EINVAL (what the file
 * says is impossible or unknown: names key, value, what was expected) or the errno of reading it.
 */
TC_MUST_CHECK int tc_machine_load(const char *path, const char *variant, struct tc_machine *machine,
                                  struct tc_error *err);

/* The same from text; origin names it in messages. */
TC_MUST_CHECK int tc_machine_parse(const char *json, size_t length, const char *origin,
                                   const char *variant, struct tc_machine *machine,
                                   struct tc_error *err);

#endif
