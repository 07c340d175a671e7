/*
 * The peer of `cenote-bench alloc`: OpenZFS's own engine loads spoiled metaslabs.
 *
 *   libzpool-peer alloc DIRECTORY POOL
 *
 * Imports the exported pool read-only and loads every metaslab whose space map has more than a
 * million records, cold and then with the space map cached. Prints one line of JSON per load.
 * Memory is what jemalloc says is allocated more with the metaslab loaded than without.
 */
#include <sys/arc.h>
#include <sys/metaslab_impl.h>
#include <sys/spa_impl.h>
#include <sys/vdev_impl.h>
#include <libzutil.h>
#include <jemalloc/jemalloc.h>
#include <stdio.h>

#include "peer.h"

extern boolean_t spa_mode_readable_spacemaps;

#define	SPOILED_RECORDS 1000000

static double
seconds(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (t.tv_sec + t.tv_nsec / 1e9);
}

static uint64_t
allocated(void)
{
	uint64_t epoch = 1;
	size_t bytes = 0, len = sizeof (bytes);
	VERIFY0(mallctl("epoch", NULL, NULL, &epoch, sizeof (epoch)));
	VERIFY0(mallctl("stats.allocated", &bytes, &len, NULL, 0));
	return (bytes);
}

spa_t *
import_pool(char *directory, char *pool)
{
	char *paths[] = { directory };
	importargs_t args = { .paths = 1, .path = paths, .can_be_active = B_TRUE };
	nvlist_t *config = NULL;
	spa_t *spa = NULL;

	VERIFY0(zpool_find_config(NULL, pool, &config, &args,
	    &libzpool_config_ops));
	VERIFY0(spa_import(pool, config, NULL, ZFS_IMPORT_MISSING_LOG));
	VERIFY0(spa_open(pool, &spa, FTAG));
	nvlist_free(config);
	return (spa);
}

int
is_spoiled(metaslab_t *msp)
{
	uint64_t length = msp->ms_sm == NULL ? 0 : space_map_length(msp->ms_sm);
	return (length / sizeof (uint64_t) >= SPOILED_RECORDS);
}

static void
load_one(metaslab_t *msp, int cold)
{
	if (cold)
		arc_flush(msp->ms_group->mg_vd->vdev_spa, B_FALSE);
	double wall = seconds(CLOCK_MONOTONIC);
	double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
	mutex_enter(&msp->ms_lock);
	VERIFY0(metaslab_load(msp));
	wall = seconds(CLOCK_MONOTONIC) - wall;
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	uint64_t segments = range_tree_numsegs(msp->ms_allocatable);
	uint64_t loaded = allocated();
	metaslab_unload(msp);
	uint64_t memory = loaded - allocated();
	mutex_exit(&msp->ms_lock);
	double sectors = msp->ms_size >> msp->ms_group->mg_vd->vdev_ashift;
	printf("{\"metaslab\":%llu,\"cold\":%s,\"seconds\":%.4f,"
	    "\"cpu_seconds\":%.4f,\"segments\":%llu,\"memory\":%llu,"
	    "\"bits_per_sector\":%.4f}\n", (u_longlong_t)msp->ms_id,
	    cold ? "true" : "false", wall, cpu, (u_longlong_t)segments,
	    (u_longlong_t)memory, memory * 8.0 / sectors);
	fflush(stdout);
}

int
alloc_mode(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: libzpool-peer alloc DIRECTORY POOL\n");
		return (2);
	}
	spa_mode_readable_spacemaps = B_TRUE;
	limit_cache(1ULL << 30);
	kernel_init(SPA_MODE_READ);
	spa_t *spa = import_pool(argv[0], argv[1]);
	vdev_t *vd = spa->spa_root_vdev->vdev_child[0];
	for (uint64_t m = 0; m < vd->vdev_ms_count; m++) {
		metaslab_t *msp = vd->vdev_ms[m];
		if (!is_spoiled(msp))
			continue;
		load_one(msp, 1);
		load_one(msp, 0);
	}
	spa_close(spa, FTAG);
	kernel_fini();
	return (0);
}
