/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * tlscost-machine-check FILE: says what is wrong with a machine file before anything runs on it.
 * Exit codes: 0 nothing; 2 the file or the arguments are bad. */
#include <stdio.h>

#include "collector/softpmu/machine.h"

int main(int argc, char **argv)
{
    static struct tc_machine machine;
    struct tc_error err = {""};
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    if (tc_machine_load(argv[1], NULL, &machine, &err) != 0) {
        (void)fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    return 0;
}
