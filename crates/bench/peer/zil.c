/*
 * Synchronous writes of 4 KiB: dmu_write, then zil_commit, by several threads.
 *
 *     libzpool-peer zil FILE SECONDS MIB THREADS ...
 *
 * Each thread overwrites an object of its own, of MIB MiB in blocks of 128 KiB, at random. Each THREADS is a row, on a
 * pool of its own. It prints one line of JSON for each: the median and the 99th percentile in microseconds, and
 * writes a second.
 */
#include "peer.h"
#include <sys/dsl_prop.h>
#include <sys/txg.h>
#include <sys/zil.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define	WRITE (4 << 10)
#define	BLOCK (128 << 10)
#define	MOST_THREADS 64
#define	OWNER ((void *)&committer)

struct writer {
	pthread_t thread;
	objset_t *os;
	zilog_t *log;
	uint64_t object, bytes, state, ops, room;
	double end, *latencies;
};

/* The data is in each record. */
static int
no_data(void *arg, uint64_t arg2, lr_write_t *lr, char *buf, struct lwb *lwb,
    zio_t *zio)
{
	(void) arg, (void) arg2, (void) lr, (void) buf, (void) lwb, (void) zio;
	return (ENOENT);
}

static uint64_t
next(struct writer *w)
{
	w->state ^= w->state << 13;
	w->state ^= w->state >> 7;
	w->state ^= w->state << 17;
	return (w->state);
}

static void
write_and_log(struct writer *w, uint64_t at, const char *data)
{
	dmu_tx_t *tx = dmu_tx_create(w->os);
	dmu_tx_hold_write(tx, w->object, at, WRITE);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	dmu_write(w->os, w->object, at, WRITE, data, tx);
	itx_t *itx = zil_itx_create(TX_WRITE, sizeof (lr_write_t) + WRITE);
	lr_write_t *record = (lr_write_t *)&itx->itx_lr;
	memcpy(record + 1, data, WRITE);
	itx->itx_wr_state = WR_COPIED;
	record->lr_foid = w->object;
	record->lr_offset = at;
	record->lr_length = WRITE;
	record->lr_blkoff = 0;
	BP_ZERO(&record->lr_blkptr);
	itx->itx_private = NULL;
	itx->itx_sync = B_TRUE;
	zil_itx_assign(w->log, itx, tx);
	dmu_tx_commit(tx);
}

static void *
committer(void *arg)
{
	struct writer *w = arg;
	char *data = noise(WRITE, WRITE);

	for (double begun; (begun = wall()) < w->end; w->ops++) {
		*(uint64_t *)data = next(w);
		write_and_log(w, next(w) % (w->bytes / WRITE) * WRITE, data);
		zil_commit(w->log, w->object);
		if (w->ops == w->room) {
			w->room = w->room * 2 + 1024;
			w->latencies = realloc(w->latencies,
			    w->room * sizeof (double));
		}
		w->latencies[w->ops] = wall() - begun;
	}
	free(data);
	return (NULL);
}

static int
by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x < y ? -1 : x > y);
}

static void
print_row(struct writer *w, int threads, double seconds)
{
	uint64_t ops = 0;

	for (int i = 0; i < threads; i++)
		ops += w[i].ops;
	double *all = malloc((ops + 1) * sizeof (double)), *to = all;
	for (int i = 0; i < threads; i++) {
		for (uint64_t n = 0; n < w[i].ops; n++)
			*to++ = w[i].latencies[n];
		free(w[i].latencies);
	}
	qsort(all, ops, sizeof (double), by_size);
	printf("{\"threads\":%d,\"p50\":%.1f,\"p99\":%.1f,\"rate\":%.1f}\n",
	    threads, ops ? all[ops / 2] * 1e6 : 0,
	    ops ? all[ops * 99 / 100] * 1e6 : 0, ops / seconds);
	fflush(stdout);
	free(all);
}

static void
make_object(struct writer *w)
{
	char *block = noise(BLOCK, BLOCK);
	dmu_tx_t *tx = dmu_tx_create(w->os);

	dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	w->object = dmu_object_alloc(w->os, DMU_OT_PLAIN_FILE_CONTENTS, BLOCK,
	    DMU_OT_NONE, 0, tx);
	dmu_tx_commit(tx);
	for (uint64_t at = 0; at < w->bytes; at += BLOCK)
		write_bytes(w->os, w->object, at, BLOCK, block);
	free(block);
}

static void
row(double seconds, uint64_t mib, int threads)
{
	struct writer writers[MOST_THREADS] = { 0 };
	objset_t *os;

	make_file(1 << 30);
	make_pool(1);
	os = make_dataset(ZIO_COMPRESS_OFF, OWNER);
	zilog_t *log = zil_open(os, no_data);
	for (int i = 0; i < threads; i++) {
		struct writer *w = &writers[i];
		w->os = os;
		w->log = log;
		w->bytes = mib << 20;
		w->state = i + 1;
		make_object(w);
	}
	txg_wait_synced(dmu_objset_pool(os), 0);
	double begun = wall();
	for (int i = 0; i < threads; i++) {
		writers[i].end = begun + seconds;
		VERIFY0(pthread_create(&writers[i].thread, NULL, committer,
		    &writers[i]));
	}
	for (int i = 0; i < threads; i++)
		VERIFY0(pthread_join(writers[i].thread, NULL));
	print_row(writers, threads, wall() - begun);
	zil_close(log);
	dmu_objset_disown(os, B_FALSE, OWNER);
	VERIFY0(spa_destroy(POOL));
}

int
zil_rows(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: zil FILE SECONDS MIB THREADS ...\n");
		return (2);
	}
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	for (int i = 2; i < argc; i++) {
		int threads = atoi(argv[i]);
		if (threads < 1 || threads > MOST_THREADS) {
			fprintf(stderr, "%s threads\n", argv[i]);
			return (2);
		}
		row(atof(argv[0]), strtoull(argv[1], NULL, 10), threads);
	}
	kernel_fini();
	return (0);
}
