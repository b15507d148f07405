/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps of the data plane. Hash maps take memory for entries as they come, so that an idle host pays next to
 * nothing.
 */
#ifndef WHIMBREL_MAPS_H
#define WHIMBREL_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

#define EVENTS_BYTES (1 << 19)
#define ARRIVALS_BYTES (1 << 18)

/*
 * The tables of flows are by far the largest, and a hash map takes memory for as many buckets as it may have
 * entries from the start. So each is a slot that holds a table; user space puts a larger one there when it is full.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_HASH);
			__uint(map_flags, BPF_F_NO_PREALLOC);
			__uint(max_entries, 1);
			__uint(key_size, sizeof(struct flow_tuple));
			__uint(value_size, sizeof(struct flow_entry));
		});
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_HASH);
			__uint(map_flags, BPF_F_NO_PREALLOC);
			__uint(max_entries, 1);
			__uint(key_size, sizeof(struct wire_flow));
			__uint(value_size, sizeof(struct flow_tuple));
		});
} wire_flows SEC(".maps");

/*
 * Of flows that are HELD_UNCONNECTED: the own tuple with no local address -> that address. For a socket that is bound
 * to none the kernel chooses it anew for each datagram.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_HASH);
			__uint(map_flags, BPF_F_NO_PREALLOC);
			__uint(max_entries, 1);
			__uint(key_size, sizeof(struct flow_tuple));
			__uint(value_size, sizeof(struct address));
		});
} unconnected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct binding);
} bindings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct locator_pair);
	__type(value, struct locator);
} locators SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct locator_pair);
	__type(value, struct path);
} paths SEC(".maps");

/* These are not pinned: a daemon begins anew. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct locator_pair);
	__type(value, struct home);
} homes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct locator_pair);
	__type(value, struct traffic);
} traffic SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, __u32);
} vacated SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct flow_tuple);
	__type(value, struct helped_flow);
} helped SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, __u32);
} kept SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct lent_key);
	__type(value, struct lent);
} lent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/* Cookies of endpoint namespaces, whose sockets are followed too: FOLLOW_*. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u32);
} namespaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTER_MAX);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Session indices (host order) whose introductions are ours to consume, each with its share. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct share);
} introduction_indices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct fragment);
	__type(value, struct flow_tuple);
} fragments SEC(".maps");

/* What this host's own sockets do. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_BYTES);
} events SEC(".maps");

/* What packets cause, which anybody may send: no number of them pushes out what sockets do. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, ARRIVALS_BYTES);
} arrivals SEC(".maps");

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		*value += 1;
}

/* More comes than is read. What is left is for those who say little. */
static __always_inline bool arrivals_wait(void)
{
	return bpf_ringbuf_query(&arrivals, BPF_RB_AVAIL_DATA) > ARRIVALS_BYTES / 2;
}

/* Takes one of `most` that there may be in a period. Two processors may count one too few. */
static __always_inline bool take_share(struct share *share, __u32 most)
{
	__u64 now = bpf_ktime_get_ns();

	if (now - share->since >= SHARE_PERIOD) {
		share->since = now;
		share->used = 0;
	}
	if (share->used >= most)
		return false;
	__sync_fetch_and_add(&share->used, 1);
	return true;
}

static __always_inline struct flow_entry *find_flow(const struct flow_tuple *own)
{
	__u32 zero = 0;
	void *table = bpf_map_lookup_elem(&flows, &zero);

	return table ? bpf_map_lookup_elem(table, own) : NULL;
}

static __always_inline bool has_moved(const struct flow_entry *flow, const struct binding *binding)
{
	return flow->home_local_place != binding->local_place || flow->home_peer_place != binding->peer_place;
}

/*
 * Is a flow that has moved answered under its own names for now (P-221)? While its peer is elsewhere somebody else may
 * have the names that it had, as the next owner of a mapping at a NAT has, and a socket that is not connected hears
 * him: he gets what was meant for him. Once this host has left as well nobody hears it there.
 */
static __always_inline bool is_native_for_now(const struct flow_entry *flow, const struct binding *binding)
{
	return flow->held & HELD_UNCONNECTED && flow->conflict & CONFLICT_NATIVE &&
	       flow->home_peer_place != binding->peer_place && flow->home_local_place == binding->local_place;
}

/* Whose binding what comes from `peer` to `local` may be of. */
static __always_inline struct locator *find_locator(const struct address *peer, const struct address *local)
{
	struct locator_pair pair;

	pair.peer = *peer;
	pair.local = *local;
	return bpf_map_lookup_elem(&locators, &pair);
}

static __always_inline struct flow_tuple *find_own(__u32 binding, __u8 transport, __be16 local_port,
						   __be16 remote_port)
{
	struct wire_flow key = {};
	__u32 zero = 0;
	void *table = bpf_map_lookup_elem(&wire_flows, &zero);

	key.binding = binding;
	key.local_port = local_port;
	key.remote_port = remote_port;
	key.transport = transport;
	return table ? bpf_map_lookup_elem(table, &key) : NULL;
}

static __always_inline struct lent *find_lent(const struct address *address, __be16 port, __u8 transport)
{
	struct lent_key key = {};
	struct lent *found;

	key.address = *address;
	key.port = port;
	key.transport = transport;
	found = bpf_map_lookup_elem(&lent, &key);
	if (found || !port)
		return found;
	key.port = 0;
	return bpf_map_lookup_elem(&lent, &key);
}

/* Every local end is in this host's own stack. */
#define IDLE_DELIVERY (IDLE_ENDPOINTS | IDLE_FORWARDED)

static __always_inline const struct settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

#endif
