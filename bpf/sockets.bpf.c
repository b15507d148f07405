// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Entry points for sockets: one follows them as they open and close, one looks some up, one fits them to their flows.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "lib/address.h"
#include "lib/park.h"
#include "lib/socket.h"
#include "lib/stall.h"
#include "lib/timestamps.h"
#include "maps.h"

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

/* The device that a socket was bound to before its flow moved. The kernel drops it with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} devices SEC(".maps");

/* Indices of the interfaces that there are; the value is not used. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

static __always_inline bool is_connected(int state)
{
	return state != STATE_SYN_SENT && state != STATE_SYN_RECV && state != STATE_CLOSE && state != STATE_LISTEN &&
	       state != STATE_NEW_SYN_RECV;
}

/* The ring buffer puts a header before each record (kernel/bpf/ringbuf.c, struct bpf_ringbuf_hdr). */
#define EVENT_BYTES (8 + sizeof(struct event))
/* A reader is woken when so much more is waiting. */
#define WAKE_BYTES (EVENTS_BYTES / 8)

/*
 * Has the reader fallen behind by another step, now that `waiting` bytes are there? To wake it for each record from
 * some point on would cost several times what all the rest does. Where two processors pass a step at once neither may
 * notice: there are more steps.
 */
static __always_inline bool falls_behind(__u64 waiting)
{
	return waiting / WAKE_BYTES > (waiting - EVENT_BYTES) / WAKE_BYTES;
}

/*
 * How often the reader is woken for connections that this host opens (P-200): whoever opens very many has the others
 * wait for the timer.
 */
#define WAKES 64
/* When a connection begins is of use to the first alone: after that its peer looks for introductions. */
#define WAKES_FOR_BEGINNINGS 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct share);
} wakes_used SEC(".maps");

static __always_inline bool take_wake(__u32 most)
{
	__u32 zero = 0;
	struct share *share = bpf_map_lookup_elem(&wakes_used, &zero);

	return share && take_share(share, most);
}

/* The tracepoint fires for every namespace of the machine; the cookie is never used twice, unlike the inode number. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(follow_sockets, const struct sock *sk, int old_state, int new_state)
{
	const struct settings *settings;
	struct flow_tuple tuple = {};
	struct event *event;
	struct tcp_sock *tcp;
	__u64 waiting, cookie;
	bool wakes = false;

	(void)ctx;
	if (new_state != STATE_ESTABLISHED && new_state != STATE_SYN_SENT &&
	    !(new_state == STATE_CLOSE && is_connected(old_state)))
		return 0;
	if (sk->sk_protocol != IPPROTO_TCP)
		return 0;
	settings = get_settings();
	if (!settings)
		return 0;
	cookie = sk->__sk_common.skc_net.net->net_cookie;
	if (cookie != settings->namespace_cookie) {
		const __u32 *follow = bpf_map_lookup_elem(&namespaces, &cookie);

		if (!follow || new_state == STATE_SYN_SENT || (new_state != STATE_CLOSE && *follow != FOLLOW_ALL))
			return 0;
	}
	tcp = bpf_skc_to_tcp_sock((void *)sk);
	if (!tcp)
		return 0;
	/* Before any room is taken: a discarded record takes as much as another. */
	read_addresses(&sk->__sk_common, &tuple);
	if (is_loopback(&tuple.local) || is_loopback(&tuple.remote))
		return 0;
	if (new_state == STATE_SYN_SENT) {
		wakes = take_wake(WAKES_FOR_BEGINNINGS);
		if (!wakes)
			return 0;
	} else if (new_state == STATE_ESTABLISHED && old_state == STATE_SYN_SENT) {
		wakes = take_wake(WAKES);
	}
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count(COUNTER_FLOW_EVENT_LOST);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple = tuple;
	/* At CLOSE the socket's own number of the port may be gone already; the one for the wire stays. */
	event->tuple.local_port = tcp->inet_conn.icsk_inet.inet_sport;
	event->tuple.remote_port = sk->__sk_common.skc_dport;
	event->tuple.transport = IPPROTO_TCP;
	if (new_state == STATE_CLOSE) {
		event->kind = EVENT_FLOW_CLOSED;
	} else if (new_state == STATE_SYN_SENT) {
		event->kind = EVENT_FLOW_OPENING;
	} else {
		event->kind = EVENT_FLOW_OPENED;
		event->index = sk->sk_uid.val;
		if (old_state == STATE_SYN_SENT)
			event->origin = ORIGIN_CONNECTED;
		else if (old_state == STATE_SYN_RECV)
			event->origin = ORIGIN_ACCEPTED;
	}
	/*
	 * Of what is not to be introduced at once the reader learns on a timer: waking it for each one would cost more
	 * than all of the above. It is woken when it has fallen behind.
	 */
	waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);
	bpf_ringbuf_submit(event, wakes || falls_behind(waiting) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	return 0;
}

/* The kernel sent something again, or tried to. */
SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(follow_retransmissions, const struct sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock((void *)sk);

	(void)ctx;
	/* What is lost in a stream that goes on is sent again without the timer, which then has not run out once. */
	if (tcp && stalled(tcp->inet_conn.icsk_retransmits, 2))
		report_stalled(tcp, tcp->inet_conn.icsk_retransmits);
	return 0;
}

static __always_inline __u64 inode_number(const struct socket *socket)
{
	const struct inode *inode;
	unsigned long number = 0;

	if (!socket)
		return 0;
	inode = (const void *)((const char *)socket - bpf_core_field_offset(struct socket_alloc, socket) +
			       bpf_core_field_offset(struct socket_alloc, vfs_inode));
	bpf_probe_read_kernel(&number, sizeof(number),
			      (const char *)inode + bpf_core_field_offset(struct inode, i_ino));
	return number;
}

/* As a packet that comes in for this flow would. Whoever gets it releases it. */
static __always_inline struct bpf_sock *socket_of(struct __sk_buff *skb, const struct flow_tuple *own)
{
	struct bpf_sock_tuple names = {};
	__u32 size;

	if (is_ipv4(&own->remote)) {
		names.ipv4.saddr = own->remote.words[3];
		names.ipv4.daddr = own->local.words[3];
		names.ipv4.sport = own->remote_port;
		names.ipv4.dport = own->local_port;
		size = sizeof(names.ipv4);
	} else {
		__builtin_memcpy(names.ipv6.saddr, &own->remote, 16);
		__builtin_memcpy(names.ipv6.daddr, &own->local, 16);
		names.ipv6.sport = own->remote_port;
		names.ipv6.dport = own->local_port;
		size = sizeof(names.ipv6);
	}
	return bpf_skc_lookup_tcp(skb, &names, size, BPF_F_CURRENT_NETNS, 0);
}

/* From now on no echo of what was sent before is to be measured (lib/lapse.h). */
static __always_inline void on_lapse(const struct tcp_sock *tcp, struct flow_entry *flow)
{
	__u8 unit = counts_microseconds(tcp) ? LAPSED_MICROSECONDS : LAPSED_MILLISECONDS;

	flow->clock = tcp->tsoffset;
	flow->echoes_from = time_stamp(flow, unit);
	flow->lapsed = unit;
}

/*
 * Whether the last acknowledgement had a sender in back-off do nothing, though not all is acknowledged. A segment that
 * is sent again takes what follows it along where that fits (tcp_retrans_try_collapse); where the first part of it had
 * arrived, the whole of it still counts as under way (tcp_clean_rtx_queue): as all that the window allows after a
 * timeout, or as not lost at all (tcp_try_undo_loss). An error does not wake it, as an answer came (tcp_ld_RTO_revert).
 */
static __always_inline bool stands_still(const struct tcp_sock *tcp)
{
	return tcp->inet_conn.icsk_backoff && !tcp->inet_conn.icsk_retransmits && tcp->snd_una != tcp->snd_nxt &&
	       (__s32)(tcp->rcv_tstamp - tcp->lsndtime) > 0;
}

/* The sockets that are asked for, by their tuples, and what was found: state 0 where there is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOOKED_UP_AT_ONCE);
	__type(key, __u32);
	__type(value, struct socket_record);
} looked_up SEC(".maps");

/*
 * What arrives in two round trips, in segments, at the rate of the last few: a window and what it has waiting. The
 * window before a repair may have been another network's, of which the repair is.
 */
static __always_inline __u32 borne(const struct tcp_sock *tcp)
{
	__u32 round_trip = tcp->srtt_us >> 3;

	return tcp->rate_interval_us ? (__u64)tcp->rate_delivered * 2 * round_trip / tcp->rate_interval_us : 0;
}

/*
 * The window at which it last worked. What is under way when a network is lost counts as lost there, which says nothing
 * of how much that network takes; an error that has all of it sent again leaves the window as it was.
 */
static __always_inline void record_window(const struct tcp_sock *tcp, struct socket_record *record)
{
	bool repairs = congestion_state(tcp) >= CONGESTION_RECOVERY;
	__u32 before = tcp->prior_cwnd, most = borne(tcp);

	if (before > most)
		before = most;
	record->window = repairs && before > tcp->snd_cwnd ? before : tcp->snd_cwnd;
	record->threshold = tcp->snd_ssthresh >= NO_THRESHOLD ? 0 : tcp->snd_ssthresh;
	if (repairs)
		record->threshold = record->window;
	record->least_round_trip = tcp->rtt_min.s[0].v;
	record->sends = tcp->write_seq != tcp->snd_una;
}

/* For so long a socket receives that was sent data: some seconds, ten where a second has a thousand. */
#define RECEIVES_JIFFIES 10000

struct look {
	struct __sk_buff *skb;
	__u32 lapsed;
};

static long look_up_one(__u32 index, struct look *look)
{
	struct socket_record *record = bpf_map_lookup_elem(&looked_up, &index);
	const struct inet_connection_sock *connection;
	struct flow_tuple own;
	struct flow_entry *flow;
	struct bpf_sock *socket;
	struct tcp_sock *tcp;

	if (!record)
		return 1;
	own = record->tuple;
	__builtin_memset(record, 0, sizeof(*record));
	record->tuple = own;
	socket = socket_of(look->skb, &own);
	if (!socket)
		return 0;
	/* A socket that listens takes what has none of its own. */
	tcp = is_connected(socket->state) ? bpf_skc_to_tcp_sock(socket) : NULL;
	if (!tcp) {
		bpf_sk_release(socket);
		return 0;
	}
	connection = &tcp->inet_conn;
	record->inode = inode_number(connection->icsk_inet.sk.sk_socket);
	record->state = connection->icsk_inet.sk.__sk_common.skc_state;
	record->snd_una = tcp->snd_una;
	record->snd_nxt = tcp->snd_nxt;
	record->rcv_nxt = tcp->rcv_nxt;
	record->snd_wnd = tcp->snd_wnd;
	record->mss_cache = tcp->mss_cache;
	record->pmtu_cookie = connection->icsk_pmtu_cookie;
	record->bound_interface = connection->icsk_inet.sk.__sk_common.skc_bound_dev_if;
	record->uid = connection->icsk_inet.sk.sk_uid.val;
	record->backoff = connection->icsk_backoff;
	record->retransmits = connection->icsk_retransmits;
	record->reports_errors = reports_errors(&connection->icsk_inet);
	record->repairs = tcp->lost_out > 0;
	record->stands_still = stands_still(tcp);
	record->write_seq = tcp->write_seq;
	record->window_scale = BPF_CORE_READ_BITFIELD_PROBED(tcp, rx_opt.snd_wscale);
	record->unordered = !!tcp->out_of_order_queue.rb_node;
	record->receives = tcp->bytes_received && (__u32)bpf_jiffies64() - connection->icsk_ack.lrcvtime < RECEIVES_JIFFIES;
	record->acknowledged = tcp->bytes_acked;
	record->received = tcp->bytes_received;
	record->heard = tcp->segs_in;
	record->sent_again = tcp->total_retrans;
	record->round_trip = tcp->srtt_us >> 3;
	record_window(tcp, record);
	flow = look->lapsed ? find_flow(&own) : NULL;
	if (flow)
		on_lapse(tcp, flow);
	bpf_sk_release(socket);
	return 0;
}

/*
 * What sockets are at. Run by hand (BPF_PROG_TEST_RUN) on a frame that holds what is wanted. No socket is locked: a
 * program can hold the lock of one of its own for as long as it likes, and whoever goes through all sockets by an
 * iterator waits for it.
 */
SEC("tc")
int look_up_sockets(struct __sk_buff *skb)
{
	struct look look = { .skb = skb };
	struct sockets_wanted wanted = {};

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &wanted, sizeof(wanted)))
		return 0;
	look.lapsed = wanted.lapsed;
	bpf_loop(wanted.count, look_up_one, &look, 0);
	return 1;
}

/*
 * Where one socket is in its stream. Run by hand (BPF_PROG_TEST_RUN) on a frame that holds the tuple and has the answer
 * put in its place: very many are asked for one by one.
 */
SEC("tc")
int find_socket(struct __sk_buff *skb)
{
	struct socket_position position = {};
	struct flow_tuple own = {};
	struct tcp_sock *tcp;
	struct bpf_sock *socket;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &own, sizeof(own)))
		return 0;
	socket = socket_of(skb, &own);
	if (!socket)
		return 0;
	if (!is_connected(socket->state)) {
		bpf_sk_release(socket);
		return 0;
	}
	tcp = bpf_skc_to_tcp_sock(socket);
	if (tcp) {
		position.snd_una = tcp->snd_una;
		position.rcv_nxt = tcp->rcv_nxt;
		position.snd_up = tcp->snd_up;
	}
	bpf_sk_release(socket);
	if (!tcp || bpf_skb_store_bytes(skb, ETH_HLEN, &position, sizeof(position), 0))
		return 0;
	return 1;
}

/*
 * A socket that is bound to a device sends and receives nothing once its flow goes another way. So the socket of a
 * moved flow is bound to none, and is bound again when the flow is native. True: it was changed.
 */
static __always_inline bool fit_device(struct tcp_sock *tcp, bool moved)
{
	int bound = tcp->inet_conn.icsk_inet.sk.__sk_common.skc_bound_dev_if, wanted;
	__u32 *former = bpf_sk_storage_get(&devices, tcp, NULL, 0);

	if (moved && bound) {
		/* Its program may have bound it anew since it moved. */
		former = bpf_sk_storage_get(&devices, tcp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
		if (!former)
			return false;
		*former = bound;
		wanted = 0;
	} else if (!moved && former && bound) {
		bpf_sk_storage_delete(&devices, tcp);
		return false;
	} else if (!moved && former) {
		/* Bound to a device that is gone it would stand still for ever. */
		if (!bpf_map_lookup_elem(&interfaces, former))
			return false;
		wanted = *former;
	} else {
		return false;
	}
	if (bpf_setsockopt(tcp, SOL_SOCKET, SO_BINDTOIFINDEX, &wanted, sizeof(wanted)))
		return false;
	if (wanted)
		bpf_sk_storage_delete(&devices, tcp);
	return true;
}

/* Shows one byte (enum fitted) for each socket of which there is something to tell. */
SEC("iter/tcp")
int fit_sockets(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	const struct binding *binding;
	struct flow_tuple own = {};
	struct flow_entry *flow;
	struct tcp_sock *tcp;
	__u8 fitted = 0;
	bool waits;

	tcp = common ? bpf_skc_to_tcp_sock(common) : NULL;
	if (!tcp)
		return 0;
	read_tuple(tcp, &own);
	flow = find_flow(&own);
	binding = flow ? bpf_map_lookup_elem(&bindings, &flow->binding) : NULL;
	if (fit_device(tcp, binding && has_moved(flow, binding)))
		fitted |= FITTED_CHANGED;
	waits = flow && flow->held & HELD_BACK;
	/* Else the compiler makes one condition of both, in which Linux 6.1 does not see that there is a binding. */
	barrier();
	if (binding && binding->parked)
		waits = true;
	if (waits)
		fitted |= park(tcp);
	else
		fitted |= unpark(tcp, false);
	/*
	 * Of a flow that waits already, since the first that its peer sends may be here before anybody says that it
	 * goes on.
	 */
	if (flow && waits)
		on_lapse(tcp, flow);
	if (fitted)
		bpf_seq_write(context->meta->seq, &fitted, sizeof(fitted));
	return 0;
}

/* What is to be put back is put back now. */
SEC("iter/tcp")
int release_sockets(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	struct tcp_sock *tcp = common ? bpf_skc_to_tcp_sock(common) : NULL;

	if (!tcp)
		return 0;
	fit_device(tcp, false);
	unpark(tcp, true);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
