/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Answering for a peer that is away. A sender in front of a closed window gives up after net.ipv4.tcp_retries2 probes
 * without an answer, whatever its TCP_USER_TIMEOUT (net/ipv4/tcp_timer.c, tcp_probe_timer). So the probe itself is
 * turned round: it comes back as the peer's word that the window is closed.
 *
 * Nothing is said in the peer's name but what it has said itself: the acknowledgement is the socket's own snd_una, and
 * the sequence number the one that it expects next.
 */
#ifndef WHIMBREL_ANSWER_H
#define WHIMBREL_ANSWER_H

#include <stddef.h>
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "parse.h"
#include "rewrite.h"
#include "timestamps.h"
#include "verdict.h"

/* Words of a TCP header (RFC 9293 section 3.1): ports, sequence, acknowledgement, and length, flags and window. */
#define TCP_WORDS 4
#define TCP_MOST_OPTIONS 10
#define FLAG_ACK 0x00100000U
#define FLAGS_SYN_FIN_RST 0x00070000U

/*
 * The options of the answer. Timestamps change places, so that the one that is echoed is what the peer last had to say
 * and the other passes PAWS (RFC 7323 section 5). What else was there would not be true the other way round: nothing.
 */
__noinline bool turn_options(struct __sk_buff *skb, const struct packet *packet, __u32 length)
{
	__be32 stamps[3] = {};
	__u32 first = 0;

	if (!packet)
		return false;
	if (length >= sizeof(stamps)) {
		if (bpf_skb_load_bytes(skb, packet->transport + TCP_OPTIONS, stamps, sizeof(stamps)))
			return false;
		if (stamps[0] == bpf_htonl(TIMESTAMPS)) {
			/* The sum stays the same. */
			__be32 turned[2] = { stamps[2], stamps[1] };

			if (bpf_skb_store_bytes(skb, packet->transport + TCP_OPTIONS + 4, turned, sizeof(turned), 0))
				return false;
			first = 3;
		}
	}
	for (__u32 i = 0; i < TCP_MOST_OPTIONS; i++) {
		__be32 word;

		if (i < first)
			continue;
		if (i * 4 >= length)
			break;
		if (bpf_skb_load_bytes(skb, packet->transport + TCP_OPTIONS + i * 4, &word, sizeof(word)) ||
		    !replace_word(skb, packet, TCP_OPTIONS + i * 4, word, bpf_htonl(ALL_NOPS)))
			return false;
	}
	return true;
}

/* Addresses change places: no checksum notices. */
static __always_inline bool turn_addresses(struct __sk_buff *skb, const struct packet *packet)
{
	struct address addresses[2];

	if (packet->family == 4) {
		__be32 turned[2] = { packet->destination.words[3], packet->source.words[3] };

		return !bpf_skb_store_bytes(skb, packet->network + offsetof(struct iphdr, saddr), turned,
					    sizeof(turned), 0);
	}
	addresses[0] = packet->destination;
	addresses[1] = packet->source;
	return !bpf_skb_store_bytes(skb, packet->network + offsetof(struct ipv6hdr, saddr), addresses,
				    sizeof(addresses), 0);
}

/*
 * A packet that is not to go out. It disappears, unless it is a window probe or a keepalive of this host's own socket:
 * that is answered. One with a byte in it, which no Linux sends, would put that byte into the stream.
 */
__noinline int hold_or_answer(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	__u32 unacknowledged, expected, length, word;
	__be32 from[TCP_WORDS], to[TCP_WORDS];
	struct bpf_tcp_sock *tcp;
	struct bpf_sock *socket;

	if (!packet || !settings || !settings->tunnel || packet->protocol != IPPROTO_TCP ||
	    packet->part != FRAGMENT_WHOLE)
		return hold(COUNTER_HELD);
	socket = skb->sk;
	socket = socket ? bpf_sk_fullsock(socket) : NULL;
	tcp = socket ? bpf_tcp_sock(socket) : NULL;
	if (!tcp)
		return hold(COUNTER_HELD);
	unacknowledged = tcp->snd_una;
	expected = tcp->rcv_nxt;
	if (bpf_skb_load_bytes(skb, packet->transport, from, sizeof(from)))
		return hold(COUNTER_HELD);
	word = bpf_ntohl(from[3]);
	length = (word >> 28) * 4;
	if (bpf_ntohl(from[1]) != unacknowledged - 1 || !(word & FLAG_ACK) || word & FLAGS_SYN_FIN_RST ||
	    length < TCP_OPTIONS || packet->end != packet->transport + length)
		return hold(COUNTER_HELD);
	to[0] = from[0] << 16 | from[0] >> 16;
	to[1] = bpf_htonl(expected);
	to[2] = bpf_htonl(unacknowledged);
	to[3] = bpf_htonl((word & 0xf0000000) | FLAG_ACK);
	for (int i = 0; i < TCP_WORDS; i++)
		if (!replace_word(skb, packet, i * 4, from[i], to[i]))
			return hold(COUNTER_HELD);
	if (!turn_options(skb, packet, length - TCP_OPTIONS) || !turn_addresses(skb, packet))
		return hold(COUNTER_HELD);
	count(COUNTER_ANSWERED);
	skb->tc_index = RENUMBERED;
	/* A device without link headers: they are taken off. */
	return bpf_redirect(settings->tunnel, BPF_F_INGRESS);
}

#endif
