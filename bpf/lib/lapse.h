/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that go on after a lapse, a time in which what they sent got nowhere. The peer echoes the timestamp of what it
 * had last, so the kernel measures the whole lapse as one round trip (net/ipv4/tcp_input.c, tcp_ack_update_rtt: what
 * was sent again has no better measure). For a while the retransmission timer is then a multiple of the lapse, and
 * whatever is lost just then, or was and is taken for found (tcp_try_undo_loss), waits for it: half a minute after half
 * a minute.
 *
 * So such an echo is made that of a moment ago. To take the timestamps out would measure nothing, and the back-off is
 * given up for a measure only (tcp_ack_update_rtt, RFC 6298 section 5.7): where the segment comes before the kick,
 * which finds nothing to undo once something was acknowledged, the timer would stay where the lapse has brought it.
 */
#ifndef WHIMBREL_LAPSE_H
#define WHIMBREL_LAPSE_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "parse.h"
#include "rewrite.h"
#include "timestamps.h"
#include "verdict.h"

/* The word of a TCP header that begins with its length in words. */
#define TCP_LENGTH 12
/* The round trip that a stale echo is made to show, in ms: as long as most are, and nothing beside a lapse. */
#define ROUND_TRIP 100

/* Renews the echo of a segment for `own`, where it is of what was sent before a lapse. False: drop it. */
static __noinline bool forget_lapse(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	struct flow_entry *flow;
	__u32 round_trip;
	__be32 found[3];
	__u8 length, unit;

	if (!packet || !own || packet->protocol != IPPROTO_TCP || packet->part == FRAGMENT_LATER)
		return true;
	flow = find_flow(own);
	unit = flow ? flow->lapsed : LAPSED_NOT;
	if (!flow || unit == LAPSED_NOT)
		return true;
	if (bpf_skb_load_bytes(skb, packet->transport + TCP_LENGTH, &length, sizeof(length)) ||
	    (length >> 4) * 4 < TCP_OPTIONS + (int)sizeof(found) ||
	    bpf_skb_load_bytes(skb, packet->transport + TCP_OPTIONS, found, sizeof(found)) ||
	    found[0] != bpf_htonl(TIMESTAMPS))
		return true;
	if ((__s32)(bpf_ntohl(found[2]) - flow->echoes_from) >= 0) {
		/* The peer has had something new. */
		flow->lapsed = LAPSED_NOT;
		return true;
	}
	round_trip = unit == LAPSED_MICROSECONDS ? ROUND_TRIP * 1000 : ROUND_TRIP;
	if (!replace_word(skb, packet, TCP_OPTIONS + 8, found[2], bpf_htonl(time_stamp(flow, unit) - round_trip))) {
		count(COUNTER_DROPPED_RESTORE);
		return false;
	}
	count(COUNTER_STALE_ECHO);
	return true;
}

#endif
