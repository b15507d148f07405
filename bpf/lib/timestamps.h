/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The timestamps option of TCP (RFC 7323). */
#ifndef WHIMBREL_TIMESTAMPS_H
#define WHIMBREL_TIMESTAMPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"

/* Where options begin in a TCP header. */
#define TCP_OPTIONS 20
/* As Linux writes it: first of all, with two NOPs before (appendix A). */
#define TIMESTAMPS 0x0101080aU
#define ALL_NOPS 0x01010101U

/* The TSval that this end of a flow whose clock was noted would send now (include/net/tcp.h, tcp_time_stamp_ts). */
static __always_inline __u32 time_stamp(const struct flow_entry *flow, __u8 unit)
{
	__u64 now = bpf_ktime_get_ns();

	return (__u32)(unit == LAPSED_MICROSECONDS ? now / 1000 : now / 1000000) + flow->clock;
}

#endif
