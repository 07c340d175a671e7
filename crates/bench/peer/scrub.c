/*
 * The peer of `cenote-bench scrub`: OpenZFS's own engine scrubs and resilvers.
 *
 *   libzpool-peer scrub DIRECTORY POOL CACHE_MIB OBJECT SIZE READ_SIZE READS
 *   libzpool-peer resilver DIRECTORY POOL CACHE_MIB
 *
 * `scrub` imports the pool and scrubs it. Then it reads READ_SIZE bytes at a time, READS times, at random places of the first
 * SIZE bytes of OBJECT in the pool's root data set, and does so again in front of another scrub, until that is over.
 * `resilver` imports the pool, of which a device has missed something, and waits until it has everything. Each prints a
 * line of JSON.
 */
#include "peer.h"
#include <sys/arc.h>
#include <sys/dsl_pool.h>
#include <sys/dsl_scan.h>
#include <sys/spa_impl.h>
#include <sys/txg.h>
#include <sys/vdev_impl.h>
#include <stdio.h>
#include <stdlib.h>

/* Most reads that are timed in front of a scrub. */
#define	MOST_READS (4 << 20)

static int
is_scanning(spa_t *spa)
{
	return (dsl_scan_scrubbing(spa_get_dsl(spa)) ||
	    dsl_scan_resilvering(spa_get_dsl(spa)));
}

static void *
wait_for_scan(void *arg)
{
	spa_t *spa = arg;

	while (is_scanning(spa))
		txg_wait_synced(spa_get_dsl(spa), 0);
	return (NULL);
}

static int
ascending(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;
	return (d < 0 ? -1 : d > 0);
}

/* Microseconds that 99 of 100 reads take at most: of `reads`, or of those that are made while the pool is scanned. */
static double
p99(spa_t *spa, objset_t *os, char **argv, uint64_t reads)
{
	uint64_t object = strtoull(argv[3], NULL, 10);
	uint64_t size = strtoull(argv[4], NULL, 10);
	uint64_t read_size = strtoull(argv[5], NULL, 10);
	char *buffer = malloc(read_size);
	double *took = calloc(MOST_READS, sizeof (double));
	uint64_t n = 0;

	while (n < MOST_READS && (reads != 0 ? n < reads : is_scanning(spa))) {
		uint64_t at = random64() % (size / read_size) * read_size;
		double begun = wall();
		VERIFY0(dmu_read(os, object, at, read_size, buffer,
		    DMU_READ_NO_PREFETCH));
		took[n++] = (wall() - begun) * 1e6;
	}
	qsort(took, n, sizeof (double), ascending);
	double found = n == 0 ? 0 : took[n * 99 / 100];
	free(took);
	free(buffer);
	return (found);
}

int
scrub_mode(int argc, char **argv)
{
	objset_t *os;
	pthread_t waiting;

	VERIFY3S(argc, ==, 7);
	limit_cache(strtoull(argv[2], NULL, 10) << 20);
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	spa_t *spa = import_pool(argv[0], argv[1]);
	VERIFY0(dmu_objset_own(argv[1], DMU_OST_ZFS, B_TRUE, B_FALSE, FTAG,
	    &os));
	struct clocks start = clocks();
	VERIFY0(spa_scan(spa, POOL_SCAN_SCRUB));
	(void) wait_for_scan(spa);
	struct clocks end = clocks();
	uint64_t bytes = spa_get_dsl(spa)->dp_scan->scn_phys.scn_examined;
	double quiet = p99(spa, os, argv, strtoull(argv[6], NULL, 10));
	double begun = wall();
	VERIFY0(spa_scan(spa, POOL_SCAN_SCRUB));
	VERIFY0(pthread_create(&waiting, NULL, wait_for_scan, spa));
	double busy = p99(spa, os, argv, 0);
	pthread_join(waiting, NULL);
	printf("{\"bytes\":%llu,\"seconds\":%.4f,\"cpu_seconds\":%.4f,"
	    "\"quiet_us\":%.1f,\"busy_us\":%.1f,\"busy_seconds\":%.4f}\n",
	    (u_longlong_t)bytes, end.wall - start.wall, end.cpu - start.cpu,
	    quiet, busy, wall() - begun);
	dmu_objset_disown(os, B_FALSE, FTAG);
	spa_close(spa, FTAG);
	VERIFY0(spa_export(argv[1], NULL, B_FALSE, B_FALSE));
	kernel_fini();
	return (0);
}

int
resilver_mode(int argc, char **argv)
{
	int lacking;

	VERIFY3S(argc, ==, 3);
	limit_cache(strtoull(argv[2], NULL, 10) << 20);
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	double begun = wall();
	spa_t *spa = import_pool(argv[0], argv[1]);
	do {
		txg_wait_synced(spa_get_dsl(spa), 0);
		spa_config_enter(spa, SCL_ALL, FTAG, RW_READER);
		lacking = vdev_resilver_needed(spa->spa_root_vdev, NULL, NULL);
		spa_config_exit(spa, SCL_ALL, FTAG);
	} while (lacking || is_scanning(spa));
	printf("{\"seconds\":%.4f,\"bytes\":%llu}\n", wall() - begun,
	    (u_longlong_t)spa_get_dsl(spa)->dp_scan->scn_phys.scn_processed);
	spa_close(spa, FTAG);
	VERIFY0(spa_export(argv[1], NULL, B_FALSE, B_FALSE));
	kernel_fini();
	return (0);
}
