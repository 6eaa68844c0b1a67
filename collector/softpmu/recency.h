/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The order in which the ways of a set were used, of sets of up to four ways: 2 bits per way, the
 * latest used lowest, in a byte. What a use makes of it is looked up: that is faster than working
 * it out, and than asking whether it changes. */
#ifndef TC_SOFTPMU_RECENCY_H
#define TC_SOFTPMU_RECENCY_H

#include <stdint.h>

#define TC_RECENCY_WAYS    4
#define TC_RECENCY_INITIAL 0xe4 /* 3, 2, 1, 0 */

/* [order][way]: the order after that way's use. */
extern uint8_t tc_recency_after[256][TC_RECENCY_WAYS];

/* Fills the table; before any use, as often as anybody likes, but not from several threads. */
void tc_recency_init(void);

#endif
