/* A loop whose instructions are known, against which counters are checked. */
#ifndef TC_COLLECTOR_KNOWN_LOOP_H
#define TC_COLLECTOR_KNOWN_LOOP_H

#include <stdint.h>

/* Retires two instructions an iteration in user mode, and a few around them; other processors than
 * x86 and ARM 64 retire at least two. */
static inline void tc_known_loop(uint64_t iterations)
{
#if defined(__x86_64__) || defined(__i386__)
    unsigned long left = (unsigned long)iterations;
    __asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(left) : : "cc");
#elif defined(__aarch64__)
    uint64_t left = iterations;
    __asm__ volatile("1: subs %0, %0, #1\n\tb.ne 1b" : "+r"(left) : : "cc");
#else
    for (volatile uint64_t left = iterations; left > 0; left--) {
    }
#endif
}

#endif
