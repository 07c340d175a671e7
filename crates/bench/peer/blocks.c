/*
 * The peer of `cenote-bench alloc`: OpenZFS's own engine allocates from spoiled metaslabs.
 *
 *   libzpool-peer alloc-blocks DIRECTORY POOL THREADS
 *
 * Imports the exported pool for writing, and takes all metaslabs but the spoiled ones out of use, as
 * the other side does; of the spoiled ones all are unloaded but those that the import went on to
 * allocate from. A transaction is held open; in its group, threads call metaslab_alloc, and
 * give back all but their last 64 blocks at once with metaslab_free, which the group's sync never
 * sees. First one block, then blocks of all sizes until all metaslabs are loaded, but a second at
 * least, then a second of it, then what nothing can serve. Prints one line of JSON for each. Nothing
 * is synced at the end: the process just ends.
 */
#include <sys/arc.h>
#include <sys/dmu_tx.h>
#include <sys/dsl_pool.h>
#include <sys/metaslab_impl.h>
#include <sys/spa_impl.h>
#include <sys/vdev_impl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "peer.h"

#define	KEPT 64
#define	MAX_THREADS 64
#define	SAMPLES (1 << 20)
#define	SECONDS 1.0
/* Seconds after which it is enough even if not all metaslabs are loaded. */
#define	PATIENCE 10.0

static const uint64_t served[] = { 4, 8, 16, 64, 128, 168 };

extern int metaslab_preload_enabled;

struct phase {
	spa_t *spa;
	uint64_t txg;
	const uint64_t *sizes;
	int nsizes;
	/* Whether to go on until all spoiled metaslabs are loaded. */
	int until_loaded;
	/* Allocations; 0: as many as there is time for. */
	uint64_t count;
	double until;
};

struct worker {
	struct phase *phase;
	int number;
	float *micros;
	uint64_t count, refused;
	pthread_t thread;
};

static int
all_loaded(spa_t *spa)
{
	vdev_t *vd = spa->spa_root_vdev->vdev_child[0];
	for (uint64_t m = 0; m < vd->vdev_ms_count; m++)
		if (is_spoiled(vd->vdev_ms[m]) && !vd->vdev_ms[m]->ms_loaded)
			return (0);
	return (1);
}

static int
done(struct worker *w, int *seen)
{
	struct phase *p = w->phase;
	double now = wall();
	if (w->count == SAMPLES || (p->count != 0 && w->count == p->count))
		return (1);
	if (p->count != 0)
		return (0);
	if (p->until_loaded && !*seen) {
		*seen = all_loaded(p->spa);
		return (now > p->until + PATIENCE);
	}
	return (now > p->until);
}

static void *
work(void *arg)
{
	struct worker *w = arg;
	struct phase *p = w->phase;
	blkptr_t kept[KEPT] = { 0 };
	int seen = 0;

	for (uint64_t i = 0; !done(w, &seen); i++) {
		blkptr_t *bp = &kept[i % KEPT];
		zio_alloc_list_t trace;
		uint64_t size = p->sizes[(i + w->number) % p->nsizes] << 10;
		if (bp->blk_birth != 0)
			metaslab_free(p->spa, bp, p->txg, B_TRUE);
		BP_ZERO(bp);
		metaslab_trace_init(&trace);
		double start = wall();
		int error = metaslab_alloc(p->spa, spa_normal_class(p->spa),
		    size, bp, 1, p->txg, NULL, 0, &trace, NULL,
		    w->number % p->spa->spa_alloc_count);
		w->micros[w->count++] = (wall() - start) * 1e6;
		metaslab_trace_fini(&trace);
		if (error != 0) {
			VERIFY3S(error, ==, ENOSPC);
			BP_ZERO(bp);
			w->refused++;
		}
	}
	for (int i = 0; i < KEPT; i++)
		if (kept[i].blk_birth != 0)
			metaslab_free(p->spa, &kept[i], p->txg, B_TRUE);
	return (NULL);
}

static int
by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return ((x > y) - (x < y));
}

static void
run(const char *name, struct phase *phase, int threads)
{
	static const double parts[] = { 0.5, 0.99, 0.999, 0.9999, 1.0 };
	struct worker workers[MAX_THREADS];
	uint64_t count = 0, refused = 0;

	phase->until = wall() + SECONDS;
	for (int i = 0; i < threads; i++) {
		float *micros = malloc(SAMPLES * sizeof (float));
		workers[i] = (struct worker) { phase, i, micros };
		VERIFY0(pthread_create(&workers[i].thread, NULL, work,
		    &workers[i]));
	}
	float *all = malloc(threads * SAMPLES * sizeof (float));
	for (int i = 0; i < threads; i++) {
		VERIFY0(pthread_join(workers[i].thread, NULL));
		memcpy(all + count, workers[i].micros,
		    workers[i].count * sizeof (float));
		count += workers[i].count;
		refused += workers[i].refused;
		free(workers[i].micros);
	}
	qsort(all, count, sizeof (float), by_size);
	printf("{\"name\":\"%s\",\"count\":%llu,\"refused\":%llu,\"micros\":[",
	    name, (u_longlong_t)count, (u_longlong_t)refused);
	for (int i = 0; i < 5; i++) {
		double at = (count - 1) * parts[i];
		uint64_t up = (uint64_t)at + (at > (uint64_t)at);
		printf("%s%.3f", i == 0 ? "" : ",", all[up]);
	}
	printf("]}\n");
	fflush(stdout);
	free(all);
}

int
blocks_mode(int argc, char **argv)
{
	static const uint64_t small[] = { 4 }, none[] = { 256 }, hope[] = { 200 };
	int threads = argc == 3 ? atoi(argv[2]) : 0;
	if (threads < 1 || threads > MAX_THREADS) {
		fprintf(stderr, "usage: libzpool-peer alloc-blocks DIRECTORY "
		    "POOL THREADS\n");
		return (2);
	}
	metaslab_preload_enabled = 0;
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	spa_t *spa = import_pool(argv[0], argv[1]);
	vdev_t *vd = spa->spa_root_vdev->vdev_child[0];
	for (uint64_t m = 0; m < vd->vdev_ms_count; m++) {
		metaslab_t *msp = vd->vdev_ms[m];
		mutex_enter(&msp->ms_lock);
		while (msp->ms_loading)
			cv_wait(&msp->ms_load_cv, &msp->ms_lock);
		if (!is_spoiled(msp))
			msp->ms_disabled++;
		else if (msp->ms_loaded &&
		    !(msp->ms_weight & METASLAB_ACTIVE_MASK))
			metaslab_unload(msp);
		mutex_exit(&msp->ms_lock);
	}
	arc_flush(spa, B_FALSE);
	dmu_tx_t *tx = dmu_tx_create_dd(spa->spa_dsl_pool->dp_mos_dir);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	struct phase phase = { .spa = spa, .txg = dmu_tx_get_txg(tx) };
#define	SIZES(of) phase.sizes = of, phase.nsizes = sizeof (of) / sizeof (*of)
	SIZES(small), phase.count = 1;
	run("first", &phase, 1);
	SIZES(served), phase.count = 0, phase.until_loaded = 1;
	run("loading", &phase, threads);
	phase.until_loaded = 0;
	run("loaded", &phase, threads);
	SIZES(none);
	run("256", &phase, threads);
	SIZES(hope);
	run("200", &phase, threads);
	_exit(0);
}
