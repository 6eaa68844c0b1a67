/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The counts of a page, or why there are none, as one JSON document.
 *
 *   {"machine": NAME, "ended": BOOL, "variants": [NAME...], "cpus": N, "whole_system": BOOL,
 *    "events": [{"name", "unit", "origin", "varies", "user": [N per variant], "kernel": [...]}...],
 *    "repeats": N, "executed": N, "addresses": {"checked", "wrong", "device", "unknown"}}
 *
 *   {"error": MESSAGE, "errno": NAME}
 *
 * Counts are sums over CPUs; those that do not vary have one element. */
#ifndef TC_SOFTPMU_REPORT_H
#define TC_SOFTPMU_REPORT_H

#include <jansson.h>

#include "collector/softpmu_page.h"

/* NULL: no memory. */
json_t *tc_report_build(const struct tc_softpmu_page *page);

#endif
