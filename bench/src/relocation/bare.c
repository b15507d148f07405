/*
 * What moving sockets costs at the least: TCP_REPAIR and nothing around it (tcp(7)). Prints the microseconds of CPU
 * time that writing down and ending so many connections took, and those that rebuilding them took. Of their state only
 * what TCP itself needs is taken along: no socket options, no bytes (the queues are empty), no path. Runs as root, in a
 * network namespace of its own.
 */
#include <arpa/inet.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct state {
	struct sockaddr_in local, remote;
	int out, in, mss, stamp, send_scale, receive_scale, options, queued, unsent, unread;
	struct tcp_repair_window window;
};

#define MUST(call)                    \
	do {                          \
		if ((call) < 0) {     \
			perror(#call); \
			exit(1);      \
		}                     \
	} while (0)

static void put(int fd, int name, int value)
{
	MUST(setsockopt(fd, IPPROTO_TCP, name, &value, sizeof value));
}

static int get(int fd, int name)
{
	int value;
	socklen_t length = sizeof value;
	MUST(getsockopt(fd, IPPROTO_TCP, name, &value, &length));
	return value;
}

static void write_down(int fd, struct state *to)
{
	struct tcp_info info;
	socklen_t length = sizeof info;
	put(fd, TCP_REPAIR, TCP_REPAIR_ON);
	MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
	to->options = info.tcpi_options;
	to->send_scale = info.tcpi_snd_wscale;
	to->receive_scale = info.tcpi_rcv_wscale;
	length = sizeof to->local;
	MUST(getsockname(fd, (struct sockaddr *)&to->local, &length));
	length = sizeof to->remote;
	MUST(getpeername(fd, (struct sockaddr *)&to->remote, &length));
	put(fd, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
	to->out = get(fd, TCP_QUEUE_SEQ);
	MUST(ioctl(fd, SIOCOUTQ, &to->queued));
	MUST(ioctl(fd, SIOCOUTQNSD, &to->unsent));
	put(fd, TCP_REPAIR_QUEUE, TCP_RECV_QUEUE);
	to->in = get(fd, TCP_QUEUE_SEQ);
	MUST(ioctl(fd, SIOCINQ, &to->unread));
	put(fd, TCP_REPAIR_QUEUE, TCP_NO_QUEUE);
	to->mss = get(fd, TCP_MAXSEG);
	to->stamp = get(fd, TCP_TIMESTAMP);
	length = sizeof to->window;
	MUST(getsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &to->window, &length));
	if (to->queued || to->unread) {
		fprintf(stderr, "the queues are not empty\n");
		exit(1);
	}
	MUST(close(fd));
}

static int rebuild(const struct state *from)
{
	struct tcp_repair_opt options[4] = {
		{ 2, from->mss },
		{ 3, from->send_scale | from->receive_scale << 16 },
		{ 4, 0 },
		{ 8, 0 },
	};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	MUST(fd);
	put(fd, TCP_REPAIR, TCP_REPAIR_ON);
	put(fd, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
	put(fd, TCP_QUEUE_SEQ, from->out);
	put(fd, TCP_REPAIR_QUEUE, TCP_RECV_QUEUE);
	put(fd, TCP_QUEUE_SEQ, from->in);
	put(fd, TCP_REPAIR_QUEUE, TCP_NO_QUEUE);
	MUST(bind(fd, (const struct sockaddr *)&from->local, sizeof from->local));
	MUST(connect(fd, (const struct sockaddr *)&from->remote, sizeof from->remote));
	MUST(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options, sizeof options));
	put(fd, TCP_TIMESTAMP, from->stamp);
	MUST(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &from->window, sizeof from->window));
	put(fd, TCP_REPAIR, TCP_REPAIR_OFF);
	return fd;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

int main(int count_of_words, char **words)
{
	int count = count_of_words > 1 ? atoi(words[1]) : 1;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof address;
	struct rlimit many;
	int *sockets = calloc(count, sizeof *sockets);
	struct state *states = calloc(count, sizeof *states);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (!sockets || !states)
		return 1;
	MUST(getrlimit(RLIMIT_NOFILE, &many));
	many.rlim_cur = many.rlim_max;
	MUST(setrlimit(RLIMIT_NOFILE, &many));
	MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
	MUST(listen(listener, 128));
	MUST(getsockname(listener, (struct sockaddr *)&address, &length));
	for (int i = 0; i < count; i++) {
		int far = socket(AF_INET, SOCK_STREAM, 0);
		MUST(far);
		MUST(connect(far, (struct sockaddr *)&address, sizeof address));
		sockets[i] = accept(listener, NULL, NULL);
		MUST(sockets[i]);
	}
	/* As in a program that has run for a while. */
	MUST(mlockall(MCL_CURRENT));
	double begun = now();
	for (int i = 0; i < count; i++)
		write_down(sockets[i], &states[i]);
	double between = now();
	for (int i = 0; i < count; i++)
		sockets[i] = rebuild(&states[i]);
	double ended = now();
	printf("%.1f %.1f\n", between - begun, ended - between);
	return 0;
}
