/*
 * What the modes of the peer share.
 */
#ifndef PEER_H
#define	PEER_H

#include <sys/zfs_context.h>
#include <sys/dmu.h>
#include <sys/spa.h>

#define	POOL "bench"
#define	DATASET "bench/data"

/* The device file. */
extern char *path;
/* Sectors of the pools that are made, as a power of two. */
extern int sector_shift;

/* The clocks that a row is measured by. */
struct clocks {
	double wall, cpu, user, stolen;
};

struct clocks clocks(void);
void print_run(const char *row, uint64_t bytes, uint64_t ops, struct clocks);
uint64_t random64(void);
double wall(void);
double cpu(void);
/* Fills `len` bytes of a new buffer of `of` bytes with what does not compress. */
char *noise(size_t len, size_t of);
void make_file(uint64_t size);
/* Has the ARC keep so many bytes, from the next kernel_init on. Its least size is given too: a most size below the default of
 * that, which goes by the memory of the machine, would count for nothing. */
void limit_cache(uint64_t bytes);
/* Exports and imports the pool: nothing is cached after it, here or by the host. */
void cycle(void);
void make_pool(int with_log_space_maps);
/* With all features but one; SPA_FEATURES: with all. */
void make_pool_without(int feature);
/* Makes the data set of a new pool, held by `owner` for writing. */
objset_t *make_dataset(uint64_t compression, void *owner);
void write_bytes(objset_t *os, uint64_t object, uint64_t at, uint64_t len,
    const char *data);

void cached_rows(uint64_t bytes, uint64_t reads);
int spacemap_rows(int argc, char **argv);
int clone_rows(int argc, char **argv);
int zil_rows(int argc, char **argv);
int alloc_mode(int argc, char **argv);
int blocks_mode(int argc, char **argv);
int scrub_mode(int argc, char **argv);
int resilver_mode(int argc, char **argv);
int send_mode(int argc, char **argv);
int receive_mode(int argc, char **argv);
int dedup_mode(int argc, char **argv);

/* Pools with spoiled metaslabs: see alloc.c. */
spa_t *import_pool(char *directory, char *pool);
int is_spoiled(struct metaslab *msp);

/* What a transaction group wrote, by kind of block, before aggregation. */
enum kind { DATA, INDIRECT, SPACE_MAP, OTHER, KINDS };

/* What stands in front of the engine's functions has counted so far. */
struct counters {
	uint64_t ios[KINDS], bytes[KINDS];
	uint64_t device_writes, device_bytes, device_reads;
	uint64_t txgs, passes;
	double sync_seconds, first_pass_seconds, passes_seconds;
};
extern struct counters counted;
/* What each operation of a device takes beyond what it takes. */
extern int device_latency_us;

#endif
