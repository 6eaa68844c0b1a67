#include "workloads/load/summary.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    double percent;
} percentiles[] = {{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99_9", 99.9}, {"max", 100}};
#define PERCENTILES (sizeof(percentiles) / sizeof(percentiles[0]))

/* The sum over all threads; histogram->counts is the caller's to free(). */
static int sum_latency(const struct tc_page *page, enum tc_latency kind,
                       struct hdr_histogram *histogram, struct tc_error *err)
{
    *histogram = page->layout;
    histogram->counts = calloc((size_t)histogram->counts_len, sizeof(*histogram->counts));
    if (histogram->counts == NULL) {
        return tc_error_set(err, ENOMEM, "summary: out of memory");
    }
    tc_page_sum_histogram(page, kind, histogram->counts);
    hdr_reset_internal_counters(histogram);
    return 0;
}

static double rate(const struct tc_load_summary *summary, uint64_t count)
{
    return summary->elapsed_ns == 0 ? 0 : (double)count * 1e9 / (double)summary->elapsed_ns;
}

/* Neither complete nor an error: still under way when draining ended. */
static uint64_t abandoned(const uint64_t sums[TC_COUNT_KINDS])
{
    uint64_t ended = sums[TC_COUNT_COMPLETED];
    for (size_t kind = TC_COUNT_ERROR_FIRST; kind < TC_COUNT_KINDS; kind++) {
        ended += sums[kind];
    }
    return sums[TC_COUNT_STARTED] - ended;
}

static int text_latency(const struct tc_load_summary *summary, enum tc_latency kind, FILE *file,
                        struct tc_error *err)
{
    struct hdr_histogram histogram;
    int result = sum_latency(summary->page, kind, &histogram, err);
    if (result != 0) {
        return result;
    }
    if (histogram.total_count > 0) {
        (void)fprintf(file, "  %-10s", tc_latency_name(kind));
        for (size_t i = 0; i < PERCENTILES; i++) {
            double ms = (double)hdr_value_at_percentile(&histogram, percentiles[i].percent) / 1e6;
            (void)fprintf(file, " %10.3f", ms);
        }
        (void)fprintf(file, "\n");
    }
    free(histogram.counts);
    return 0;
}

int tc_load_summary_text(const struct tc_load_summary *summary, FILE *file, struct tc_error *err)
{
    uint64_t sums[TC_COUNT_KINDS];
    tc_page_sum(summary->page, sums);
    uint64_t completed = sums[TC_COUNT_COMPLETED];
    (void)fprintf(file, "%" PRIu64 " transactions in %.3f s: %.1f/s, %.3f MB/s of bodies\n",
                  completed, (double)summary->elapsed_ns / 1e9, rate(summary, completed),
                  rate(summary, sums[TC_COUNT_BYTES]) / 1e6);
    (void)fprintf(file, "CPU of this process: %.3f s user, %.3f s system\n",
                  (double)summary->user_ns / 1e9, (double)summary->system_ns / 1e9);
    (void)fprintf(file, "latency [ms]");
    for (size_t i = 0; i < PERCENTILES; i++) {
        (void)fprintf(file, " %10s", percentiles[i].name);
    }
    (void)fprintf(file, "\n");
    for (size_t kind = 0; kind < TC_LATENCY_KINDS; kind++) {
        int result = text_latency(summary, (enum tc_latency)kind, file, err);
        if (result != 0) {
            return result;
        }
    }
    for (size_t kind = 0; kind < TC_COUNT_KINDS; kind++) {
        if (sums[kind] != 0) {
            (void)fprintf(file, "%-20s %" PRIu64 "\n", tc_count_name((enum tc_count)kind),
                          sums[kind]);
        }
    }
    if (abandoned(sums) != 0) {
        (void)fprintf(file, "%-20s %" PRIu64 "\n", "abandoned", abandoned(sums));
    }
    if (summary->unstarted != 0) {
        (void)fprintf(file, "%-20s %" PRIu64 "\n", "unstarted", summary->unstarted);
    }
    return ferror(file) != 0 || fflush(file) != 0
               ? tc_error_set(err, EIO, "summary: cannot be written")
               : 0;
}

static json_t *integer(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static int json_latency(const struct tc_load_summary *summary, enum tc_latency kind, json_t *all,
                        struct tc_error *err)
{
    struct hdr_histogram histogram;
    char *text = NULL;
    json_t *object = json_null();
    int result = sum_latency(summary->page, kind, &histogram, err);
    if (result != 0) {
        return result;
    }
    if (histogram.total_count > 0) {
        result =
            tc_histogram_encode(NULL, histogram.counts, (size_t)histogram.counts_len, &text, err);
        object = result == 0
                     ? json_pack("{s:I, s:f, s:s}", "count", (json_int_t)histogram.total_count,
                                 "mean_ns", hdr_mean(&histogram), "histogram", text)
                     : NULL;
        for (size_t i = 0; object != NULL && i < PERCENTILES; i++) {
            char name[16];
            (void)snprintf(name, sizeof(name), "%s_ns", percentiles[i].name);
            int64_t value = hdr_value_at_percentile(&histogram, percentiles[i].percent);
            if (json_object_set_new(object, name, json_integer(value)) != 0) {
                json_decref(object);
                object = NULL;
            }
        }
    }
    free(text);
    free(histogram.counts);
    if (result == 0 && json_object_set_new(all, tc_latency_name(kind), object) != 0) {
        return tc_error_set(err, ENOMEM, "summary: out of memory");
    }
    return result;
}

static json_t *json_counts(const uint64_t sums[TC_COUNT_KINDS])
{
    json_t *counts = json_object();
    for (size_t kind = 0; counts != NULL && kind < TC_COUNT_KINDS; kind++) {
        if (json_object_set_new(counts, tc_count_name((enum tc_count)kind), integer(sums[kind])) !=
            0) {
            json_decref(counts);
            return NULL;
        }
    }
    return counts;
}

int tc_load_summary_json(const struct tc_load_summary *summary, FILE *file, struct tc_error *err)
{
    uint64_t sums[TC_COUNT_KINDS];
    tc_page_sum(summary->page, sums);
    json_t *latency = json_object();
    for (size_t kind = 0; latency != NULL && kind < TC_LATENCY_KINDS; kind++) {
        int result = json_latency(summary, (enum tc_latency)kind, latency, err);
        if (result != 0) {
            json_decref(latency);
            return result;
        }
    }
    json_t *counts = json_counts(sums);
    json_t *document = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:o, s:o}", "version", TC_VERSION,
        "build", TC_BUILD_NAME, "url", summary->options->url, "threads",
        (json_int_t)summary->options->threads, "elapsed_ns", (json_int_t)summary->elapsed_ns,
        "cpu_user_ns", (json_int_t)summary->user_ns, "cpu_system_ns",
        (json_int_t)summary->system_ns, "transactions_per_s",
        rate(summary, sums[TC_COUNT_COMPLETED]), "abandoned", (json_int_t)abandoned(sums),
        "unstarted", (json_int_t)summary->unstarted, "counts", counts, "latency", latency);
    if (document == NULL) {
        return tc_error_set(err, ENOMEM, "summary: out of memory");
    }
    bool written = json_dumpf(document, file, JSON_INDENT(1)) == 0 && fputc('\n', file) != EOF &&
                   fflush(file) == 0;
    json_decref(document);
    return written ? 0 : tc_error_set(err, EIO, "summary: cannot be written");
}
