/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/pages.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "collector/softpmu/qemu_plugin_abi.h"

void tc_pages_forget(struct tc_pages *pages)
{
    pages->epoch += UINT64_C(1) << TC_PAGES_EPOCH_SHIFT;
    if (pages->epoch >> TC_PAGES_EPOCH_SHIFT == 0) {
        memset(pages->entries, 0, sizeof pages->entries);
        pages->epoch = UINT64_C(1) << TC_PAGES_EPOCH_SHIFT;
    }
}

uint64_t tc_pages_ask(struct tc_pages *pages, uint32_t info, uint64_t address)
{
    const struct qemu_plugin_hwaddr *where = qemu_plugin_get_hwaddr(info, address);
    if (where == NULL)
        return TC_PAGE_UNKNOWN;
    /* Device pages are not remembered: QEMU may map memory there without the guest's doing. */
    if (qemu_plugin_hwaddr_is_io(where))
        return TC_PAGE_DEVICE;
    uint64_t physical = qemu_plugin_hwaddr_phys_addr(where);
    struct tc_page_entry *entry = tc_pages_entry(pages, address);
    entry->tag = tc_pages_tag(pages, address);
    entry->page = physical & ~TC_PAGE_MASK;
    return physical;
}

int tc_ram_find(struct tc_ram *ram, uint64_t code, struct tc_error *err)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return tc_error_set(err, errno, "/proc/self/maps: %s", strerror(errno));
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        uint64_t begin = 0;
        uint64_t end = 0;
        uint64_t offset = 0;
        char shared = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*c%*c%*c%c %" SCNx64, &begin, &end, &shared,
                   &offset) != 4)
            continue;
        found = shared == 's' && code >= begin && code < end;
        *ram = (struct tc_ram){.begin = begin, .end = end, .first_physical = offset};
    }
    (void)fclose(maps);
    if (!found)
        return tc_error_set(err, ENOENT,
                            "the guest runs code outside of shared memory; expected guest memory "
                            "as a shared file: -object memory-backend-memfd,id=ram,size=SIZE,"
                            "share=on -machine memory-backend=ram");
    return 0;
}
