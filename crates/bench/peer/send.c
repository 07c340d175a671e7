/*
 * Send streams of a pool that is there: dmu_send, whose output is counted.
 *
 *     libzpool-peer send DIRECTORY POOL (SNAPSHOT FROM COMPRESSED ROW) ...
 *
 * SNAPSHOT and FROM are numbers of datasets, FROM 0 for a full stream; COMPRESSED is 0 or 1. Each row begins with an
 * empty ARC and nothing of the device in the page cache. It prints one line of JSON.
 */
#include "peer.h"
#include <sys/arc.h>
#include <sys/dmu_send.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int
count(objset_t *os, void *buf, int len, void *arg)
{
	(void) os, (void) buf;
	*(uint64_t *)arg += len;
	return (0);
}

static void
forget(const char *file)
{
	int fd = open(file, O_RDONLY);

	VERIFY(fd >= 0);
	VERIFY0(fdatasync(fd));
	VERIFY0(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	close(fd);
}

int
send_mode(int argc, char **argv)
{
	char file[4096];

	if (argc < 6 || (argc - 2) % 4 != 0) {
		fprintf(stderr, "usage: send DIRECTORY POOL "
		    "(SNAPSHOT FROM COMPRESSED ROW) ...\n");
		return (2);
	}
	snprintf(file, sizeof (file), "%s/send.img", argv[0]);
	limit_cache(256 << 20);
	for (int i = 2; i < argc; i += 4) {
		uint64_t to = strtoull(argv[i], NULL, 10);
		uint64_t from = strtoull(argv[i + 1], NULL, 10);
		boolean_t compressed = argv[i + 2][0] == '1';
		uint64_t bytes = 0;
		offset_t off = 0;
		dmu_send_outparams_t out = {
			.dso_outfunc = count, .dso_arg = &bytes
		};

		kernel_init(SPA_MODE_READ);
		spa_t *spa = import_pool(argv[0], argv[1]);
		arc_flush(spa, B_FALSE);
		forget(file);
		struct clocks start = clocks();
		VERIFY0(dmu_send_obj(argv[1], to, from, B_TRUE, B_TRUE,
		    compressed, B_FALSE, B_FALSE, -1, &off, &out));
		print_run(argv[i + 3], bytes, 1, start);
		spa_close(spa, FTAG);
		kernel_fini();
	}
	return (0);
}
