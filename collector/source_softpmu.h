/* A simulated machine's counters: how a session gets at the page (softpmu_page.h) that QEMU's
 * plugin makes, and the two sources that read it. */
#ifndef TC_COLLECTOR_SOURCE_SOFTPMU_H
#define TC_COLLECTOR_SOURCE_SOFTPMU_H

#include "collector/softpmu_page.h"
#include "collector/source.h"

/* A mapped page. All of what is here but the counters is checked once, when it is mapped. */
struct tc_softpmu {
    struct tc_softpmu_page *page;
    size_t bytes;
};

/* Maps the page of the file. cpus: how many the machine is to have. Errors: -EAGAIN (not made yet),
 * -EPROTO (not a page, another version's or another machine's; the message says what was found),
 * -EIO (the plugin could not begin; the message is its), errno of fstat and mmap. The caller keeps
 * fd. */
TC_MUST_CHECK int tc_softpmu_map(struct tc_softpmu *softpmu, int fd, size_t cpus,
                                 struct tc_error *err);
void tc_softpmu_unmap(struct tc_softpmu *softpmu);

/* Asks the plugin to count; tc_softpmu_check() tells when it does. */
void tc_softpmu_arm(const struct tc_softpmu *softpmu);

/* 0: it counts. Errors: -EAGAIN (not yet), -EIO (it gave up; the message is the plugin's). */
TC_MUST_CHECK int tc_softpmu_check(const struct tc_softpmu *softpmu, struct tc_error *err);

/* Slots of tc_source_softpmu: per CPU each event in user and kernel mode, those that differ between
 * the machine's variants once per variant. Slots of tc_source_softpmu_system: those of
 * tc_source_proc (source_proc.h), of which only idle time can be told. Both take
 * tc_source_request.softpmu. */

#endif
