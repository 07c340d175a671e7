/*
 * Cached reads of small compressed records: dmu_read, as a file system calls it.
 *
 *     libzpool-peer cached FILE SIZE_MIB CACHE_MIB READS
 *
 * Makes a pool `bench` on FILE with sectors of 512 bytes, and in the object set `bench/data` an object of SIZE_MIB in
 * blocks of 8 KiB that lz4 makes 3 KiB of. Imports it again, reads the object once, and then measures READS reads of
 * each of one and two threads, in order and at random. It prints one line of JSON for each row. The pool stays,
 * exported, for the other side to read. The object's number is in the ZAP of object 1, under the name `packed`.
 */
#include "peer.h"
#include <sys/dsl_prop.h>
#include <sys/txg.h>
#include <sys/zap.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define	RECORD (8 << 10)
/* What is left of it, with what lz4 says about it, is a little less than 3 KiB. */
#define	NOISE 2944

struct reader {
	objset_t *os;
	uint64_t object, blocks, reads, seed;
	int is_random;
	pthread_t thread;
};

static void *
read_some(void *arg)
{
	struct reader *r = arg;
	char *buf = malloc(RECORD);
	uint64_t state = r->seed;

	for (uint64_t i = 0; i < r->reads; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		uint64_t block = r->is_random ? state : r->seed + i;
		VERIFY0(dmu_read(r->os, r->object, block % r->blocks * RECORD,
		    RECORD, buf, r->is_random ? DMU_READ_NO_PREFETCH :
		    DMU_READ_PREFETCH));
	}
	free(buf);
	return (NULL);
}

static void
row(const char *name, struct reader *of, int is_random, int threads)
{
	struct reader readers[2];
	struct clocks start = clocks();

	for (int i = 0; i < threads; i++) {
		readers[i] = *of;
		readers[i].is_random = is_random;
		/* The second one is half of the object ahead. */
		readers[i].seed = 1 + i * of->blocks / 2;
		VERIFY0(pthread_create(&readers[i].thread, NULL, read_some,
		    &readers[i]));
	}
	for (int i = 0; i < threads; i++)
		VERIFY0(pthread_join(readers[i].thread, NULL));
	uint64_t ops = of->reads * threads;
	print_run(name, ops * RECORD, ops, start);
}

static uint64_t
make_packed(uint64_t blocks)
{
	char *block = calloc(1, RECORD);
	uint64_t number;
	objset_t *os;

	os = make_dataset(ZIO_COMPRESS_LZ4, FTAG);
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
	dmu_tx_hold_zap(tx, DMU_NEW_OBJECT, B_TRUE, NULL);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	VERIFY0(zap_create_claim(os, 1, DMU_OT_ZAP_OTHER, DMU_OT_NONE, 0, tx));
	number = dmu_object_alloc(os, DMU_OT_PLAIN_FILE_CONTENTS, RECORD,
	    DMU_OT_NONE, 0, tx);
	VERIFY0(zap_add(os, 1, "packed", 8, 1, &number, tx));
	dmu_tx_commit(tx);
	for (uint64_t i = 0; i < blocks; i++) {
		for (int at = 0; at < NOISE; at += 8)
			*(uint64_t *)(block + at) = random64();
		write_bytes(os, number, i * RECORD, RECORD, block);
	}
	txg_wait_synced(dmu_objset_pool(os), 0);
	dmu_objset_disown(os, B_FALSE, FTAG);
	free(block);
	return (number);
}

void
cached_rows(uint64_t bytes, uint64_t reads)
{
	struct reader r = { .blocks = bytes / RECORD, .reads = reads };

	sector_shift = 9;
	make_pool(1);
	r.object = make_packed(r.blocks);
	cycle();
	VERIFY0(dmu_objset_own(DATASET, DMU_OST_OTHER, B_TRUE, B_FALSE, FTAG,
	    &r.os));
	struct reader once = r;
	once.reads = r.blocks;
	read_some(&once);
	row("sequential, 1 thread", &r, 0, 1);
	row("random, 1 thread", &r, 1, 1);
	row("sequential, 2 threads", &r, 0, 2);
	row("random, 2 threads", &r, 1, 2);
	dmu_objset_disown(r.os, B_FALSE, FTAG);
}
