#include "collector/record.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

json_t *tc_record_utc_of(const struct timespec *time)
{
    struct tm parts;
    char date[32];
    if (gmtime_r(&time->tv_sec, &parts) == NULL ||
        strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts) == 0) {
        return NULL;
    }
    return json_sprintf("%s.%06ldZ", date, time->tv_nsec / 1000);
}

json_t *tc_record_utc(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return tc_record_utc_of(&now);
}

int tc_record_open(struct tc_record *record, const char *path, struct tc_error *err)
{
    *record = (struct tc_record){.fd = -1};
    record->path = strdup(path);
    if (record->path == NULL || asprintf(&record->partial, "%s.partial", path) < 0) {
        record->partial = NULL;
        return tc_error_set(err, ENOMEM, "out of memory for the record");
    }
    sha256_init(&record->digest);
    record->fd = open(record->partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return record->fd >= 0
               ? 0
               : tc_error_set(err, errno, "--record: %s: %s", record->partial, strerror(errno));
}

static int write_failed(const struct tc_record *record, int code, struct tc_error *err)
{
    const char *remedy = code == ENOSPC || code == EDQUOT || code == EFBIG
                             ? "; make room, or give --record another disk"
                             : "";
    return tc_error_set(err, code, "writing %s: %s%s; %zu whole lines stay in it", record->partial,
                        strerror(code), remedy, record->lines);
}

static int write_all(struct tc_record *record, const char *text, size_t length)
{
    size_t done = 0;
    while (done < length) {
        ssize_t wrote = write(record->fd, text + done, length - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            return wrote < 0 ? -errno : -EIO;
        }
        done += (size_t)wrote;
    }
    return 0;
}

static int write_line(struct tc_record *record, const char *text, bool sync, struct tc_error *err)
{
    size_t length = strlen(text);
    int rc = write_all(record, text, length);
    if (rc == 0 && sync && fdatasync(record->fd) != 0) {
        rc = -errno;
    }
    if (rc != 0) {
        /* A reader of the partial file is to find whole lines only. */
        if (ftruncate(record->fd, record->length) != 0 ||
            lseek(record->fd, record->length, SEEK_SET) < 0) {
            return tc_error_set(err, errno, "taking back half a line of %s: %s", record->partial,
                                strerror(errno));
        }
        return write_failed(record, -rc, err);
    }
    record->length += (off_t)length;
    return 0;
}

/* The object as text with its newline; NULL without memory. Steals line. */
static char *dump(json_t *line)
{
    char *text = line == NULL ? NULL : json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(line);
    size_t length = text == NULL ? 0 : strlen(text);
    char *longer = text == NULL ? NULL : realloc(text, length + 2);
    if (longer == NULL) {
        free(text);
        return NULL;
    }
    memcpy(longer + length, "\n", 2);
    return longer;
}

int tc_record_write(struct tc_record *record, json_t *line, struct tc_error *err)
{
    const char *type = json_string_value(json_object_get(line, "type"));
    bool window = type != NULL && strcmp(type, "window") == 0;
    char *text = dump(line);
    if (text == NULL) {
        return tc_error_set(err, ENOMEM, "out of memory for a line of the record");
    }
    int rc = write_line(record, text, window, err);
    if (rc == 0) {
        sha256_update(&record->digest, strlen(text), (const uint8_t *)text);
        record->lines++;
        record->windows += window ? 1 : 0;
    }
    free(text);
    return rc;
}

static int sync_directory(const char *path, struct tc_error *err)
{
    char *copy = strdup(path);
    int fd = copy == NULL ? -1 : open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) != 0 ? tc_error_set(err, errno, "syncing the directory of %s: %s",
                                                     path, strerror(errno))
                                      : 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    free(copy);
    return rc;
}

int tc_record_finish(struct tc_record *record, struct tc_error *err)
{
    uint8_t hash[SHA256_DIGEST_SIZE];
    char hex[2 * SHA256_DIGEST_SIZE + 1] = "";
    sha256_digest(&record->digest, sizeof(hash), hash);
    for (size_t i = 0; i < sizeof(hash); i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    }
    char *text = dump(json_pack("{s:s, s:I, s:I, s:o, s:s}", "type", "footer", "lines",
                                (json_int_t)record->lines, "windows", (json_int_t)record->windows,
                                "ended_utc", tc_record_utc(), "sha256", hex));
    int rc = text == NULL ? tc_error_set(err, ENOMEM, "out of memory for the record's footer")
                          : write_line(record, text, true, err);
    free(text);
    if (rc == 0 && rename(record->partial, record->path) != 0) {
        rc = tc_error_set(err, errno, "renaming %s to %s: %s", record->partial, record->path,
                          strerror(errno));
    }
    /* Counters may have taken every other file descriptor that this user may have. */
    (void)close(record->fd);
    record->fd = -1;
    return rc == 0 ? sync_directory(record->path, err) : rc;
}

void tc_record_close(struct tc_record *record)
{
    if (record->fd >= 0) {
        (void)close(record->fd);
    }
    record->fd = -1;
    free(record->path);
    free(record->partial);
    record->path = NULL;
    record->partial = NULL;
}
