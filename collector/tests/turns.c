/* What a guest runs to show what is counted in it: one thread on each CPU, and they take turns, at
 * memory that they share (coherence) or at work of known size.
 *
 *   turns PORT CPUS
 *
 * Each connection brings "PATTERN ROUNDS\n" and gets "done\n" after so many rounds, in which each
 * CPU has one turn. A CPU spins, in user mode, on a flag that nobody but its predecessor writes and
 * that lies in a line of its own; so a turn itself costs the same whatever the pattern, and
 * "nothing" shows what. The patterns' expected costs: analysis/tests/test_guest_coherence.py, and
 * test_guest_known_answers.py. */
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CPUS_MAX   8
#define LINE_WORDS 16 /* as long as any machine's line */

/* QEMU tells the plugin of a store just after it. Who sees the flag's new value at once may read it
 * before the models know of the store, and no transaction is counted for that turn; who reads it
 * again a moment later pays for it in any case, and once. */
#define SETTLE_PAUSES 64

struct line {
    _Alignas(LINE_WORDS * sizeof(uint32_t)) volatile uint32_t word[LINE_WORDS];
};

typedef void touch(unsigned cpu, uint32_t round);

static struct line shared;
static struct line own[CPUS_MAX];
static struct line flag[CPUS_MAX];
static unsigned cpus;
static uint32_t rounds;
static touch *pattern;
static pthread_barrier_t together;

static void nothing(unsigned cpu, uint32_t round)
{
    (void)cpu;
    (void)round;
}

static void write_one_word(unsigned cpu, uint32_t round)
{
    (void)cpu;
    shared.word[0] = round;
}

static void write_neighbours(unsigned cpu, uint32_t round)
{
    shared.word[cpu] = round;
}

static void write_apart(unsigned cpu, uint32_t round)
{
    own[cpu].word[0] = round;
}

static void read_shared(unsigned cpu, uint32_t round)
{
    if (cpu == 0)
        shared.word[0] = round;
    else
        (void)shared.word[0];
}

static void migrate(unsigned cpu, uint32_t round)
{
    (void)cpu;
    shared.word[0] = shared.word[0] + round;
}

static void add_locked(unsigned cpu, uint32_t round)
{
    (void)cpu;
    (void)__atomic_fetch_add(&shared.word[0], round, __ATOMIC_SEQ_CST);
}

/* Work of known size: 2 instructions and a branch each time round. */
static inline void spin(uint32_t times)
{
    __asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(times) : : "cc");
}

static void spin_1000(unsigned cpu, uint32_t round)
{
    (void)cpu;
    (void)round;
    spin(1000);
}

static void spin_2000(unsigned cpu, uint32_t round)
{
    (void)cpu;
    (void)round;
    spin(2000);
}

/* A load each 64 bytes, 3 instructions: more lines than any L1D holds, and of each none comes again
 * before all others. */
static inline void walk(uintptr_t bytes)
{
    /* Not zero: pages that nobody has written are all one and the same. */
    static _Alignas(4096) uint8_t buffer[256 << 10] = {1};
    uint32_t loaded;
    __asm__ volatile("1: sub $64, %0\n\tmov (%2,%0), %1\n\tjnz 1b"
                     : "+r"(bytes), "=&r"(loaded)
                     : "r"(buffer)
                     : "cc", "memory");
}

static void walk_128k(unsigned cpu, uint32_t round)
{
    (void)cpu;
    (void)round;
    walk(128 << 10);
}

static void walk_256k(unsigned cpu, uint32_t round)
{
    (void)cpu;
    (void)round;
    walk(256 << 10);
}

/* One instruction, whatever the size. */
static inline void move_string(size_t bytes)
{
    static uint8_t from[2000];
    static uint8_t to[2000];
    void *source = from;
    void *destination = to;
    __asm__ volatile("rep movsb" : "+S"(source), "+D"(destination), "+c"(bytes) : : "memory");
}

static void move_1000(unsigned cpu, uint32_t round)
{
    (void)cpu;
    (void)round;
    move_string(1000);
}

static void move_2000(unsigned cpu, uint32_t round)
{
    (void)cpu;
    (void)round;
    move_string(2000);
}

static const struct {
    const char *name;
    touch *touch;
} patterns[] = {
    {"nothing", nothing},
    {"write_one_word", write_one_word},
    {"write_neighbours", write_neighbours},
    {"write_apart", write_apart},
    {"read_shared", read_shared},
    {"migrate", migrate},
    {"add_locked", add_locked},
    {"spin_1000", spin_1000},
    {"spin_2000", spin_2000},
    {"walk_128k", walk_128k},
    {"walk_256k", walk_256k},
    {"move_1000", move_1000},
    {"move_2000", move_2000},
};

_Noreturn static void fail(const char *what)
{
    perror(what);
    exit(EXIT_FAILURE);
}

static void stay_on(unsigned cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fail("sched_setaffinity");
}

static void take_turns(unsigned cpu)
{
    bool is_last = cpu == cpus - 1;
    volatile uint32_t *mine = &flag[cpu].word[0];
    volatile uint32_t *next = &flag[is_last ? 0 : cpu + 1].word[0];
    for (uint32_t round = 1; round <= rounds; round++) {
        while (*mine != round)
            __builtin_ia32_pause();
        for (int i = 0; i < SETTLE_PAUSES; i++)
            __builtin_ia32_pause();
        (void)*mine;
        pattern(cpu, round);
        /* x86 keeps stores in order, so the next CPU sees what this one has done. */
        *next = is_last ? round + 1 : round;
    }
}

/* Threads outlive the requests: starting one costs more than many turns. */
static void *work(void *number)
{
    unsigned cpu = *(const unsigned *)number;
    stay_on(cpu);
    for (;;) {
        (void)pthread_barrier_wait(&together);
        take_turns(cpu);
        (void)pthread_barrier_wait(&together);
    }
    return NULL;
}

static void start_threads(void)
{
    static unsigned numbers[CPUS_MAX];
    pthread_t thread;
    if (pthread_barrier_init(&together, NULL, cpus) != 0)
        fail("pthread_barrier_init");
    for (unsigned cpu = 1; cpu < cpus; cpu++) {
        numbers[cpu] = cpu;
        if (pthread_create(&thread, NULL, work, &numbers[cpu]) != 0)
            fail("pthread_create");
    }
    stay_on(0);
}

static void run(void)
{
    for (unsigned cpu = 0; cpu < cpus; cpu++)
        flag[cpu].word[0] = cpu == 0;
    (void)pthread_barrier_wait(&together);
    take_turns(0);
    (void)pthread_barrier_wait(&together);
}

static void answer(int connection)
{
    char request[64] = {0};
    if (recv(connection, request, sizeof request - 1, 0) <= 0)
        return; /* a probe: whether somebody listens */
    char *end = strchr(request, ' ');
    if (end == NULL || (rounds = (uint32_t)strtoul(end, NULL, 10)) == 0)
        fail("expected PATTERN ROUNDS");
    *end = '\0';
    pattern = NULL;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        if (strcmp(request, patterns[i].name) == 0)
            pattern = patterns[i].touch;
    }
    if (pattern == NULL)
        fail(request);
    run();
    if (send(connection, "done\n", 5, 0) != 5)
        fail("send");
}

int main(int argc, char **argv)
{
    cpus = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    if (cpus < 1 || cpus > CPUS_MAX) {
        (void)fprintf(stderr, "usage: turns PORT CPUS\n");
        return EXIT_FAILURE;
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(argv[1], NULL, 10)),
    };
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 1) != 0)
        fail("listen");
    start_threads();
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection < 0)
            fail("accept");
        answer(connection);
        (void)close(connection);
    }
}
