/*
 * A program with the names of SOCKMAND, which talks in blocks with an echo:  open HOST PORT BLOCKS | rebuild UUID NEXT
 * BLOCKS
 */
#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libsockmand.h"

#define BLOCK 4096

/* What is sent as the block of this number: no two are alike. */
static void fill(uint32_t number, unsigned char *block)
{
	for (size_t at = 0; at < BLOCK; at += 4) {
		uint32_t word = number * 2654435761u + (uint32_t)at;

		memcpy(block + at, &word, 4);
	}
}

static uint32_t talk(int sd, uint32_t next, uint32_t count)
{
	unsigned char wanted[BLOCK], got[BLOCK];

	for (uint32_t end = next + count; next < end; next++) {
		fill(next, wanted);
		for (size_t sent = 0; sent < BLOCK;) {
			int n = sm_write(sd, wanted + sent, BLOCK - sent);

			if (n <= 0)
				err(1, "sm_write");
			sent += n;
		}
		for (size_t received = 0; received < BLOCK;) {
			int n = sm_read(sd, got + received, BLOCK - received);

			if (n <= 0)
				err(1, "sm_read");
			received += n;
		}
		if (memcmp(wanted, got, BLOCK))
			errx(1, "block %u came back as another", next);
	}
	return next;
}

int main(int argc, char **argv)
{
	struct sockaddr_in far = { .sin_family = AF_INET };
	uint32_t next;
	int sd, uuid;

	if (argc == 5 && !strcmp(argv[1], "open")) {
		sd = sm_socket(AF_INET, SOCK_STREAM, IPPROTO_TCP, 0);
		if (sd < 0)
			err(1, "sm_socket");
		far.sin_port = htons(atoi(argv[3]));
		if (inet_pton(AF_INET, argv[2], &far.sin_addr) != 1)
			errx(2, "%s is no address", argv[2]);
		if (sm_connect(sd, (struct sockaddr *)&far, sizeof(far)))
			err(1, "sm_connect");
		talk(sd, 0, atoi(argv[4]));
		uuid = sm_getuuid(sd);
		if (uuid < 0)
			err(1, "sm_getuuid");
		printf("uuid %d\n", uuid);
		return 0;
	}
	if (argc == 5 && !strcmp(argv[1], "rebuild")) {
		sd = sm_rebuildsocket(atoi(argv[2]));
		if (sd < 0)
			err(1, "sm_rebuildsocket");
		next = talk(sd, atoi(argv[3]), atoi(argv[4]));
		printf("next %u\n", next);
		return sm_close(sd) != 0;
	}
	errx(2, "open HOST PORT BLOCKS | rebuild UUID NEXT BLOCKS");
}
