// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Entry points for what programs are told of addresses, and mean by them. They belong to the root of cgroup v2, so they
 * run for every network namespace of the machine, and look at one only.
 *
 * A flow whose entry says so is shown with the locators of its binding; its ports stay. Of a socket of UDP that is not
 * connected its peer alone is, as the sender of what is received. Aliases (map `aliases`) let an address that a moved
 * host had stand for it in what a program of a certain name opens.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/field.h"
#include "maps.h"

#define FAMILY_INET 2
#define ALLOWED 1
/* Ports below are those of services, which anybody may ask for. */
#define FIRST_UNPRIVILEGED 1024

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct alias);
	__type(value, struct address);
} aliases SEC(".maps");

/* The address that a program asked for, and the one that its socket got. */
struct asked {
	struct address asked;
	struct address got;
};

/*
 * Sockets that a program bound, or connected, by way of an alias: these alone are shown other addresses on account of
 * aliases. Whatever else the program has open may be with anybody who shares the peer's address. The kernel drops the
 * notes with the sockets; what a bound socket accepts has its note.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct asked);
} asked_own SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct asked);
} asked_peer SEC(".maps");

/*
 * Whom sockets of UDP that are not connected are shown as the senders of datagrams, where that is the present address
 * of a flow's peer: what is sent there is meant for the flow. Two remotes may come to share an address, and ports stay.
 * The first is shown there as long as its flow is known, the other where it was; and both where they were while
 * somebody sends from there natively.
 */
struct shown {
	__u64 cookie;
	struct address address;
	__be16 port;
	__u8 zero[6];
};

struct meant {
	struct address remote; /* where the peer was */
	__u64 native_until; /* so long the name is somebody's who is there natively; CLOCK_MONOTONIC, ns */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct shown);
	__type(value, struct meant);
} shown SEC(".maps");

/* After the last datagram: five minutes, as NATs keep mappings (RFC 4787 REQ-5). */
#define NATIVE_FOR (300ULL * 1000000000)

static __always_inline bool is_ours(struct bpf_sock_addr *context)
{
	const struct settings *settings = get_settings();

	return settings && bpf_get_netns_cookie(context) == settings->namespace_cookie;
}

static __always_inline bool is_v4(const struct address *address)
{
	return !address->words[0] && !address->words[1] && address->words[2] == bpf_htonl(0xffff);
}

/* In either family. */
static __always_inline bool is_unspecified(const struct address *address)
{
	return !address->words[0] && !address->words[1] && !address->words[3];
}

static __always_inline bool equal(const struct address *a, const struct address *b)
{
	return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2] &&
	       a->words[3] == b->words[3];
}

static __always_inline void put_v4(struct address *address, __be32 v4)
{
	address->words[0] = 0;
	address->words[1] = 0;
	address->words[2] = bpf_htonl(0xffff);
	address->words[3] = v4;
}

/* The own tuple of a connected socket. False: it is none. */
static __always_inline bool own_tuple(struct bpf_sock_addr *context, struct flow_tuple *own)
{
	struct bpf_sock *sk = context->sk;

	if (!sk || !sk->dst_port)
		return false;
	if (sk->family == FAMILY_INET) {
		put_v4(&own->local, FIELD(sk, src_ip4));
		put_v4(&own->remote, FIELD(sk, dst_ip4));
	} else {
		own->local.words[0] = FIELD(sk, src_ip6[0]);
		own->local.words[1] = FIELD(sk, src_ip6[1]);
		own->local.words[2] = FIELD(sk, src_ip6[2]);
		own->local.words[3] = FIELD(sk, src_ip6[3]);
		own->remote.words[0] = FIELD(sk, dst_ip6[0]);
		own->remote.words[1] = FIELD(sk, dst_ip6[1]);
		own->remote.words[2] = FIELD(sk, dst_ip6[2]);
		own->remote.words[3] = FIELD(sk, dst_ip6[3]);
	}
	own->local_port = bpf_htons((__u16)sk->src_port);
	own->remote_port = sk->dst_port;
	own->transport = (__u8)sk->protocol;
	return true;
}

/* The own tuple of a flow of a UDP socket that is not connected, by its remote. False: it is none, or has none. */
static __always_inline bool unconnected_tuple(struct bpf_sock_addr *context, const struct address *remote,
					      struct flow_tuple *own)
{
	struct bpf_sock *sk = context->sk;
	const struct address *local;
	__u32 zero = 0;
	void *table;

	if (!sk || sk->dst_port || sk->protocol != IPPROTO_UDP)
		return false;
	if (sk->family == FAMILY_INET) {
		put_v4(&own->local, FIELD(sk, src_ip4));
	} else {
		own->local.words[0] = FIELD(sk, src_ip6[0]);
		own->local.words[1] = FIELD(sk, src_ip6[1]);
		own->local.words[2] = FIELD(sk, src_ip6[2]);
		own->local.words[3] = FIELD(sk, src_ip6[3]);
	}
	own->remote = *remote;
	own->local_port = bpf_htons((__u16)sk->src_port);
	own->remote_port = (__be16)context->user_port;
	own->transport = IPPROTO_UDP;
	if (!is_unspecified(&own->local))
		return true;
	if (is_v4(remote))
		put_v4(&own->local, 0);
	table = bpf_map_lookup_elem(&unconnected, &zero);
	local = table ? bpf_map_lookup_elem(table, own) : NULL;
	if (!local)
		return false;
	own->local = *local;
	return true;
}

/* The binding of a flow that has moved, and whose locators are to be shown. */
static __always_inline struct binding *shown_as(const struct flow_tuple *own)
{
	struct flow_entry *flow = find_flow(own);
	struct binding *binding;

	if (!flow || !flow->real_view)
		return NULL;
	binding = bpf_map_lookup_elem(&bindings, &flow->binding);
	if (!binding || binding->carrier == CARRIER_NATIVE || !has_moved(flow, binding))
		return NULL;
	return is_native_for_now(flow, binding) ? NULL : binding;
}

/* The same of a connected socket, and its own tuple. */
static __always_inline struct binding *shown_binding(struct bpf_sock_addr *context, struct flow_tuple *own)
{
	return own_tuple(context, own) ? shown_as(own) : NULL;
}

static __always_inline void name_shown(struct bpf_sock_addr *context, const struct address *address, struct shown *key)
{
	key->cookie = bpf_get_socket_cookie(context);
	key->address = *address;
	key->port = (__be16)context->user_port;
}

/* Whether a name is shown of this flow of the socket's, or could be again. */
static __always_inline bool is_known(struct bpf_sock_addr *context, const struct address *remote)
{
	struct flow_tuple own = {};

	return unconnected_tuple(context, remote, &own) && find_flow(&own);
}

/* Whom a datagram is shown to be from that an unconnected socket receives: where the flow's peer is now. */
static __always_inline bool sender_name(struct bpf_sock_addr *context, struct address *address)
{
	struct meant first = { .remote = *address };
	struct flow_tuple own = {};
	struct binding *binding;
	struct shown key = {};
	struct meant *meant;

	binding = unconnected_tuple(context, address, &own) ? shown_as(&own) : NULL;
	if (!binding) {
		name_shown(context, address, &key);
		meant = bpf_map_lookup_elem(&shown, &key);
		if (meant)
			meant->native_until = bpf_ktime_get_coarse_ns() + NATIVE_FOR;
		return false;
	}
	if (is_unspecified(&binding->peer))
		return false;
	name_shown(context, &binding->peer, &key);
	meant = bpf_map_lookup_elem(&shown, &key);
	if (meant && meant->native_until > bpf_ktime_get_coarse_ns())
		return false;
	if (meant && !equal(&meant->remote, address) && is_known(context, &meant->remote))
		return false;
	if ((!meant || !equal(&meant->remote, address)) && bpf_map_update_elem(&shown, &key, &first, BPF_ANY))
		return false;
	*address = binding->peer;
	return true;
}

/*
 * Whom a datagram is for that an unconnected socket sends to where the peer of a flow of it was shown to be. It is the
 * flow's also where the peer has come back, or gone on.
 */
static __always_inline bool meant_sender(struct bpf_sock_addr *context, struct address *address)
{
	struct flow_tuple own = {};
	struct binding *binding;
	struct flow_entry *flow;
	struct shown key = {};
	struct meant *meant;

	name_shown(context, address, &key);
	meant = bpf_map_lookup_elem(&shown, &key);
	if (!meant || meant->native_until > bpf_ktime_get_coarse_ns() ||
	    !unconnected_tuple(context, &meant->remote, &own))
		return false;
	flow = find_flow(&own);
	binding = flow ? bpf_map_lookup_elem(&bindings, &flow->binding) : NULL;
	if (!binding || is_native_for_now(flow, binding))
		return false;
	*address = own.remote;
	return true;
}

static __always_inline struct address *find_alias(__u8 kind, const struct address *address, const struct address *other)
{
	struct alias key = {};

	if (bpf_get_current_comm(key.program, sizeof(key.program)))
		return NULL;
	key.address = *address;
	if (other)
		key.other = *other;
	key.kind = kind;
	return bpf_map_lookup_elem(&aliases, &key);
}

static __always_inline struct asked *asked_for(void *notes, struct bpf_sock_addr *context)
{
	struct bpf_sock *sk = context->sk;

	return sk ? bpf_sk_storage_get(notes, sk, NULL, 0) : NULL;
}

/* Without the note it would be shown where it is, which is no worse than to fail. */
static __always_inline void note(void *notes, struct bpf_sock_addr *context, const struct address *asked,
				 const struct address *got)
{
	struct bpf_sock *sk = context->sk;
	struct asked *there = sk ? bpf_sk_storage_get(notes, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE) : NULL;

	if (!there)
		return;
	there->asked = *asked;
	there->got = *got;
}

/*
 * Is this a connection to a socket that the program bound to an address of its flows with moved peers, after the move?
 * So do programs that tell the peer by one connection where to open the next.
 */
static __always_inline bool is_awaited(struct bpf_sock_addr *context, const struct asked *own)
{
	struct bpf_sock *sk = context->sk;

	return own && sk && sk->protocol == IPPROTO_TCP && sk->src_port >= FIRST_UNPRIVILEGED;
}

/* Puts what is to be shown, or used, instead of `address` there. False: it stays. */
static __always_inline bool peer_name(struct bpf_sock_addr *context, struct address *address)
{
	struct flow_tuple own = {};
	struct binding *binding = shown_binding(context, &own);
	struct address *alias;
	struct asked *reached;

	if (binding && !is_unspecified(&binding->peer)) {
		*address = binding->peer;
		return true;
	}
	reached = asked_for(&asked_peer, context);
	if (reached && equal(address, &reached->got)) {
		*address = reached->asked;
		return true;
	}
	if (!is_awaited(context, asked_for(&asked_own, context)))
		return false;
	alias = find_alias(ALIAS_SHOW_PEER, address, NULL);
	if (!alias)
		return false;
	*address = *alias;
	return true;
}

static __always_inline bool own_name(struct bpf_sock_addr *context, struct address *address)
{
	struct flow_tuple own = {};
	struct binding *binding = shown_binding(context, &own);
	struct address *alias;
	struct asked *bound;

	if (binding && !is_unspecified(&binding->local)) {
		*address = binding->local;
		return true;
	}
	bound = asked_for(&asked_own, context);
	if (bound && equal(address, &bound->got)) {
		*address = bound->asked;
		return true;
	}
	if (!asked_for(&asked_peer, context))
		return false;
	alias = find_alias(ALIAS_SHOW_OWN, address, &own.remote);
	if (!alias)
		return false;
	*address = *alias;
	return true;
}

/* Where the peer of a connected socket is shown under another address, a datagram to there is one to the peer. */
static __always_inline bool meant_peer(struct bpf_sock_addr *context, struct address *address)
{
	struct flow_tuple own = {};
	struct binding *binding = shown_binding(context, &own);
	struct asked *reached;

	if (binding && equal(address, &binding->peer)) {
		*address = own.remote;
		return true;
	}
	reached = asked_for(&asked_peer, context);
	if (!reached || !equal(address, &reached->asked) || !equal(&own.remote, &reached->got))
		return false;
	*address = reached->got;
	return true;
}

static __always_inline bool reached_at(struct bpf_sock_addr *context, struct address *address)
{
	struct address *alias = find_alias(ALIAS_REACH, address, NULL);

	if (!alias)
		return false;
	note(&asked_peer, context, address, alias);
	*address = *alias;
	return true;
}

static __always_inline bool bound_to(struct bpf_sock_addr *context, struct address *address)
{
	struct address *alias = find_alias(ALIAS_BIND, address, NULL);

	if (!alias)
		return false;
	note(&asked_own, context, address, alias);
	*address = *alias;
	return true;
}

/* The entry points of both families; the verifier lets each see the addresses of its own only. */
#define ENTRY(hook, name, change)                                                                                      \
	SEC("cgroup/" #hook "4")                                                                                       \
	int name##_v4(struct bpf_sock_addr *context)                                                                   \
	{                                                                                                              \
		struct address address;                                                                                \
                                                                                                                       \
		if (!is_ours(context))                                                                                 \
			return ALLOWED;                                                                                \
		put_v4(&address, context->user_ip4);                                                                   \
		if (change && is_v4(&address))                                                                         \
			context->user_ip4 = address.words[3];                                                          \
		return ALLOWED;                                                                                        \
	}                                                                                                              \
	SEC("cgroup/" #hook "6")                                                                                       \
	int name##_v6(struct bpf_sock_addr *context)                                                                   \
	{                                                                                                              \
		struct address address;                                                                                \
                                                                                                                       \
		if (!is_ours(context))                                                                                 \
			return ALLOWED;                                                                                \
		address.words[0] = context->user_ip6[0];                                                               \
		address.words[1] = context->user_ip6[1];                                                               \
		address.words[2] = context->user_ip6[2];                                                               \
		address.words[3] = context->user_ip6[3];                                                               \
		if (change) {                                                                                          \
			context->user_ip6[0] = address.words[0];                                                       \
			context->user_ip6[1] = address.words[1];                                                       \
			context->user_ip6[2] = address.words[2];                                                       \
			context->user_ip6[3] = address.words[3];                                                       \
		}                                                                                                      \
		return ALLOWED;                                                                                        \
	}

ENTRY(getpeername, show_peer, peer_name(context, &address))
ENTRY(getsockname, show_own, own_name(context, &address))
ENTRY(recvmsg, show_sender, peer_name(context, &address) || sender_name(context, &address))
ENTRY(sendmsg, send_to, meant_peer(context, &address) || meant_sender(context, &address))
ENTRY(connect, reach, reached_at(context, &address))
ENTRY(bind, bind_to, bound_to(context, &address))

char LICENSE[] SEC("license") = "Dual BSD/GPL";
