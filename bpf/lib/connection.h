/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Looking up this host's sockets by the names of a connection. */
#ifndef WHIMBREL_CONNECTION_H
#define WHIMBREL_CONNECTION_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "address.h"
#include "parse.h"

/* A flow as the kernel looks its socket up; returns how long the name is. */
static __always_inline __u32 name_socket(struct bpf_sock_tuple *tuple, const struct flow_tuple *own)
{
	if (is_ipv4(&own->remote)) {
		tuple->ipv4.saddr = own->remote.words[3];
		tuple->ipv4.daddr = own->local.words[3];
		tuple->ipv4.sport = own->remote_port;
		tuple->ipv4.dport = own->local_port;
		return sizeof(tuple->ipv4);
	}
	__builtin_memcpy(tuple->ipv6.saddr, &own->remote, 16);
	__builtin_memcpy(tuple->ipv6.daddr, &own->local, 16);
	tuple->ipv6.sport = own->remote_port;
	tuple->ipv6.dport = own->local_port;
	return sizeof(tuple->ipv6);
}

/* What came in, and is under these names, is of this flow. */
static __always_inline void name_inbound(struct flow_tuple *own, const struct packet *packet)
{
	own->local = packet->destination;
	own->remote = packet->source;
	own->local_port = packet->destination_port;
	own->remote_port = packet->source_port;
	own->transport = packet->protocol;
}

/* Too much for the stack beside everything else. Programs on tc are not interrupted by one another. */
struct headers {
	__u8 ip[sizeof(struct ipv6hdr)]; /* of IPv4: the header, and what follows it */
	struct tcphdr tcp;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct headers);
} headers SEC(".maps");

/*
 * Is this the last segment of a handshake whose first a listener answered by a SYN cookie? Then nothing but the
 * listener is there yet, and the connection is made of what the segment acknowledges.
 */
static __noinline bool answers_cookie(struct __sk_buff *skb, const struct packet *packet, struct bpf_sock *listener)
{
	struct headers *copy;
	__u32 zero = 0;

	copy = bpf_map_lookup_elem(&headers, &zero);
	return copy && packet->part == FRAGMENT_WHOLE &&
	       !bpf_skb_load_bytes(skb, packet->network, copy->ip, sizeof(copy->ip)) &&
	       !bpf_skb_load_bytes(skb, packet->transport, &copy->tcp, sizeof(copy->tcp)) &&
	       !bpf_tcp_check_syncookie(listener, copy->ip, sizeof(copy->ip), &copy->tcp, sizeof(copy->tcp));
}

#endif
