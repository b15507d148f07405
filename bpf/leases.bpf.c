// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Entry points that keep programs to the ports that their anchor has lent: bind(2) to another one of the anchor's
 * address is refused as that to a port which is taken, since nothing would ever come there. They belong to the root of
 * cgroup v2, so they run for every network namespace of the machine, and look only at those of which there is something
 * on lease.
 */
#include <stdbool.h>
#include <asm-generic/errno.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

#define REFUSED 0
#define ALLOWED 1
#define LOOPBACK_V4 0x7f000000
#define LOOPBACK_V4_MASK 0xff000000

/* By the cookies of network namespaces. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct ports);
} leased_ports SEC(".maps");

/* The process that is kept to nothing: what it rebuilds has the ports that it had. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} lessee SEC(".maps");

static __always_inline __u32 calling_process(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

/* A process may have another number in the namespace that it lives in, so the daemon has itself noted from here. */
SEC("syscall")
int note_lessee(void *unused)
{
	__u32 only = 0, process = calling_process();

	(void)unused;
	return bpf_map_update_elem(&lessee, &only, &process, BPF_ANY);
}

static __always_inline bool may_have(struct bpf_sock *socket)
{
	__u64 cookie = bpf_get_netns_cookie(socket);
	struct ports *leased = bpf_map_lookup_elem(&leased_ports, &cookie);
	__u32 protocol = socket->protocol, port = socket->src_port, only = 0;
	__u32 *process;

	if (!leased || (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP))
		return true;
	if (leased->words[(port & 0xffff) / 64] & 1ull << port % 64)
		return true;
	process = bpf_map_lookup_elem(&lessee, &only);
	if (process && *process == calling_process())
		return true;
	bpf_set_retval(-EADDRINUSE);
	return false;
}

static __always_inline bool is_loopback_v4(__u32 address)
{
	return (bpf_ntohl(address) & LOOPBACK_V4_MASK) == LOOPBACK_V4;
}

SEC("cgroup/post_bind4")
int keep_to_lease_v4(struct bpf_sock *socket)
{
	if (is_loopback_v4(socket->src_ip4))
		return ALLOWED;
	return may_have(socket) ? ALLOWED : REFUSED;
}

SEC("cgroup/post_bind6")
int keep_to_lease_v6(struct bpf_sock *socket)
{
	__u32 before_last = socket->src_ip6[2], last = socket->src_ip6[3];

	if (!socket->src_ip6[0] && !socket->src_ip6[1]) {
		if (!before_last && last == bpf_htonl(1))
			return ALLOWED;
		/* As a socket of both families says it. */
		if (before_last == bpf_htonl(0xffff) && is_loopback_v4(last))
			return ALLOWED;
	}
	return may_have(socket) ? ALLOWED : REFUSED;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
