/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The page of counters (softpmu_page.h), from the plugin's side. */
#ifndef TC_SOFTPMU_SHARED_H
#define TC_SOFTPMU_SHARED_H

#include <stdbool.h>
#include <stdint.h>

#include "collector/softpmu/machine.h"
#include "collector/softpmu_page.h"

/* Makes the page of a machine in the file `path`, whose former contents are lost; NULL: in memory
 * of this process alone. The room is taken at once, so that a full file system is an error here and
 * not a signal later. State is TC_SOFTPMU_BOOTING. It is never unmapped: QEMU's CPUs count
 * until the process ends. errno of open, ftruncate, posix_fallocate and mmap. */
TC_MUST_CHECK int tc_shared_create(const char *path, const struct tc_machine *machine,
                                   uint32_t cpus, bool whole_system, struct tc_softpmu_page **page,
                                   struct tc_error *err);

/* Makes a page that only says why there is none. code: a positive errno. */
TC_MUST_CHECK int tc_shared_create_failed(const char *path, int code, const char *message,
                                          struct tc_error *err);

/* For a process that was forked off: its counts go into memory of its own from now on. */
void tc_shared_detach(struct tc_softpmu_page *page);

/* The first message stays. Any thread. */
void tc_shared_fail(struct tc_softpmu_page *page, int code, const char *message);

/* A CPU halts, a CPU wakes up; by its own thread. */
void tc_shared_idle(struct tc_softpmu_cpu *cpu);
void tc_shared_resume(struct tc_softpmu_cpu *cpu);

#endif
