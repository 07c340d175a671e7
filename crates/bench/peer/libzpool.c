/*
 * The peer of the benchmarks: OpenZFS's own engine in user space (libzpool).
 *
 *   libzpool-peer read FILE SIZE_MIB CACHE_MIB
 *   libzpool-peer write FILE SIZE_MIB OVERWRITES
 *   libzpool-peer cached ...: see cached.c
 *   libzpool-peer spacemap ...: see spacemap.c
 *   libzpool-peer clone ...: see clone.c
 *   libzpool-peer zil ...: see zil.c
 *   libzpool-peer scrub ..., libzpool-peer resilver ...: see scrub.c
 *   libzpool-peer send ...: see send.c
 *   libzpool-peer receive ...: see receive.c
 *   libzpool-peer dedup ...: see dedup.c
 *   libzpool-peer alloc ...: see alloc.c
 *   libzpool-peer alloc-blocks ...: see blocks.c
 *
 * `write` makes a pool on FILE for each row, writes SIZE_MIB in 128 KiB (noise, then what lz4
 * halves), overwrites a quarter of that OVERWRITES times at random in 8 KiB, each until it is on
 * disk, and prints one line of JSON per row.
 *
 * `read` makes a pool `bench` on FILE with three objects of SIZE_MIB each in an object set `bench/data`:
 * object "raw", 128 KiB blocks that do not compress; object "lz4", 128 KiB blocks that lz4 halves;
 * object "small", 8 KiB blocks that do not compress. Exports, imports, reads them cold and warm,
 * and prints one line of JSON per row. The pool stays, exported, for the other side to read.
 *
 * The object numbers are in the ZAP of object 1 of the object set, under those names.
 */
#include "peer.h"
#include <sys/arc.h>
#include <sys/dsl_prop.h>
#include <sys/txg.h>
#include <sys/zap.h>
#include <sys/zfeature.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

extern unsigned long zfs_arc_max, zfs_arc_min;
extern char *spa_config_path;

struct object {
	const char *name;
	int block_size;
	enum zio_compress compression;
	uint64_t number;
};

static struct object objects[] = {
	{ "raw", 128 << 10, ZIO_COMPRESS_OFF, 0 },
	{ "lz4", 128 << 10, ZIO_COMPRESS_LZ4, 0 },
	{ "small", 8 << 10, ZIO_COMPRESS_OFF, 0 },
};

char *path;
int sector_shift = 12;
static uint64_t object_bytes;
static uint64_t rng_state = 1;

uint64_t
random64(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return (rng_state);
}

double
wall(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (t.tv_sec + t.tv_nsec / 1e9);
}

static double
user(void)
{
	struct rusage r;
	getrusage(RUSAGE_SELF, &r);
	return (r.ru_utime.tv_sec + r.ru_utime.tv_usec / 1e6);
}

double
cpu(void)
{
	struct rusage r;
	getrusage(RUSAGE_SELF, &r);
	return (r.ru_utime.tv_sec + r.ru_stime.tv_sec +
	    (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6);
}

/* What the host has taken from all processors together. */
static double
stolen(void)
{
	FILE *f = fopen("/proc/stat", "r");
	unsigned long long ticks = 0;

	VERIFY(f != NULL && fscanf(f, "cpu %*u %*u %*u %*u %*u %*u %*u %llu",
	    &ticks) == 1);
	fclose(f);
	return (ticks / (double)sysconf(_SC_CLK_TCK));
}

struct clocks
clocks(void)
{
	struct clocks now = { wall(), cpu(), user(), stolen() };
	return (now);
}

void
print_run(const char *row, uint64_t bytes, uint64_t ops, struct clocks start)
{
	struct clocks end = clocks();

	printf("{\"row\":\"%s\",\"bytes\":%llu,\"ops\":%llu,\"seconds\":%.4f,"
	    "\"cpu_seconds\":%.4f,\"user_seconds\":%.4f,"
	    "\"stolen_seconds\":%.4f}\n", row, (u_longlong_t)bytes,
	    (u_longlong_t)ops, end.wall - start.wall, end.cpu - start.cpu,
	    end.user - start.user, end.stolen - start.stolen);
	fflush(stdout);
}

void
make_pool(int with_log_space_maps)
{
	make_pool_without(with_log_space_maps ? SPA_FEATURES :
	    SPA_FEATURE_LOG_SPACEMAP);
}

void
make_pool_without(int feature)
{
	nvlist_t *file = fnvlist_alloc(), *root = fnvlist_alloc();
	nvlist_t *props = fnvlist_alloc();

	fnvlist_add_string(file, ZPOOL_CONFIG_TYPE, VDEV_TYPE_FILE);
	fnvlist_add_string(file, ZPOOL_CONFIG_PATH, path);
	fnvlist_add_uint64(file, ZPOOL_CONFIG_ASHIFT, sector_shift);
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, &file, 1);
	for (int i = 0; i < SPA_FEATURES; i++) {
		char name[128];
		if (i == feature)
			continue;
		snprintf(name, sizeof (name), "feature@%s",
		    spa_feature_table[i].fi_uname);
		fnvlist_add_uint64(props, name, 0);
	}
	VERIFY0(spa_create(POOL, root, props, NULL, NULL));
	fnvlist_free(file);
	fnvlist_free(root);
	fnvlist_free(props);
}

static void
fill_object(objset_t *os, struct object *o)
{
	char *block = malloc(o->block_size);

	VERIFY0(dsl_prop_set_int(DATASET, "compression", ZPROP_SRC_LOCAL,
	    o->compression));
	for (uint64_t at = 0; at < object_bytes; at += o->block_size) {
		int noise = o->block_size;
		if (o->compression != ZIO_COMPRESS_OFF)
			noise /= 2;
		memset(block, 0, o->block_size);
		for (int i = 0; i < noise; i += 8)
			*(uint64_t *)(block + i) = random64();
		write_bytes(os, o->number, at, o->block_size, block);
	}
	free(block);
	txg_wait_synced(dmu_objset_pool(os), 0);
}

objset_t *
make_dataset(uint64_t compression, void *owner)
{
	objset_t *os;

	VERIFY0(dmu_objset_create(DATASET, DMU_OST_OTHER, 0, NULL, NULL, NULL));
	VERIFY0(dsl_prop_set_int(DATASET, "compression", ZPROP_SRC_LOCAL,
	    compression));
	VERIFY0(dmu_objset_own(DATASET, DMU_OST_OTHER, B_FALSE, B_FALSE, owner,
	    &os));
	return (os);
}

static void
make_objects(void)
{
	objset_t *os;

	VERIFY0(dmu_objset_create(DATASET, DMU_OST_OTHER, 0, NULL, NULL, NULL));
	VERIFY0(dmu_objset_own(DATASET, DMU_OST_OTHER, B_FALSE, B_FALSE, FTAG,
	    &os));
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
	dmu_tx_hold_zap(tx, DMU_NEW_OBJECT, B_TRUE, NULL);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	VERIFY0(zap_create_claim(os, 1, DMU_OT_ZAP_OTHER, DMU_OT_NONE, 0, tx));
	for (int i = 0; i < 3; i++) {
		struct object *o = &objects[i];
		o->number = dmu_object_alloc(os, DMU_OT_PLAIN_FILE_CONTENTS,
		    o->block_size, DMU_OT_NONE, 0, tx);
		VERIFY0(zap_add(os, 1, o->name, 8, 1, &o->number, tx));
	}
	dmu_tx_commit(tx);
	for (int i = 0; i < 3; i++)
		fill_object(os, &objects[i]);
	dmu_objset_disown(os, B_FALSE, FTAG);
}

void
limit_cache(uint64_t bytes)
{
	zfs_arc_max = bytes;
	zfs_arc_min = bytes / 2;
}

/* Exports and imports the pool: nothing is cached after it, here or by the host. */
void
cycle(void)
{
	nvlist_t *config = NULL;

	VERIFY0(spa_export(POOL, &config, B_FALSE, B_FALSE));
	int fd = open(path, O_RDWR);
	VERIFY(fd >= 0 && fdatasync(fd) == 0);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	nvlist_t *found = spa_tryimport(config);
	VERIFY(found != NULL);
	VERIFY0(spa_import(POOL, found, NULL, 0));
	nvlist_free(found);
	nvlist_free(config);
}

static void
read_row(objset_t *os, const char *row, struct object *o, int is_random)
{
	char *buf = malloc(o->block_size);
	uint64_t blocks = object_bytes / o->block_size;
	struct clocks start = clocks();

	for (uint64_t i = 0; i < blocks; i++) {
		uint64_t at = (is_random ? random64() % blocks : i) *
		    o->block_size;
		VERIFY0(dmu_read(os, o->number, at, o->block_size, buf,
		    is_random ? DMU_READ_NO_PREFETCH : DMU_READ_PREFETCH));
	}
	print_run(row, object_bytes, blocks, start);
	free(buf);
}

static void
cold_and_warm(const char *cold, const char *warm, int object, int is_random)
{
	objset_t *os;

	cycle();
	VERIFY0(dmu_objset_own(DATASET, DMU_OST_OTHER, B_TRUE, B_FALSE, FTAG,
	    &os));
	read_row(os, cold, &objects[object], is_random);
	read_row(os, warm, &objects[object], is_random);
	dmu_objset_disown(os, B_FALSE, FTAG);
}

void
write_bytes(objset_t *os, uint64_t object, uint64_t at, uint64_t len,
    const char *data)
{
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_write(tx, object, at, len);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	dmu_write(os, object, at, len, data, tx);
	dmu_tx_commit(tx);
}

static void
write_block(objset_t *os, struct object *o, uint64_t at, const char *block)
{
	write_bytes(os, o->number, at, o->block_size, block);
}

char *
noise(size_t len, size_t of)
{
	char *block = calloc(1, of);
	for (size_t i = 0; i < len; i += 8)
		*(uint64_t *)(block + i) = random64();
	return (block);
}

/* A file whose blocks are there already: no one is to measure how the host allocates. */
void
make_file(uint64_t size)
{
	size_t mib = 1 << 20;
	char *zeros = calloc(1, mib);
	int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
	VERIFY(fd >= 0);
	for (uint64_t at = 0; at < size; at += mib)
		VERIFY3S(pwrite(fd, zeros, mib, at), ==, mib);
	close(fd);
	free(zeros);
}

#define	OWNER	((void *)objects)

/* A fresh pool with one object of each kind; the object set is held until `drop_pool`. */
static objset_t *
fresh_pool(enum zio_compress compression)
{
	objset_t *os;

	make_file(2 * object_bytes + (256 << 20));
	make_pool(1);
	os = make_dataset(compression, OWNER);
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
	VERIFY0(dmu_tx_assign(tx, TXG_WAIT));
	for (int i = 0; i < 3; i++)
		objects[i].number = dmu_object_alloc(os,
		    DMU_OT_PLAIN_FILE_CONTENTS, objects[i].block_size,
		    DMU_OT_NONE, 0, tx);
	dmu_tx_commit(tx);
	txg_wait_synced(dmu_objset_pool(os), 0);
	return (os);
}

static void
drop_pool(objset_t *os)
{
	dmu_objset_disown(os, B_FALSE, OWNER);
	VERIFY0(spa_destroy(POOL));
}

static void
sequential_row(const char *row, struct object *o, size_t noisy)
{
	objset_t *os = fresh_pool(o->compression);
	char *block = noise(noisy, o->block_size);
	struct clocks start = clocks();

	for (uint64_t at = 0; at < object_bytes; at += o->block_size) {
		*(uint64_t *)block = at + 1;
		write_block(os, o, at, block);
	}
	txg_wait_synced(dmu_objset_pool(os), 0);
	print_run(row, object_bytes, object_bytes / o->block_size, start);
	free(block);
	drop_pool(os);
}

static void
overwrites_row(const char *row, struct object *o, uint64_t count)
{
	objset_t *os = fresh_pool(ZIO_COMPRESS_OFF);
	uint64_t bytes = object_bytes / 4;
	char *block = noise(o->block_size, o->block_size);

	for (uint64_t at = 0; at < bytes; at += o->block_size)
		write_block(os, o, at, block);
	txg_wait_synced(dmu_objset_pool(os), 0);
	struct clocks start = clocks();
	for (uint64_t i = 0; i < count; i++) {
		*(uint64_t *)block = random64();
		write_block(os, o, random64() % (bytes / o->block_size) *
		    o->block_size, block);
	}
	txg_wait_synced(dmu_objset_pool(os), 0);
	print_run(row, count * o->block_size, count, start);
	free(block);
	drop_pool(os);
}

static int
write_rows(uint64_t count)
{
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	sequential_row("sequential 128K", &objects[0], 128 << 10);
	sequential_row("sequential 128K lz4", &objects[1], 64 << 10);
	overwrites_row("random 8K overwrites", &objects[2], count);
	kernel_fini();
	return (0);
}

int
main(int argc, char **argv)
{
	spa_config_path = "/nonexistent/zpool.cache";
	if (argc > 3 && strcmp(argv[1], "spacemap") == 0) {
		path = argv[2];
		return (spacemap_rows(argc - 3, argv + 3));
	}
	if (argc > 3 && strcmp(argv[1], "clone") == 0) {
		path = argv[2];
		return (clone_rows(argc - 3, argv + 3));
	}
	if (argc > 3 && strcmp(argv[1], "zil") == 0) {
		path = argv[2];
		return (zil_rows(argc - 3, argv + 3));
	}
	if (argc > 1 && strcmp(argv[1], "scrub") == 0)
		return (scrub_mode(argc - 2, argv + 2));
	if (argc > 1 && strcmp(argv[1], "resilver") == 0)
		return (resilver_mode(argc - 2, argv + 2));
	if (argc > 1 && strcmp(argv[1], "send") == 0)
		return (send_mode(argc - 2, argv + 2));
	if (argc > 1 && strcmp(argv[1], "receive") == 0)
		return (receive_mode(argc - 2, argv + 2));
	if (argc > 1 && strcmp(argv[1], "dedup") == 0)
		return (dedup_mode(argc - 2, argv + 2));
	if (argc > 1 && strcmp(argv[1], "alloc") == 0)
		return (alloc_mode(argc - 2, argv + 2));
	if (argc > 1 && strcmp(argv[1], "alloc-blocks") == 0)
		return (blocks_mode(argc - 2, argv + 2));
	int cached = argc == 6 && strcmp(argv[1], "cached") == 0;
	if (argc != 5 && !cached) {
		fprintf(stderr, "usage: %s read FILE SIZE_MIB CACHE_MIB\n"
		    "       %s write FILE SIZE_MIB OVERWRITES\n", argv[0], argv[0]);
		return (2);
	}
	path = argv[2];
	object_bytes = strtoull(argv[3], NULL, 10) << 20;
	if (strcmp(argv[1], "write") == 0) {
		limit_cache(256 << 20);
		return (write_rows(strtoull(argv[4], NULL, 10)));
	}
	limit_cache(strtoull(argv[4], NULL, 10) << 20);
	int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
	if (fd < 0 || ftruncate(fd, 4 * object_bytes + (256 << 20)) != 0) {
		perror(path);
		return (1);
	}
	close(fd);
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	if (cached) {
		cached_rows(object_bytes, strtoull(argv[5], NULL, 10));
		goto out;
	}
	make_pool(1);
	make_objects();
	cold_and_warm("sequential 128K cold", "sequential 128K warm", 0, 0);
	cold_and_warm("sequential 128K lz4 cold", "sequential 128K lz4 warm", 1, 0);
	cold_and_warm("random 8K cold", "random 8K warm", 2, 1);
out:
	VERIFY0(spa_export(POOL, NULL, B_FALSE, B_FALSE));
	kernel_fini();
	return (0);
}
