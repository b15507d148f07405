/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program with two connections, whose sockets are plain or of libwhimbrel; local.rs tells it what to do.
 *
 *   local plain|anchor ADDRESS PORT
 *
 * The first connection is answered byte by byte, the second only takes. On each line of standard input, `trips MS` or
 * `bulk MS`, it does so for that long and prints one number: the median round trip in nanoseconds, or the bytes that it
 * has written.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <whimbrel.h>

#define MOST_TRIPS 1000000
#define BLOCK (128 << 10)

static long long trips[MOST_TRIPS];
static char block[BLOCK];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int open_connection(int plain, const struct sockaddr_in *to)
{
	int one = 1;
	int fd = plain ? socket(AF_INET, SOCK_STREAM, 0) : wb_socket(AF_INET, SOCK_STREAM, 0, "self", WB_REQUIRED);

	if (fd < 0)
		die("socket");
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5))
		die("TCP_CONGESTION");
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		die("TCP_NODELAY");
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to)))
		die("connect");
	return fd;
}

static int compare(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;

	return (x > y) - (x < y);
}

static long long make_trips(int fd, long long until)
{
	long long asked = now();
	int count = 0;
	char byte = 1;

	while (asked < until && count < MOST_TRIPS) {
		long long answered;

		if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
			die("a round trip");
		answered = now();
		trips[count++] = answered - asked;
		asked = answered;
	}
	qsort(trips, count, sizeof(trips[0]), compare);
	return trips[count / 2];
}

static long long write_bulk(int fd, long long until)
{
	long long total = 0;

	while (now() < until) {
		ssize_t written = write(fd, block, sizeof(block));

		if (written <= 0)
			die("write");
		total += written;
	}
	return total;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int asked, bulk, plain;
	char order[16];
	int length;

	if (argc != 4 || inet_pton(AF_INET, argv[2], &to.sin_addr) != 1)
		return 2;
	to.sin_port = htons(atoi(argv[3]));
	plain = !strcmp(argv[1], "plain");
	asked = open_connection(plain, &to);
	bulk = open_connection(plain, &to);
	printf("open\n");
	fflush(stdout);
	while (scanf("%15s %d", order, &length) == 2) {
		long long until = now() + length * 1000000LL;

		printf("%lld\n", strcmp(order, "bulk") ? make_trips(asked, until) : write_bulk(bulk, until));
		fflush(stdout);
	}
	return 0;
}
