/*
 * The peer of `cenote-bench clone`: OpenZFS's own engine destroys clones.
 *
 *   libzpool-peer clone FILE SIZE_MIB CACHE_MIB LIVELISTS LATENCY_US ROW...
 *
 * Makes a pool on FILE with an object of SIZE_MIB in 8 KiB blocks, and a snapshot of it. Each row
 * `sparse:N` or `contiguous:N` is a clone in which N blocks are overwritten, in one transaction group;
 * `snapshots:N` takes N snapshots with an overwrite before each. The pool is exported and imported, so
 * that nothing is cached, and what was made is destroyed: the time and the device reads until all of it
 * is freed are printed as one line of JSON. Each operation of the device takes LATENCY_US more.
 */
#include "peer.h"
#include <sys/arc.h>
#include <sys/dmu_tx.h>
#include <sys/dsl_dataset.h>
#include <sys/dsl_destroy.h>
#include <sys/dsl_dir.h>
#include <sys/dsl_pool.h>
#include <sys/spa_impl.h>
#include <sys/txg.h>
#include <sys/zap.h>
#include <sys/zfeature.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define	BLOCK (8 << 10)
#define	ORIGIN DATASET "@origin"
#define	CLONE POOL "/clone"

extern int zfs_txg_timeout;

static uint64_t object, blocks;
static char *block;

static void
fill(uint64_t size)
{
	objset_t *os;

	VERIFY0(dmu_objset_create(DATASET, DMU_OST_OTHER, 0, NULL, NULL, NULL));
	VERIFY0(dmu_objset_own(DATASET, DMU_OST_OTHER, B_FALSE, B_FALSE, FTAG, &os));
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	object = dmu_object_alloc(os, DMU_OT_PLAIN_FILE_CONTENTS, BLOCK,
	    DMU_OT_NONE, 0, tx);
	dmu_tx_commit(tx);
	for (uint64_t at = 0; at < size; at += BLOCK) {
		*(uint64_t *)block = at;
		write_bytes(os, object, at, BLOCK, block);
	}
	txg_wait_synced(dmu_objset_pool(os), 0);
	dmu_objset_disown(os, B_FALSE, FTAG);
	blocks = size / BLOCK;
}

static void
overwrite(const char *dataset, int sparse, uint64_t count)
{
	objset_t *os;

	VERIFY0(dmu_objset_own(dataset, DMU_OST_OTHER, B_FALSE, B_FALSE, FTAG, &os));
	for (uint64_t i = 0; i < count; i++) {
		*(uint64_t *)block = random64();
		uint64_t at = sparse ? random64() % blocks : i % blocks;
		write_bytes(os, object, at * BLOCK, BLOCK, block);
	}
	txg_wait_synced(dmu_objset_pool(os), 0);
	dmu_objset_disown(os, B_FALSE, FTAG);
}

static int
is_freeing(spa_t *spa)
{
	return (spa->spa_livelists_to_delete != 0 ||
	    dsl_dir_phys(spa->spa_dsl_pool->dp_free_dir)->dd_used_bytes != 0 ||
	    spa_feature_is_active(spa, SPA_FEATURE_ASYNC_DESTROY));
}

static void
destroy(int livelists, const char *pattern, uint64_t count, uint64_t size)
{
	VERIFY0(spa_export(POOL, NULL, B_FALSE, B_FALSE));
	char *copy = strdup(path);
	spa_t *spa = import_pool(dirname(copy), POOL);
	nvlist_t *snaps = fnvlist_alloc(), *errors = fnvlist_alloc();

	for (uint64_t i = 0; i < count; i++) {
		char name[64];
		snprintf(name, sizeof (name), DATASET "@s%llu", (u_longlong_t)i);
		if (strcmp(pattern, "snapshots") == 0)
			fnvlist_add_boolean(snaps, name);
	}
	txg_wait_synced(spa_get_dsl(spa), 0);
	uint64_t reads = counted.device_reads, txg = spa_last_synced_txg(spa);
	double begun = wall();
	if (nvlist_empty(snaps))
		VERIFY0(dsl_destroy_head(CLONE));
	else
		VERIFY0(dsl_destroy_snapshots_nvl(snaps, B_FALSE, errors));
	while (is_freeing(spa))
		txg_wait_synced(spa_get_dsl(spa), 0);
	printf("{\"livelists\":%s,\"pattern\":\"%s\",\"count\":%llu,\"mib\":%llu,"
	    "\"seconds\":%.6f,\"reads\":%llu,\"txgs\":%llu}\n",
	    livelists ? "true" : "false", pattern, (u_longlong_t)count,
	    (u_longlong_t)size >> 20, wall() - begun,
	    (u_longlong_t)(counted.device_reads - reads),
	    (u_longlong_t)(spa_last_synced_txg(spa) - txg));
	fflush(stdout);
	fnvlist_free(snaps);
	fnvlist_free(errors);
	free(copy);
	spa_close(spa, FTAG);
}

int
clone_rows(int argc, char **argv)
{
	if (argc < 5)
		return (2);
	uint64_t size = strtoull(argv[0], NULL, 10) << 20;
	int livelists = atoi(argv[2]);

	limit_cache(strtoull(argv[1], NULL, 10) << 20);
	zfs_txg_timeout = 3600;
	make_file(3 * size + (1 << 30));
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	make_pool_without(livelists ? SPA_FEATURES : SPA_FEATURE_LIVELIST);
	block = noise(BLOCK, BLOCK);
	fill(size);
	VERIFY0(dmu_objset_snapshot_one(DATASET, "origin"));
	for (int i = 4; i < argc; i++) {
		char *colon = strchr(argv[i], ':');
		VERIFY(colon != NULL);
		*colon = '\0';
		uint64_t count = strtoull(colon + 1, NULL, 10);
		if (strcmp(argv[i], "snapshots") == 0) {
			for (uint64_t s = 0; s < count; s++) {
				char name[32];
				overwrite(DATASET, 1, 10);
				snprintf(name, sizeof (name), "s%llu", (u_longlong_t)s);
				VERIFY0(dmu_objset_snapshot_one(DATASET, name));
			}
		} else {
			VERIFY0(dmu_objset_clone(CLONE, ORIGIN));
			overwrite(CLONE, strcmp(argv[i], "sparse") == 0, count);
		}
		device_latency_us = atoi(argv[3]);
		destroy(livelists, argv[i], count, size);
		device_latency_us = 0;
	}
	free(block);
	VERIFY0(spa_destroy(POOL));
	kernel_fini();
	return (0);
}
