#include "collector/idle.h"

double tc_idle_correct(double raw, double idle_raw, uint64_t idle_elapsed_ns,
                       uint64_t window_idle_ns)
{
    return raw - idle_raw / (double)idle_elapsed_ns * (double)window_idle_ns;
}

double tc_idle_scale(uint64_t raw, uint64_t enabled_ns, uint64_t running_ns)
{
    return (double)raw * ((double)enabled_ns / (double)running_ns);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t tc_idle_combine(uint64_t ticked_ns, uint64_t fine_ns, uint64_t tick_ns,
                         uint64_t elapsed_ns)
{
    uint64_t low = ticked_ns > tick_ns ? ticked_ns - tick_ns : 0;
    uint64_t high = ticked_ns + tick_ns;
    uint64_t idle_ns = fine_ns < low ? low : least(fine_ns, high);
    return least(idle_ns, elapsed_ns);
}

uint64_t tc_idle_ref_cycles(uint64_t elapsed_ns, uint64_t idle_ns, uint64_t steal_ns,
                            uint64_t tsc_hz)
{
    uint64_t away_ns = least(idle_ns + steal_ns, elapsed_ns);
    return (uint64_t)((double)(elapsed_ns - away_ns) * ((double)tsc_hz / 1e9));
}
