/* Small files of /proc and /sys as JSON; what cannot be read is null. NULL: no memory. */
#ifndef TC_COLLECTOR_SYSFILE_H
#define TC_COLLECTOR_SYSFILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* First line, without the newline; false where it cannot be read. */
bool tc_sysfile_read(const char *path, char *text, size_t size);

/* That line as a text, and the decimal number that it starts with. */
json_t *tc_sysfile_line(const char *path);
json_t *tc_sysfile_number(const char *path);

/* The text behind "NAME:" of the line that starts so. */
json_t *tc_sysfile_field(const char *path, const char *name);

#endif
