/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The timestamps option of TCP (RFC 7323) as Linux writes it: first of all, with two NOPs before (appendix A). */
#ifndef WHIMBREL_TIMESTAMPS_H
#define WHIMBREL_TIMESTAMPS_H

/* Where options begin in a TCP header. */
#define TCP_OPTIONS 20
#define TIMESTAMPS 0x0101080aU
#define ALL_NOPS 0x01010101U

#endif
