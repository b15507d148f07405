/* The thesis's ping, both ends, with its names; then its rebuilding. */
#include <netinet/in.h>
#include <strings.h>

#include "libsockmand.h"
#include "try.h"

#define BUFLEN 512

int main(void)
{
	struct sockaddr_in server, s;
	socklen_t slen = sizeof(server), s2 = sizeof(s);
	char buf[BUFLEN] = "Ping message\0";
	int sd, client, again, uuid;

	bzero(&server, sizeof(server));
	server.sin_family = AF_INET;
	server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	sd = sm_socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP, 0);
	EXPECT(sd != -1);
	EXPECT(sm_bind(sd, (struct sockaddr *)&server, sizeof(server)) == 0);
	EXPECT(getsockname(sd, (struct sockaddr *)&server, &slen) == 0);

	client = sm_socket(AF_INET, SOCK_DGRAM, 0, 0);
	EXPECT(sm_sendto(client, buf, BUFLEN, 0, (struct sockaddr *)&server, slen) == BUFLEN);
	EXPECT(sm_recvfrom(sd, buf, BUFLEN, 0, (struct sockaddr *)&s, &s2) == BUFLEN);
	EXPECT(sm_sendto(sd, buf, BUFLEN, 0, (struct sockaddr *)&s, s2) == BUFLEN);
	EXPECT(sm_read(client, buf, BUFLEN) == BUFLEN);

	uuid = sm_getuuid(client);
	EXPECT(uuid >= 0);
	EXPECT(sm_close(client) == 0);
	again = sm_rebuildsocket(uuid);
	EXPECT(again >= 0);
	FAILS(sm_rebuildsocket(uuid), ENOENT);
	EXPECT(sm_sendto(sd, buf, BUFLEN, 0, (struct sockaddr *)&s, s2) == BUFLEN);
	EXPECT(sm_read(again, buf, BUFLEN) == BUFLEN && strcmp(buf, "Ping message") == 0);
	puts("ok");
	return 0;
}
