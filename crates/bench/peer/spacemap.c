/*
 * The mode `spacemap`: what transaction groups cost in a pool that has aged.
 *
 *   libzpool-peer spacemap FILE SIZE_MIB FILL_PCT AGE_PCT TXGS LOGS CACHE_MIB DIRTY_MIB...
 *
 * Fills FILL_PCT of a pool on FILE with objects of 8 KiB blocks, overwrites AGE_PCT of them at
 * random, then overwrites DIRTY_MIB at random in each of TXGS transaction groups, and prints one
 * line of JSON for each DIRTY_MIB, and lines `at DONE OF` (blocks written) in between. LOGS (0 or 1): whether there are log space maps. The numbers
 * drawn, and so the order of the work, are those of the other side.
 */
#include "peer.h"
#include <sys/dsl_pool.h>
#include <sys/dsl_prop.h>
#include <sys/metaslab_impl.h>
#include <sys/spa_impl.h>
#include <sys/txg.h>
#include <sys/vdev_impl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

extern int zfs_vdev_default_ms_count, zfs_vdev_default_ms_shift;
extern int zfs_txg_timeout, spa_asize_inflation;

#define	BLOCK	(8 << 10)
#define	FILL_BLOCK	(128 << 10)
#define	OBJECTS	16
/* Groups of the ageing, in bytes, and groups before those that are measured. */
#define	AGE_BYTES	(128 << 20)
#define	WARM	3

static objset_t *os;
static uint64_t objects[OBJECTS], blocks;
/* Blocks that are written, and that will be. */
static uint64_t done, in_all;

static void
progress(uint64_t more)
{
	done += more;
	printf("at %llu %llu\n", (u_longlong_t)done, (u_longlong_t)in_all);
	fflush(stdout);
}

static void
make_objects(void)
{
	os = make_dataset(ZIO_COMPRESS_OFF, objects);
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	for (int i = 0; i < OBJECTS; i++)
		objects[i] = dmu_object_alloc(os, DMU_OT_PLAIN_FILE_CONTENTS,
		    BLOCK, DMU_OT_NONE, 0, tx);
	dmu_tx_commit(tx);
}

static void
wait_synced(void)
{
	txg_wait_synced(dmu_objset_pool(os), 0);
}

static void
overwrite(uint64_t count, char *block)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t v = random64();
		uint64_t at = random64() % blocks * BLOCK;
		*(uint64_t *)block = v;
		write_bytes(os, objects[v % OBJECTS], at, BLOCK, block);
	}
	wait_synced();
	progress(count);
}

static void
print_row(int logs, uint64_t dirty, uint64_t txgs, double seconds, double used,
    const struct counters *b)
{
	const struct counters *e = &counted;
	spa_t *spa = dmu_objset_spa(os);
	vdev_t *vd = spa->spa_root_vdev->vdev_child[0];
	metaslab_class_t *mc = spa_normal_class(spa);
	uint64_t touched = 0;
	struct rusage r;

	for (uint64_t i = 0; i < vd->vdev_ms_count; i++)
		touched += vd->vdev_ms[i]->ms_sm != NULL;
	getrusage(RUSAGE_SELF, &r);
	printf("{\"logs\":%s,\"dirty\":%llu,\"txgs\":%llu,\"overwrites\":%llu,"
	    "\"seconds\":%.4f,\"cpu_seconds\":%.4f,\"sync_seconds\":%.4f,"
	    "\"first_pass_seconds\":%.4f,\"passes_seconds\":%.4f,\"passes\":%llu,",
	    logs ? "true" : "false", (u_longlong_t)dirty, (u_longlong_t)txgs,
	    (u_longlong_t)(dirty / BLOCK * txgs), seconds, used,
	    e->sync_seconds - b->sync_seconds,
	    e->first_pass_seconds - b->first_pass_seconds,
	    e->passes_seconds - b->passes_seconds,
	    (u_longlong_t)(e->passes - b->passes));
	static const char *names[KINDS] =
	    { "data", "indirect", "space_map", "other" };
	printf("\"blocks\":{");
	for (int i = 0; i < KINDS; i++)
		printf("%s\"%s\":{\"ios\":%llu,\"bytes\":%llu}", i ? "," : "",
		    names[i], (u_longlong_t)(e->ios[i] - b->ios[i]),
		    (u_longlong_t)(e->bytes[i] - b->bytes[i]));
	printf("},\"device_writes\":%llu,\"device_bytes\":%llu,"
	    "\"memory\":%llu,\"metaslabs\":%llu,\"touched\":%llu,"
	    "\"full\":%.4f}\n",
	    (u_longlong_t)(e->device_writes - b->device_writes),
	    (u_longlong_t)(e->device_bytes - b->device_bytes),
	    (u_longlong_t)r.ru_maxrss << 10, (u_longlong_t)vd->vdev_ms_count,
	    (u_longlong_t)touched, (double)metaslab_class_get_alloc(mc) /
	    metaslab_class_get_space(mc));
	fflush(stdout);
}

static void
measure(int logs, uint64_t dirty, uint64_t txgs, char *block)
{
	for (int i = 0; i < WARM; i++)
		overwrite(dirty / BLOCK, block);
	struct counters before = counted;
	double w = wall(), c = cpu();
	for (uint64_t i = 0; i < txgs; i++)
		overwrite(dirty / BLOCK, block);
	print_row(logs, dirty, txgs, wall() - w, cpu() - c, &before);
}

static void
fill_and_age(uint64_t bytes, uint64_t percent, char *block)
{
	uint64_t each = bytes / OBJECTS / FILL_BLOCK * FILL_BLOCK;

	blocks = each / BLOCK;
	in_all += blocks * OBJECTS + blocks * OBJECTS * percent / 100;
	for (uint64_t at = 0; at < each; at += FILL_BLOCK) {
		for (int i = 0; i < OBJECTS; i++) {
			*(uint64_t *)block = at;
			write_bytes(os, objects[i], at, FILL_BLOCK, block);
		}
		if (at % (FILL_BLOCK * 64) == 0)
			progress(MIN(each - at, FILL_BLOCK * 64) / BLOCK * OBJECTS);
	}
	wait_synced();
	uint64_t left = blocks * OBJECTS * percent / 100;
	while (left > 0) {
		uint64_t now = MIN(left, AGE_BYTES / BLOCK);
		overwrite(now, block);
		left -= now;
	}
}

int
spacemap_rows(int argc, char **argv)
{
	if (argc < 7)
		return (2);
	uint64_t size = strtoull(argv[0], NULL, 10) << 20;
	uint64_t fill = strtoull(argv[1], NULL, 10);
	uint64_t age = strtoull(argv[2], NULL, 10);
	uint64_t txgs = strtoull(argv[3], NULL, 10);
	int logs = atoi(argv[4]);

	limit_cache(strtoull(argv[5], NULL, 10) << 20);
	zfs_txg_timeout = 3600;
	/* What a change may cost at most, in its own bytes: the pool has no RAID-Z and one copy. */
	spa_asize_inflation = 6;
	/* At least 200 metaslabs, of a power of two each. */
	zfs_vdev_default_ms_count = 400;
	zfs_vdev_default_ms_shift = highbit64(size / 256) - 1;
	make_file(size);
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	make_pool(logs);
	make_objects();
	char *block = noise(FILL_BLOCK, FILL_BLOCK);
	for (int i = 6; i < argc; i++)
		in_all += (txgs + WARM) * ((strtoull(argv[i], NULL, 10) << 20) / BLOCK);
	fill_and_age(size * fill / 100, age, block);
	for (int i = 6; i < argc; i++)
		measure(logs, strtoull(argv[i], NULL, 10) << 20, txgs, block);
	free(block);
	dmu_objset_disown(os, B_FALSE, objects);
	VERIFY0(spa_destroy(POOL));
	kernel_fini();
	return (0);
}
