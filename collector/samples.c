#include "collector/samples.h"

#include <errno.h>
#include <stdlib.h>

/* Slots of one CPU are next to each other, and as many for each. */
static size_t slots_of_one_cpu(const struct tc_counters *counters)
{
    size_t slots = 0;
    while (slots < counters->slots_count && counters->slots[slots].cpu == counters->slots[0].cpu) {
        slots++;
    }
    return slots;
}

int tc_samples_open(struct tc_samples *samples, const struct tc_counters *counters, size_t rows_max,
                    struct tc_error *err)
{
    size_t slots = slots_of_one_cpu(counters);
    *samples = (struct tc_samples){.rows_max = rows_max};
    samples->count = slots == 0 ? 0 : counters->slots_count / slots;
    samples->series = calloc(samples->count + 1, sizeof(*samples->series));
    bool whole = samples->series != NULL;
    for (size_t i = 0; whole && i < samples->count; i++) {
        struct tc_series *series = &samples->series[i];
        *series = (struct tc_series){.first_slot = i * slots, .slots = slots};
        series->t_ns = calloc(rows_max, sizeof(uint64_t));
        series->counts = calloc(rows_max, slots * sizeof(uint64_t));
        whole = series->t_ns != NULL && series->counts != NULL;
    }
    return whole ? 0 : tc_error_set(err, ENOMEM, "out of memory for %zu samples", rows_max);
}

void tc_samples_close(struct tc_samples *samples)
{
    for (size_t i = 0; samples->series != NULL && i < samples->count; i++) {
        free(samples->series[i].t_ns);
        free(samples->series[i].counts);
    }
    free(samples->series);
    *samples = (struct tc_samples){0};
}

static bool goes_back(const struct tc_series *series, const struct tc_reading *begin,
                      const struct tc_reading *now)
{
    for (size_t slot = series->first_slot; slot < series->first_slot + series->slots; slot++) {
        if (now[slot].raw < begin[slot].raw) {
            return true;
        }
    }
    return false;
}

void tc_samples_add(struct tc_samples *samples, size_t first_slot, uint64_t t_ns,
                    const struct tc_reading *begin, const struct tc_reading *now)
{
    struct tc_series *series = &samples->series[first_slot / samples->series[0].slots];
    if (series->rows > 0 && t_ns <= series->t_ns[series->rows - 1]) {
        return;
    }
    if (series->rows == samples->rows_max || goes_back(series, begin, now)) {
        samples->lost++;
        return;
    }
    size_t row = series->rows++;
    series->t_ns[row] = t_ns;
    for (size_t i = 0; i < series->slots; i++) {
        size_t slot = first_slot + i;
        series->counts[row * series->slots + i] = now[slot].raw - begin[slot].raw;
    }
}

void tc_samples_add_all(struct tc_samples *samples, uint64_t t_ns, const struct tc_reading *begin,
                        const struct tc_reading *now)
{
    for (size_t i = 0; i < samples->count; i++) {
        tc_samples_add(samples, samples->series[i].first_slot, t_ns, begin, now);
    }
}
