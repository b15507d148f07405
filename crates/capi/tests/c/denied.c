/* A daemon runs that this user may not ask. */
#include <netinet/in.h>
#include <unistd.h>

#include "try.h"

int main(void)
{
	struct wb_uuid uuid;
	int plain = wb_socket(AF_INET, SOCK_STREAM, 0, "auto", 0);

	EXPECT(plain >= 0);
	FAILS(wb_socket(AF_INET, SOCK_STREAM, 0, "auto", WB_REQUIRED), EACCES);
	FAILS(wb_socket(AF_INET, SOCK_STREAM, 0, "self", WB_REQUIRED), EACCES);
	FAILS(wb_uuid_of(plain, &uuid), EACCES);
	FAILS(wb_prepare(plain, "there", NULL, -1), EACCES);
	FAILS(wb_give(plain, "there", NULL, NULL, 0, -1), EACCES);
	puts("ok");
	return 0;
}
