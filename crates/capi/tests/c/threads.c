/* Many threads at once, on sockets of their own and on one receiver. */
#include <netinet/in.h>
#include <pthread.h>
#include <unistd.h>

#include "try.h"

#define THREADS 8
#define TIMES 50

static struct wb_receiver *receiver;

static void *give(void *number)
{
	struct wb_uuid first, again;
	char state[32];

	for (int i = 0; i < TIMES; i++) {
		int socket = wb_socket(AF_INET, SOCK_DGRAM, 0, NULL, 0);

		EXPECT(socket >= 0);
		EXPECT(wb_uuid_of(socket, &first) == 0 && wb_uuid_of(socket, &again) == 0);
		EXPECT(memcmp(&first, &again, sizeof(first)) == 0);
		/* errno and reason are each thread's own. */
		FAILS(wb_give(socket, number ? "full" : "nowhere", NULL, NULL, 0, -1), number ? ECANCELED : ENOENT);
		EXPECT((strcmp(wb_reason(), "there is no room there") == 0) == (number != NULL));
		snprintf(state, sizeof(state), "%p %d", number, i);
		EXPECT(wb_give(socket, "there", "all", state, strlen(state), -1) == 0);
		close(socket);
	}
	return NULL;
}

static void *receive(void *count)
{
	struct wb_received got;

	for (int i = 0; i < THREADS * TIMES / 2; i++) {
		EXPECT(wb_receive(receiver, &got, 20000) == 0);
		EXPECT(got.state_length > 0);
		wb_received_free(&got);
		close(got.socket);
		++*(int *)count;
	}
	return NULL;
}

int main(void)
{
	pthread_t givers[THREADS], receivers[2];
	int counts[2] = {0, 0};

	receiver = wb_receiver_open("all");
	EXPECT(receiver != NULL);
	for (int i = 0; i < 2; i++)
		EXPECT(pthread_create(&receivers[i], NULL, receive, &counts[i]) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&givers[i], NULL, give, i % 2 ? &givers[i] : NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(givers[i], NULL) == 0);
	for (int i = 0; i < 2; i++)
		EXPECT(pthread_join(receivers[i], NULL) == 0);
	EXPECT(counts[0] + counts[1] == THREADS * TIMES);
	wb_receiver_close(receiver);
	puts("ok");
	return 0;
}
