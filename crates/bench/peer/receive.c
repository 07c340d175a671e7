/*
 * Streams that come through a pipe are received into a new pool: dmu_recv_stream.
 *
 *     libzpool-peer receive FILE (STREAM ROW) ...
 *
 * The first stream makes a data set, the others go on from it. Each row begins with a fresh import, and ends when all is
 * on disk. It prints one line of JSON.
 */
#include "peer.h"
#include <sys/dsl_dataset.h>
#include <sys/dsl_prop.h>
#include <sys/txg.h>
typedef struct dmu_replay_record dmu_replay_record_t;
#include <sys/dmu_recv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* Bytes of a record of a stream. */
#define	RECORD	312

/* Takes the stream of a pipe; returns its bytes. */
static uint64_t
receive(FILE *pipe, char *snapshot)
{
	uint64_t begin[RECORD / sizeof (uint64_t)];
	zfs_file_t file = { .f_fd = fileno(pipe), .f_dump_fd = -1 };
	dmu_recv_cookie_t cookie;
	offset_t off = RECORD;

	VERIFY3U(fread(begin, RECORD, 1, pipe), ==, 1);
	VERIFY0(dmu_recv_begin("bench/to", snapshot,
	    (dmu_replay_record_t *)begin, B_FALSE, B_FALSE, NULL, NULL, NULL, &cookie, &file, &off));
	VERIFY0(dmu_recv_stream(&cookie, &off));
	VERIFY0(dmu_recv_end(&cookie, NULL));
	return (off);
}

int
receive_mode(int argc, char **argv)
{
	spa_t *spa;

	if (argc < 3 || argc % 2 == 0) {
		fprintf(stderr, "usage: receive FILE (STREAM ROW) ...\n");
		return (2);
	}
	path = argv[0];
	limit_cache(256 << 20);
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	make_pool(1);
	VERIFY0(dsl_prop_set_int(POOL, "compression", ZPROP_SRC_LOCAL,
	    ZIO_COMPRESS_LZ4));
	for (int i = 1; i < argc; i += 2) {
		char command[4096], snapshot[16];

		cycle();
		snprintf(command, sizeof (command), "exec cat '%s'", argv[i]);
		snprintf(snapshot, sizeof (snapshot), "s%d", i);
		VERIFY0(spa_open(POOL, &spa, FTAG));
		struct clocks start = clocks();
		FILE *pipe = popen(command, "r");
		VERIFY(pipe != NULL && setvbuf(pipe, NULL, _IONBF, 0) == 0);
		uint64_t bytes = receive(pipe, snapshot);
		VERIFY0(pclose(pipe));
		txg_wait_synced(spa_get_dsl(spa), 0);
		print_run(argv[i + 1], bytes, 1, start);
		spa_close(spa, FTAG);
	}
	VERIFY0(spa_export(POOL, NULL, B_FALSE, B_FALSE));
	kernel_fini();
	return (0);
}
