/* Idle correction and what else follows from idle time: pure arithmetic. */
#ifndef TC_COLLECTOR_IDLE_H
#define TC_COLLECTOR_IDLE_H

#include <stdint.h>

/* Count of the window less what the machine counts by itself while idle:
 * raw - (idle_raw / idle_elapsed) x the time for which that went on in the window, its idle time
 * (a simulated machine's ticks go on throughout). May be negative within the noise. */
double tc_idle_correct(double raw, double idle_raw, uint64_t idle_elapsed_ns,
                       uint64_t window_idle_ns);

/* raw x enabled / running: what the event would have counted without multiplexing.
 * running_ns must not be 0. */
double tc_idle_scale(uint64_t raw, uint64_t enabled_ns, uint64_t running_ns);

/* Idle time of an interval from two clocks of the same accounting: `ticked` is complete but a
 * multiple of tick_ns; `fine` has nanoseconds but lacks a sleep under way. The fine one is clamped
 * to within a tick of the other, and to the interval. */
uint64_t tc_idle_combine(uint64_t ticked_ns, uint64_t fine_ns, uint64_t tick_ns,
                         uint64_t elapsed_ns);

/* Reference cycles that the CPU spent neither idle nor stolen. */
uint64_t tc_idle_ref_cycles(uint64_t elapsed_ns, uint64_t idle_ns, uint64_t steal_ns,
                            uint64_t tsc_hz);

#endif
