// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * An option in TCP's handshake by which two hosts that run Whimbrel know of each other, and of a NAT in between
 * (docs/decisions/0117-an-option-in-the-handshake.md). It belongs to the root of cgroup v2, so it runs for every
 * network namespace of the machine, and looks at one only. It ends with the process that attached it.
 *
 * Whoever is on the path reads the option and can write one: it is a hint, and nothing is believed for it.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/address.h"
#include "lib/field.h"
#include "maps.h"

#define FAMILY_INET 2
#define FLAG_SYN 0x02
#define FLAG_ACK 0x10

/* An experimental option (RFC 4727) with an identifier of its own (RFC 6994). */
#define KIND_EXPERIMENT 253
#define IDENTIFIER 0x5762
#define FORM_SYN 1
#define FORM_ANSWER 2

/* No longer than what a usual SYN has left of its 40 bytes. */
struct greeting {
	__u8 kind;
	__u8 length;
	__be16 identifier;
	__u8 form;
	__u8 zero;
	__be16 source_port;
	__be32 source; /* of IPv6 a digest */
	__be32 destination;
	__be16 destination_port;
} __attribute__((packed));

/* A destination that answered no SYN but one without the option is left without it for so long. */
#define WITHOUT_FOR (3600ull * 1000000000)

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct address);
	__type(value, __u64); /* until then; CLOCK_MONOTONIC, ns */
} left_out SEC(".maps");

/*
 * What SYNs said that have been answered (`enum heard` and `greeted_end`), until their connections are established.
 * With SYN cookies there is no socket that could have it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_tuple);
	__type(value, __u32);
} greeted SEC(".maps");

/* With the ends that have other names there, as bits below. */
enum heard {
	HEARD_NOTHING = 0,
	HEARD_IT = 4,
	/* The segment is not there any more, as for an answer that is sent again. */
	HEARD_UNREADABLE = 8,
};

/* linux/errno.h, linux/tcp_states.h */
#define ERROR_NO_ENTRY (-2)
#define STATE_SYN_SENT 2
#define STATE_CLOSE 7

static __always_inline bool is_ours(struct bpf_sock_ops *context)
{
	const struct settings *settings = get_settings();

	return settings && bpf_get_netns_cookie(context) == settings->namespace_cookie;
}

static __always_inline void read_ends(struct bpf_sock_ops *context, struct flow_tuple *own)
{
	if (context->family == FAMILY_INET) {
		map_ipv4(&own->local, FIELD(context, local_ip4));
		map_ipv4(&own->remote, FIELD(context, remote_ip4));
	} else {
		own->local.words[0] = FIELD(context, local_ip6[0]);
		own->local.words[1] = FIELD(context, local_ip6[1]);
		own->local.words[2] = FIELD(context, local_ip6[2]);
		own->local.words[3] = FIELD(context, local_ip6[3]);
		own->remote.words[0] = FIELD(context, remote_ip6[0]);
		own->remote.words[1] = FIELD(context, remote_ip6[1]);
		own->remote.words[2] = FIELD(context, remote_ip6[2]);
		own->remote.words[3] = FIELD(context, remote_ip6[3]);
	}
	own->local_port = bpf_htons((__u16)context->local_port);
	own->remote_port = bpf_htons((__u16)bpf_ntohl(context->remote_port));
	own->transport = IPPROTO_TCP;
}

static __always_inline bool stays_here(const struct address *address)
{
	if (is_ipv4(address))
		return bpf_ntohl(address->words[3]) >> 24 == 127;
	return !address->words[0] && !address->words[1] && !address->words[2] && address->words[3] == bpf_htonl(1);
}

/* FNV-1a, of words: whoever reads the option knows the addresses anyhow. */
static __always_inline __be32 digest(const struct address *address)
{
	__u32 value = 2166136261u;

	if (is_ipv4(address))
		return address->words[3];
	for (int i = 0; i < 4; i++)
		value = (value ^ bpf_ntohl(address->words[i])) * 16777619u;
	return bpf_htonl(value);
}

static __always_inline void listen_for_options(struct bpf_sock_ops *context, bool on)
{
	__u32 flags = context->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;

	bpf_sock_ops_cb_flags_set(context, on ? flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG : flags);
}

/* What the option of a segment says, of what was sent to this end. */
static __always_inline __u32 read_greeting(struct bpf_sock_ops *context, const struct flow_tuple *own, __u8 form,
					   __u64 where)
{
	__u32 heard = HEARD_IT;
	long length;

	struct greeting greeting = { .kind = KIND_EXPERIMENT, .length = 4, .identifier = bpf_htons(IDENTIFIER) };

	length = bpf_load_hdr_opt(context, &greeting, sizeof(greeting), where);
	if (length == ERROR_NO_ENTRY)
		return HEARD_UNREADABLE;
	if (length != sizeof(greeting) || greeting.form != form)
		return HEARD_NOTHING;
	if (greeting.source != digest(&own->remote) || greeting.source_port != own->remote_port)
		heard |= GREETED_FAR;
	if (greeting.destination != digest(&own->local) || greeting.destination_port != own->local_port)
		heard |= GREETED_NEAR;
	return heard;
}

static __always_inline void write_greeting(struct bpf_sock_ops *context, const struct flow_tuple *own, __u8 form)
{
	struct greeting greeting = {
		.kind = KIND_EXPERIMENT,
		.length = sizeof(greeting),
		.identifier = bpf_htons(IDENTIFIER),
		.form = form,
		.source = digest(&own->local),
		.source_port = own->local_port,
		.destination = digest(&own->remote),
		.destination_port = own->remote_port,
	};

	bpf_store_hdr_opt(context, &greeting, sizeof(greeting), 0);
}

static __always_inline void report(const struct flow_tuple *own, __u32 heard, __u32 origin)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	/* A hint that is lost costs nothing. */
	if (!event)
		return;
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple = *own;
	event->kind = EVENT_GREETED;
	event->origin = origin;
	event->index = heard & (GREETED_NEAR | GREETED_FAR);
	/* Its reader is woken for the connection itself, or looks by its timer. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void begin(struct bpf_sock_ops *context, const struct flow_tuple *own)
{
	const __u64 *until = bpf_map_lookup_elem(&left_out, &own->remote);

	if (stays_here(&own->remote) || (until && *until >= bpf_ktime_get_ns()))
		return;
	listen_for_options(context, true);
	/* It stays set: another program of this cgroup may want it too, and there are few changes. */
	bpf_sock_ops_cb_flags_set(context, context->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

static __always_inline void leave_out(const struct address *remote)
{
	__u64 until = bpf_ktime_get_ns() + WITHOUT_FOR;

	bpf_map_update_elem(&left_out, remote, &until, BPF_ANY);
}

static __always_inline void make_room(struct bpf_sock_ops *context, const struct flow_tuple *own)
{
	__u32 flags = context->skb_tcp_flags, heard;

	if (!(flags & FLAG_SYN)) {
		/* A daemon before has ended amid the handshake. */
		listen_for_options(context, false);
	} else if (flags & FLAG_ACK) {
		/* Only to whom has said it. */
		heard = read_greeting(context, own, FORM_SYN, BPF_LOAD_HDR_OPT_TCP_SYN);
		if (heard == HEARD_NOTHING)
			/* Somebody else may have said so of these ends before. */
			bpf_map_delete_elem(&greeted, own);
		else if (heard & HEARD_IT && !bpf_map_update_elem(&greeted, own, &heard, BPF_ANY))
			bpf_reserve_hdr_opt(context, sizeof(struct greeting), 0);
	} else if (context->total_retrans) {
		/* There are networks that drop what they do not know. */
		listen_for_options(context, false);
	} else {
		bpf_reserve_hdr_opt(context, sizeof(struct greeting), 0);
	}
}

SEC("sockops")
int greet(struct bpf_sock_ops *context)
{
	struct flow_tuple own = {};
	__u32 *noted, heard;

	switch (context->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_STATE_CB:
		break;
	default:
		return 1;
	}
	if (!is_ours(context))
		return 1;
	read_ends(context, &own);
	switch (context->op) {
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		listen_for_options(context, true);
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		begin(context, &own);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		make_room(context, &own);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		if (context->skb_tcp_flags & FLAG_SYN)
			write_greeting(context, &own, context->skb_tcp_flags & FLAG_ACK ? FORM_ANSWER : FORM_SYN);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		if (context->total_retrans)
			leave_out(&own.remote);
		if (!(context->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG))
			break;
		listen_for_options(context, false);
		heard = read_greeting(context, &own, FORM_ANSWER, 0);
		if (heard & HEARD_IT)
			report(&own, heard, ORIGIN_CONNECTED);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		/* It was refused, or given up before the kernel sent again. */
		if (context->args[0] == STATE_SYN_SENT && context->args[1] == STATE_CLOSE &&
		    context->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
			leave_out(&own.remote);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		listen_for_options(context, false);
		noted = bpf_map_lookup_elem(&greeted, &own);
		if (!noted)
			break;
		heard = *noted;
		bpf_map_delete_elem(&greeted, &own);
		report(&own, heard, ORIGIN_ACCEPTED);
		break;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
