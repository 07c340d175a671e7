/*
 * The peer of `cenote-bench dedup`: OpenZFS's own engine writes blocks that are all different, with dedup=sha256.
 *
 *   libzpool-peer dedup FILE BLOCKS BLOCK_SIZE CACHE_MIB DIRTY_MIB
 *
 * It writes the first tenth of the blocks, up to a third, and the rest, each until it is on disk, and then frees the last tenth. After
 * each it prints a line of JSON: how many blocks, what they took, reads of the device, and what the tables take.
 */
#include "peer.h"
#include <sys/ddt.h>
#include <sys/dsl_pool.h>
#include <sys/dsl_prop.h>
#include <sys/txg.h>
#include <stdio.h>
#include <stdlib.h>

#define	OWNER ((void *)write_blocks)
/* Bytes of one transaction. */
#define	WRITE (128 << 10)

static void
print_phase(spa_t *spa, const char *row, uint64_t blocks, uint64_t reads,
    struct clocks start)
{
	struct clocks end = clocks();
	ddt_object_t table = { 0 };

	ddt_get_dedup_object_stats(spa, &table);
	printf("{\"row\":\"%s\",\"blocks\":%llu,\"seconds\":%.4f,"
	    "\"cpu_seconds\":%.4f,\"reads\":%llu,\"entries\":%llu,"
	    "\"table_bytes\":%llu}\n", row, (u_longlong_t)blocks,
	    end.wall - start.wall, end.cpu - start.cpu,
	    (u_longlong_t)(counted.device_reads - reads),
	    (u_longlong_t)table.ddo_count,
	    (u_longlong_t)(table.ddo_count * table.ddo_dspace));
	fflush(stdout);
}

static void
write_blocks(objset_t *os, uint64_t object, uint64_t first, uint64_t end,
    uint64_t size)
{
	uint64_t at_once = MAX(WRITE / size, 1);
	char *data = noise(at_once * size, at_once * size);

	for (uint64_t at = first; at < end; at += at_once) {
		uint64_t n = MIN(at_once, end - at);
		for (uint64_t i = 0; i < n; i++)
			*(uint64_t *)(data + i * size) = at + i + 1;
		write_bytes(os, object, at * size, n * size, data);
	}
	free(data);
	txg_wait_synced(dmu_objset_pool(os), 0);
}

int
dedup_mode(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: dedup FILE BLOCKS BLOCK_SIZE CACHE_MIB "
		    "DIRTY_MIB\n");
		return (2);
	}
	path = argv[0];
	uint64_t blocks = strtoull(argv[1], NULL, 10);
	uint64_t size = strtoull(argv[2], NULL, 10);
	limit_cache(strtoull(argv[3], NULL, 10) << 20);
	sector_shift = size < 4096 ? 9 : 12;
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	zfs_dirty_data_max = strtoull(argv[4], NULL, 10) << 20;
	make_pool(1);
	objset_t *os = make_dataset(ZIO_COMPRESS_OFF, OWNER);
	VERIFY0(dsl_prop_set_int(DATASET, "dedup", ZPROP_SRC_LOCAL,
	    ZIO_CHECKSUM_SHA256));
	spa_t *spa = dmu_objset_spa(os);
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	uint64_t object = dmu_object_alloc(os, DMU_OT_PLAIN_FILE_CONTENTS, size,
	    DMU_OT_NONE, 0, tx);
	dmu_tx_commit(tx);
	txg_wait_synced(dmu_objset_pool(os), 0);

	uint64_t ends[] = { blocks / 10, blocks / 3, blocks };
	const char *rows[] = { "to a tenth", "to a third", "to all" };
	for (int i = 0; i < 3; i++) {
		uint64_t first = i == 0 ? 0 : ends[i - 1];
		uint64_t reads = counted.device_reads;
		struct clocks start = clocks();
		write_blocks(os, object, first, ends[i], size);
		print_phase(spa, rows[i], ends[i] - first, reads, start);
	}
	uint64_t kept = blocks - blocks / 10, reads = counted.device_reads;
	struct clocks start = clocks();
	VERIFY0(dmu_free_long_range(os, object, kept * size, DMU_OBJECT_END));
	/* What is freed is freed in this group or in the next ones. */
	for (int i = 0; i < 3; i++)
		txg_wait_synced(dmu_objset_pool(os), 0);
	print_phase(spa, "frees of a tenth", blocks - kept, reads, start);
	dmu_objset_disown(os, B_FALSE, OWNER);
	VERIFY0(spa_export(POOL, NULL, B_FALSE, B_FALSE));
	kernel_fini();
	return (0);
}
