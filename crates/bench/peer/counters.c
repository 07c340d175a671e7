/*
 * Functions that stand in front of the engine's, and count.
 *
 * Blocks are counted by kind where they enter a device's queue, device writes where they leave it
 * (below that the engine in user space makes two system calls of each, to be killed in between).
 * The first pass of a group ends when the second calls `dsl_pool_sync`, and the last when labels and
 * uberblocks are written.
 */
#include "peer.h"
#include <sys/dsl_pool.h>
#include <sys/spa_impl.h>
#include <sys/vdev_impl.h>
#include <sys/zfs_file.h>
#include <sys/zio.h>
#include <dlfcn.h>
#include <unistd.h>

struct counters counted;
int device_latency_us;

#define	ADD(to, n)	__atomic_fetch_add(&(to), (n), __ATOMIC_RELAXED)
#define	NEXT(name)	((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Of the group that is being synced. */
static int passes;
static double second_pass, labels;

static enum kind
kind_of(zio_t *zio)
{
	zio_t *logical = zio->io_logical;

	if (logical == NULL || logical->io_bp == NULL)
		return (OTHER);
	if (logical->io_prop.zp_type == DMU_OT_SPACE_MAP)
		return (SPACE_MAP);
	if (logical->io_prop.zp_type != DMU_OT_PLAIN_FILE_CONTENTS)
		return (OTHER);
	return (logical->io_prop.zp_level > 0 ? INDIRECT : DATA);
}

zio_t *
vdev_queue_io(zio_t *zio)
{
	static __typeof__(&vdev_queue_io) next;
	if (next == NULL)
		next = NEXT(vdev_queue_io);
	/* What is aggregated already comes with this flag. */
	if (zio->io_type == ZIO_TYPE_WRITE &&
	    !(zio->io_flags & ZIO_FLAG_DONT_QUEUE)) {
		enum kind kind = kind_of(zio);
		ADD(counted.ios[kind], 1);
		ADD(counted.bytes[kind], zio->io_size);
	}
	return (next(zio));
}

void
dsl_pool_sync(dsl_pool_t *dp, uint64_t txg)
{
	static __typeof__(&dsl_pool_sync) next;
	if (next == NULL)
		next = NEXT(dsl_pool_sync);
	if (++passes == 2)
		second_pass = wall();
	next(dp, txg);
}

int
vdev_config_sync(vdev_t **svd, int count, uint64_t txg)
{
	static __typeof__(&vdev_config_sync) next;
	if (next == NULL)
		next = NEXT(vdev_config_sync);
	if (labels == 0)
		labels = wall();
	return (next(svd, count, txg));
}

void
spa_sync(spa_t *spa, uint64_t txg)
{
	static __typeof__(&spa_sync) next;
	if (next == NULL)
		next = NEXT(spa_sync);
	double begun = wall();
	passes = 0;
	second_pass = 0;
	labels = 0;
	next(spa, txg);
	double ended = wall();
	counted.txgs++;
	counted.passes += passes;
	counted.sync_seconds += ended - begun;
	double passed = labels != 0 ? labels : ended;
	counted.passes_seconds += passed - begun;
	counted.first_pass_seconds += (passes > 1 ? second_pass : passed) - begun;
}

int
zfs_file_pwrite(zfs_file_t *file, const void *data, size_t len, loff_t at,
    ssize_t *left)
{
	static __typeof__(&zfs_file_pwrite) next;
	if (next == NULL)
		next = NEXT(zfs_file_pwrite);
	ADD(counted.device_writes, 1);
	ADD(counted.device_bytes, len);
	if (device_latency_us != 0)
		usleep(device_latency_us);
	return (next(file, data, len, at, left));
}

int
zfs_file_pread(zfs_file_t *file, void *data, size_t len, loff_t at,
    ssize_t *left)
{
	static __typeof__(&zfs_file_pread) next;
	if (next == NULL)
		next = NEXT(zfs_file_pread);
	ADD(counted.device_reads, 1);
	if (device_latency_us != 0)
		usleep(device_latency_us);
	return (next(file, data, len, at, left));
}

/* The engine's own reads /dev/urandom for each of many choices that need no secret. */
int
random_get_pseudo_bytes(uint8_t *to, size_t len)
{
	static __thread uint64_t state;
	if (state == 0)
		state = (uint64_t)(uintptr_t)&state | 1;
	for (size_t i = 0; i < len; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		to[i] = (uint8_t)(state >> 32);
	}
	return (0);
}
