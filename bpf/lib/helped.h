/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that are answered on in the name of a peer that is away (docs/decisions/0010-migration-helpers.md).
 *
 * What was put into the peer's stream shifts all that the peer itself sends after it: its sequence numbers are raised
 * on their way to the socket, and what the socket acknowledges is lowered on its way to the peer, whatever carries the
 * flow and also at home, for the rest of its life. The other direction keeps its numbers.
 */
#ifndef WHIMBREL_HELPED_H
#define WHIMBREL_HELPED_H

#include <stddef.h>
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "answer.h"
#include "connection.h"
#include "parse.h"
#include "rewrite.h"
#include "verdict.h"

/* In the word of a TCP header that has length, flags and window. */
#define FLAGS_FIN_SYN_RST_PSH_ACK 0x001f0000U
#define WINDOW_BITS 0x0000ffffU

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define MOST_SACK_BLOCKS 4
/* Options before SACK that are looked over: two NOPs each before timestamps and before SACK, and as many again. */
#define MOST_OPTIONS 10

static __always_inline struct helped_flow *find_helped(const struct settings *settings, const struct flow_tuple *own)
{
	if (settings->idle & IDLE_HELPED || own->transport != IPPROTO_TCP)
		return NULL;
	return bpf_map_lookup_elem(&helped, own);
}

static __always_inline bool is_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

/* Does a TCP socket send this, and not the daemon? */
static __always_inline bool is_of_socket(struct __sk_buff *skb)
{
	struct bpf_sock *socket = skb->sk;

	socket = socket ? bpf_sk_fullsock(socket) : NULL;
	return socket && bpf_tcp_sock(socket);
}

/* What the socket has of the peer's out of order (RFC 2018), in the peer's numbers. */
static __noinline bool lower_blocks(struct __sk_buff *skb, const struct packet *packet, __u32 length, __u32 offset)
{
	__u32 at = TCP_OPTIONS, blocks;

	if (!packet)
		return false;
	for (int i = 0; i < MOST_OPTIONS; i++) {
		__u8 option[2] = {};

		/* What is no option of two bytes at least is the end, or a NOP. */
		if (at + 2 > length || bpf_skb_load_bytes(skb, packet->transport + at, option, sizeof(option)))
			return true;
		if (option[0] == OPTION_END)
			return true;
		if (option[0] == OPTION_NOP) {
			at += 1;
			continue;
		}
		if (option[1] < 2)
			return true;
		if (option[0] != OPTION_SACK) {
			at += option[1];
			continue;
		}
		blocks = (__u32)(option[1] - 2) >> 3;
		/* Whole words in the checksum: so does Linux put them. */
		if (at & 1 || at + 2 + blocks * 8 > length)
			return false;
		for (__u32 edge = 0; edge < 2 * MOST_SACK_BLOCKS; edge++) {
			__u32 place = at + 2 + edge * 4;
			__be32 number;

			if (edge >= 2 * blocks)
				break;
			if (bpf_skb_load_bytes(skb, packet->transport + place, &number, sizeof(number)) ||
			    !replace_word(skb, packet, place, number, bpf_htonl(bpf_ntohl(number) - offset)))
				return false;
		}
		return true;
	}
	return true;
}

/*
 * A segment that leaves this host for the peer, still under its own names: what it acknowledges is lowered. False: drop
 * it. It is marked, since it may come by on another device.
 */
static __noinline bool lower(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	const struct settings *settings = get_settings();
	const struct helped_flow *flow;
	__be32 words[TCP_WORDS];
	__u32 word, offset;

	if (!packet || !own || !settings)
		return false;
	flow = find_helped(settings, own);
	if (!flow || !flow->offset || packet->part == FRAGMENT_LATER)
		return true;
	offset = flow->offset;
	if (bpf_skb_load_bytes(skb, packet->transport, words, sizeof(words)))
		return false;
	word = bpf_ntohl(words[3]);
	/* Without ACK the number means nothing. */
	if (word & FLAG_ACK &&
	    (!replace_word(skb, packet, 8, words[2], bpf_htonl(bpf_ntohl(words[2]) - offset)) ||
	     !lower_blocks(skb, packet, (word >> 28) * 4, offset)))
		return false;
	skb->tc_index = TRANSLATED;
	return true;
}

/* What becomes of a packet of a helped flow on its way out. */
enum steered {
	STEERED_ON = 0, /* as any other */
	STEERED_TO_HELPER,
	STEERED_TO_HOLD,
};

/*
 * What a socket sends goes to the daemon while its peer is helped out for, or waits. What the daemon itself sends in
 * the flow passes.
 */
static __noinline int steer(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	const struct settings *settings = get_settings();
	const struct helped_flow *flow;
	__be32 words[TCP_WORDS];
	__u32 word;

	if (!packet || !own || !settings)
		return STEERED_ON;
	flow = find_helped(settings, own);
	if (!flow || flow->phase == HELPED_OVER || !is_of_socket(skb))
		return STEERED_ON;
	if (flow->phase == HELPED_KEPT && settings->tunnel && packet->part == FRAGMENT_WHOLE)
		return STEERED_TO_HELPER;
	if (flow->phase != HELPED_DELIVERED || packet->part != FRAGMENT_WHOLE)
		return STEERED_TO_HOLD;
	/*
	 * The peer gets what was kept first. Meanwhile it is told what of its own has arrived: by acknowledgements
	 * alone, with a sequence number that it expects.
	 */
	if (bpf_skb_load_bytes(skb, packet->transport, words, sizeof(words)))
		return STEERED_TO_HOLD;
	word = bpf_ntohl(words[3]);
	if ((word & (FLAGS_SYN_FIN_RST | FLAG_ACK)) != FLAG_ACK ||
	    packet->end != packet->transport + (word >> 28) * 4)
		return STEERED_TO_HOLD;
	return replace_word(skb, packet, 4, words[1], bpf_htonl(flow->delivered)) ? STEERED_ON : STEERED_TO_HOLD;
}

/*
 * Tells the daemon what the peer has of what was kept for it. What is left out is made up for by the peer's next word.
 */
static __always_inline void report_acknowledged(const struct flow_tuple *own, __u32 acknowledgement, __u32 window)
{
	struct event *event;

	if (arrivals_wait())
		return;
	event = bpf_ringbuf_reserve(&arrivals, sizeof(*event), 0);
	if (!event)
		return;
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple = *own;
	event->kind = EVENT_ACKNOWLEDGED;
	event->acknowledgement = acknowledgement;
	event->index = window;
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
}

/*
 * How far from the next that a socket expects a segment may be that is listened to, in bytes either way: what was sent
 * again, and what is in flight. Who only knows the names of a connection has to guess that (RFC 5961 section 5).
 */
#define NEAR (1U << 20)

/* Is this sequence number of the peer's, as its socket here knows it, one that the peer may be at? */
static __noinline bool is_near(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own,
			       __u32 sequence)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_tcp_sock *tcp;
	struct bpf_sock *socket;
	bool near;

	if (!packet || !own)
		return false;
	socket = bpf_skc_lookup_tcp(skb, &tuple, name_socket(&tuple, own), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	tcp = bpf_tcp_sock(socket);
	near = tcp && sequence - tcp->rcv_nxt + NEAR < 2 * NEAR;
	bpf_sk_release(socket);
	return near;
}

/* Is this flow's socket at rest, or has it just gone, so that what comes for it is the daemon's to hand on? */
static __noinline bool rests(struct __sk_buff *skb, const struct flow_tuple *own)
{
	const struct settings *settings = get_settings();
	const struct helped_flow *flow;

	(void)skb;
	if (!own || !settings || settings->idle & IDLE_HELPED)
		return false;
	flow = bpf_map_lookup_elem(&helped, own);
	return flow && flow->phase == HELPED_RESTS;
}

/*
 * A segment of the peer's, under this host's names for the flow: it takes its place behind what was put in. False: drop
 * it.
 */
static __noinline bool raise(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	const struct settings *settings = get_settings();
	struct helped_flow *flow;
	__be32 words[TCP_WORDS];
	__u32 word, acknowledgement;

	if (!packet || !own || !settings)
		return true;
	/* A device on top of another shows the packet twice. */
	if (skb->tc_index == RENUMBERED || packet->part == FRAGMENT_LATER)
		return true;
	flow = find_helped(settings, own);
	if (!flow)
		return true;
	/* Of a peer that is back and has not been let in yet, or of somebody who has its address. */
	if (flow->phase == HELPED_KEPT || flow->phase == HELPED_HELD) {
		count(COUNTER_HELD_IN);
		return false;
	}
	if (bpf_skb_load_bytes(skb, packet->transport, words, sizeof(words)))
		return false;
	word = bpf_ntohl(words[3]);
	acknowledgement = bpf_ntohl(words[2]);
	if (flow->phase == HELPED_DELIVERED && word & FLAG_ACK) {
		/* What is not to be believed may still be for the socket, which judges for itself. */
		if (is_near(skb, packet, own, bpf_ntohl(words[1]) + flow->offset)) {
			if (is_before(flow->delivered, acknowledgement) &&
			    !is_before(flow->acknowledged, acknowledgement))
				flow->delivered = acknowledgement;
			report_acknowledged(own, acknowledgement, word & WINDOW_BITS);
		}
		/*
		 * To the socket all was acknowledged. It is to send nothing yet, so it is told of a closed window; how
		 * far it is open the peer is asked when this is over.
		 */
		if (is_before(acknowledgement, flow->acknowledged) &&
		    (!replace_word(skb, packet, 8, words[2], bpf_htonl(flow->acknowledged)) ||
		     !replace_word(skb, packet, 12, words[3], bpf_htonl(word & ~WINDOW_BITS))))
			return false;
	}
	if (flow->offset && !replace_word(skb, packet, 4, words[1], bpf_htonl(bpf_ntohl(words[1]) + flow->offset)))
		return false;
	skb->tc_index = RENUMBERED;
	return true;
}

#endif
