#include "collector/sysfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tc_sysfile_read(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool got = fgets(text, (int)size, file) != NULL;
    (void)fclose(file);
    if (got) {
        text[strcspn(text, "\n")] = '\0';
    }
    return got;
}

static json_t *text_or_null(const char *text)
{
    json_t *value = json_string(text); /* NULL where it is not UTF-8, too */
    return value != NULL ? value : json_null();
}

json_t *tc_sysfile_line(const char *path)
{
    char text[4096];
    return tc_sysfile_read(path, text, sizeof(text)) ? text_or_null(text) : json_null();
}

json_t *tc_sysfile_number(const char *path)
{
    char text[64];
    char *end = text;
    long long value = tc_sysfile_read(path, text, sizeof(text)) ? strtoll(text, &end, 10) : 0;
    return end == text ? json_null() : json_integer(value);
}

json_t *tc_sysfile_field(const char *path, const char *name)
{
    char line[4096];
    size_t length = strlen(name);
    json_t *value = json_null();
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, name, length) == 0 && line[length] == ':') {
            line[strcspn(line, "\n")] = '\0';
            value = text_or_null(line + length + 1 + strspn(line + length + 1, " \t"));
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return value;
}
