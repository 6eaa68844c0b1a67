/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The counts of a run, or why there are none, as one JSON document in a file.
 *
 *   {"machine": NAME, "variants": [NAME...], "cpus": N, "whole_system": BOOL,
 *    "events": [{"name", "unit", "origin", "varies", "user": [N per variant], "kernel": [...]}...],
 *    "repeats": N, "executed": N, "addresses": {"checked", "wrong", "device", "unknown"}}
 *
 * Counts are sums over CPUs; those that do not vary have one element. */
#ifndef TC_SOFTPMU_REPORT_H
#define TC_SOFTPMU_REPORT_H

#include "collector/softpmu_page.h"
#include "workloads/common/error.h"

/* -EIO: the file cannot be written; -ENOMEM. */
TC_MUST_CHECK int tc_report_write(const char *path, const struct tc_softpmu_page *page,
                                  struct tc_error *err);

/* {"error": MESSAGE, "errno": NAME or null}. code: a positive errno. */
TC_MUST_CHECK int tc_report_write_error(const char *path, int code, const char *message,
                                        struct tc_error *err);

#endif
