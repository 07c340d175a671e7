/*
 * OpenZFS's own engine (libzpool) at work on a pool, by a script.
 *
 *   writer POOL FILE...  < script
 *
 * The pool is on the FILEs. A script has one command a line; after the first one that fails, the
 * program ends with status 1 and says which. What it reads and writes are the bytes that follow
 * from a seed, the same as the tests' own.
 *
 *   create KIND                     makes the pool: "stripe", "mirror", "raidz1", "raidz2"
 *   draid PARITY DATA SPARES        makes the pool: of one dRAID vdev
 *   import                          as `zpool import` does
 *   rewind                          the same with --rewind-to-checkpoint
 *   checkpoint                      as `zpool checkpoint` does
 *   discard                         as `zpool checkpoint -d -w` does
 *   begin-discard                   as `zpool checkpoint -d` does
 *   export                          as `zpool export` does
 *   crash                           ends at once; what was synced is on disk
 *   sync                            waits for a transaction group
 *   dataset NAME                    creates an object set of no special kind
 *   write NAME OBJ BLOCK LEN SEED   creates the object if need be, writes all of it
 *   check NAME OBJ LEN SEED         reads it and compares
 *   punch NAME OBJ FROM LEN         frees a range
 *   free NAME OBJ                   frees an object
 *   log NAME OBJ BLOCK LEN SEED N   writes all of it, block by block, and logs each as a block that is written for good
 *                                   (WR_INDIRECT), until N of a group are gang blocks; to be followed by "crash"
 *   names NAME OBJ FROM TO          creates the ZAP if need be, adds "name-N" = N
 *   find NAME OBJ FROM TO           looks them up
 *   snapshot NAME@SNAP, clone NAME@SNAP NAME, promote NAME, destroy NAME[@SNAP]
 *   rename NAME NAME, bookmark NAME@SNAP NAME#MARK, hold NAME@SNAP TAG, release NAME@SNAP TAG
 *   receive NAME@SNAP FILE          receives the stream in a file
 *   receive-some NAME@SNAP FILE     receives one that ends early, and keeps what has come (-s)
 *   receive-on NAME@SNAP FILE NAME@SNAP   receives a clone of a snapshot
 *   redact NAME@SNAP MARK NAME@SNAP...   as `zfs redact` does
 *   redact-blocks NAME OBJ FROM LEN leaves a range of a redacted dataset out (dmu_redact): its pointers say so
 *   send NAME@SNAP FILE FROM MARK   as `zfs send -i FROM --redact MARK` does; "-" for no such thing
 *   number NAME PROP N              sets a property that is a number or an index
 *   string NAME PROP TEXT           sets one that is a text
 *   quota, reservation, refreservation, limit NAME N
 *   features                        enables all that there are
 *   version N                       takes the pool to a later version
 *   scrub                           reads everything; an error counts as failure
 *   begin-scrub                     begins a scrub that does little in each group
 *   end-scan                        waits until a scrub or resilver is over; an error counts as failure
 *   resilver                        waits until no device lacks anything; an error counts as failure
 *   join HOW OLD NEW                puts file number NEW beside OLD: "attach", "replace", and these with "-s" for a
 *                                   sequential rebuild; or "spare": it steps in for it
 *   stand-in HOW OLD NAME           the distributed spare NAME steps in for file OLD: "resilver", "rebuild"
 *   leave N                         takes file number N out of the vdev that it is in
 *   idle NAME                       takes the distributed spare NAME out of the vdev that it is in
 *   spare N                         adds file number N as a hot spare
 *   cache N                         adds file number N as a cache device
 *   small-caches                    cache devices of any size have log blocks, and what is read ahead goes there and comes from
 *                                   there; to be said before "import"
 *   fed BYTES                       waits until so much was written to cache devices
 *   found N                         waits until N log blocks of cache devices were found again
 *   hits N                          fails unless N blocks came from cache devices, and none was wrong
 *   offline N, online N             takes file number N out of use, brings it back
 *   hold N                          has resilvers and rebuilds stay where they are, or go on (0)
 *   rebuilt                         waits until no sequential rebuild is under way
 *   half-rebuilt                    lets a rebuild that is held do a part of its work
 *   half-resilvered                 the same of a resilver
 *   space SIZE USABLE SLACK         says whether all space but that of log vdevs is SIZE, and what datasets can
 *                                   have is USABLE, or up to SLACK more
 *   remove N                        removes a top-level vdev, and waits until it is empty
 *   begin-remove N                  begins to remove one, and waits for a transaction group only
 *   end-remove                      waits until a removal that is under way is over
 *   segment N                       most bytes of a piece of the mapping of a vdev that is removed
 *   condense N                      starts to make the mapping of a removed vdev shorter, and goes no further
 */
#include <sys/zfs_context.h>
#include <poll.h>
#include <sys/arc_impl.h>
#include <sys/dmu.h>
#include <sys/dsl_prop.h>
#include <sys/dsl_scan.h>
#include <sys/dsl_synctask.h>
#include <sys/metaslab.h>
#include <sys/spa.h>
#include <sys/spa_checkpoint.h>
#include <sys/spa_impl.h>
#include <sys/txg.h>
#include <sys/vdev_impl.h>
#include <sys/vdev_rebuild.h>
#include <sys/zap.h>
#include <sys/zfeature.h>
#include <sys/zil.h>
#include <sys/zio_checksum.h>
#include <sys/zthr.h>
/* Debian's headers leave out what this is. */
typedef struct dmu_replay_record dmu_replay_record_t;
#include <sys/dmu_recv.h>
#include <sys/dmu_send.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Debian's headers lack one that those with these need. */
extern int dsl_destroy_head(const char *);
extern int zfs_scrub_min_time_ms;
extern int zfs_resilver_min_time_ms;
extern int zfs_scan_suspend_progress;
extern unsigned long zfs_rebuild_max_segment;
extern unsigned long zfs_rebuild_vdev_limit;
extern int dsl_destroy_snapshot(const char *, boolean_t);
extern int dsl_dataset_promote(const char *, char *);
extern int dsl_dataset_set_refreservation(const char *, zprop_source_t, uint64_t);
extern int dsl_dataset_user_hold(nvlist_t *, minor_t, nvlist_t *);
extern int dsl_dataset_user_release(nvlist_t *, nvlist_t *);
extern int dsl_dir_rename(const char *, const char *);
extern int dsl_dir_set_quota(const char *, zprop_source_t, uint64_t);
extern int dsl_dir_set_reservation(const char *, zprop_source_t, uint64_t);
extern int dsl_dir_activate_fs_ss_limit(const char *);
extern int dsl_bookmark_create(nvlist_t *, nvlist_t *);
extern boolean_t dsl_scan_scrubbing(const struct dsl_pool *);
extern char *spa_config_path;
extern int zfs_remove_max_segment;
extern int zfs_allow_redacted_dataset_mount;
extern int zfs_txg_timeout;
extern unsigned long metaslab_force_ganging;

#define	CHUNK	(128 << 10)
#define	MAX_WORDS	8
/* How large a label is, where its config is with its checksum (vdev_phys_t), and how long they may be. */
#define	LABEL_SIZE	((off_t)256 << 10)
#define	PHYS_AT		(16 << 10)
#define	PHYS_SIZE	(112 << 10)
#define	CONFIG_SIZE	(PHYS_SIZE - 40)

extern unsigned long l2arc_rebuild_blocks_min_l2size, l2arc_headroom;
extern int l2arc_noprefetch;

static char *pool;
static char **files;
static int file_count;

/* Offsets of a file's system attributes behind their header, and a flag among them. */
#define	GEN_AT		16
#define	UID_AT		24
#define	GID_AT		32
#define	FLAGS_AT	48
#define	PROJECT_AT	128
#define	HAS_PROJECT	0x0000800000000000ULL
#define	HEADER_MAGIC	0x2F505A

static uint64_t
word_at(const char *data, int at)
{
	uint64_t word;
	memcpy(&word, data + at, 8);
	return (word);
}

/* Whose a file is: without an answer, nothing is counted for its owners. */
static int
owner_of(dmu_object_type_t bonus, const void *data, zfs_file_info_t *info)
{
	uint32_t magic;
	uint16_t layout;

	memset(info, 0, sizeof (*info));
	if (bonus != DMU_OT_SA)
		return (ENOENT);
	if (data == NULL)
		return (EEXIST);
	memcpy(&magic, data, sizeof (magic));
	memcpy(&layout, (const char *)data + 4, sizeof (layout));
	if (magic != HEADER_MAGIC)
		return (magic == 0 ? 0 : EINVAL);
	const char *attributes = (const char *)data + (layout >> 10) * 8;
	info->zfi_user = word_at(attributes, UID_AT);
	info->zfi_group = word_at(attributes, GID_AT);
	info->zfi_generation = word_at(attributes, GEN_AT);
	if (word_at(attributes, FLAGS_AT) & HAS_PROJECT)
		info->zfi_project = word_at(attributes, PROJECT_AT);
	return (0);
}

static uint64_t
number(const char *text)
{
	return (strtoull(text, NULL, 0));
}

/* The bytes of a seed, in order. */
static void
noise(uint64_t *state, char *to, size_t len)
{
	for (size_t i = 0; i < len; i += 8) {
		*state ^= *state << 13;
		*state ^= *state >> 7;
		*state ^= *state << 17;
		memcpy(to + i, state, len - i < 8 ? len - i : 8);
	}
}

static uint64_t
seeded(uint64_t seed)
{
	return ((seed * 0x9e3779b97f4a7c15ULL) | 1);
}

/* Adds all features to properties of a pool. */
static void
all_features(nvlist_t *props)
{
	for (int i = 0; i < SPA_FEATURES; i++) {
		char name[128];
		snprintf(name, sizeof (name), "feature@%s",
		    spa_feature_table[i].fi_uname);
		fnvlist_add_uint64(props, name, 0);
	}
}

/* The configs of all files. */
static nvlist_t **
all_leaves(void)
{
	nvlist_t **leaves = calloc(file_count, sizeof (nvlist_t *));

	for (int i = 0; i < file_count; i++) {
		leaves[i] = fnvlist_alloc();
		fnvlist_add_string(leaves[i], ZPOOL_CONFIG_TYPE, VDEV_TYPE_FILE);
		fnvlist_add_string(leaves[i], ZPOOL_CONFIG_PATH, files[i]);
		fnvlist_add_uint64(leaves[i], ZPOOL_CONFIG_ASHIFT, 12);
	}
	return (leaves);
}

static int
create_draid(uint64_t parity, uint64_t data, uint64_t spares)
{
	nvlist_t *root = fnvlist_alloc(), *props = fnvlist_alloc();
	nvlist_t *top = fnvlist_alloc(), **leaves = all_leaves();
	uint64_t groups = 1, disks = file_count - spares;

	while (groups * (data + parity) % disks != 0)
		groups++;
	fnvlist_add_string(top, ZPOOL_CONFIG_TYPE, VDEV_TYPE_DRAID);
	fnvlist_add_uint64(top, ZPOOL_CONFIG_NPARITY, parity);
	fnvlist_add_uint64(top, ZPOOL_CONFIG_DRAID_NDATA, data);
	fnvlist_add_uint64(top, ZPOOL_CONFIG_DRAID_NSPARES, spares);
	fnvlist_add_uint64(top, ZPOOL_CONFIG_DRAID_NGROUPS, groups);
	fnvlist_add_uint64(top, ZPOOL_CONFIG_ASHIFT, 12);
	fnvlist_add_nvlist_array(top, ZPOOL_CONFIG_CHILDREN, leaves, file_count);
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, &top, 1);
	all_features(props);
	return (spa_create(pool, root, props, NULL, NULL));
}

static int
create(const char *kind)
{
	nvlist_t *root = fnvlist_alloc(), *props = fnvlist_alloc();
	nvlist_t **leaves = all_leaves();

	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	if (strcmp(kind, "stripe") == 0) {
		fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, leaves,
		    file_count);
	} else {
		nvlist_t *top = fnvlist_alloc();
		int raidz = strncmp(kind, "raidz", 5) == 0;
		fnvlist_add_string(top, ZPOOL_CONFIG_TYPE,
		    raidz ? VDEV_TYPE_RAIDZ : VDEV_TYPE_MIRROR);
		if (raidz)
			fnvlist_add_uint64(top, ZPOOL_CONFIG_NPARITY,
			    number(kind + 5));
		fnvlist_add_uint64(top, ZPOOL_CONFIG_ASHIFT, 12);
		fnvlist_add_nvlist_array(top, ZPOOL_CONFIG_CHILDREN, leaves,
		    file_count);
		fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, &top, 1);
	}
	all_features(props);
	return (spa_create(pool, root, props, NULL, NULL));
}

/* Whether the bytes of a label, read at this offset, are those that were written: a crash may have torn them. */
static boolean_t
is_whole(char *phys, uint64_t offset)
{
	zio_eck_t *eck = (zio_eck_t *)(phys + PHYS_SIZE) - 1;
	zio_cksum_t stored = eck->zec_cksum, actual;
	boolean_t swapped = eck->zec_magic == BSWAP_64(ZEC_MAGIC);
	abd_t *abd;

	ZIO_SET_CHECKSUM(&eck->zec_cksum, swapped ? BSWAP_64(offset) : offset, 0, 0, 0);
	if (swapped)
		byteswap_uint64_array(&stored, sizeof (stored));
	abd = abd_get_from_buf(phys, PHYS_SIZE);
	abd_checksum_SHA256(abd, PHYS_SIZE, NULL, &actual);
	abd_free(abd);
	return ((swapped || eck->zec_magic == ZEC_MAGIC) && ZIO_CHECKSUM_EQUAL(stored, actual));
}

/* The config in the first label of a file that is whole. */
static nvlist_t *
label_of(const char *file)
{
	char *phys = malloc(PHYS_SIZE);
	nvlist_t *config = NULL;
	int fd = open(file, O_RDONLY);
	off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END) / LABEL_SIZE * LABEL_SIZE;
	off_t at[] = { 0, LABEL_SIZE, size - 2 * LABEL_SIZE, size - LABEL_SIZE };

	for (int l = 0; size >= 4 * LABEL_SIZE && l < 4 && config == NULL; l++)
		if (pread(fd, phys, PHYS_SIZE, at[l] + PHYS_AT) != PHYS_SIZE ||
		    !is_whole(phys, at[l] + PHYS_AT) ||
		    nvlist_unpack(phys, CONFIG_SIZE, &config, 0) != 0)
			config = NULL;
	if (fd >= 0)
		close(fd);
	free(phys);
	return (config);
}

/* The leaves are where the files are now, which may be copies. */
static void
set_paths(nvlist_t *vdev)
{
	nvlist_t **children;
	uint_t count;

	if (nvlist_lookup_nvlist_array(vdev, ZPOOL_CONFIG_CHILDREN, &children,
	    &count) == 0) {
		for (uint_t i = 0; i < count; i++)
			set_paths(children[i]);
		return;
	}
	for (int i = 0; i < file_count; i++) {
		nvlist_t *label = label_of(files[i]);
		uint64_t guid = 0;
		if (label == NULL)
			continue;
		(void) nvlist_lookup_uint64(label, ZPOOL_CONFIG_GUID, &guid);
		if (guid == fnvlist_lookup_uint64(vdev, ZPOOL_CONFIG_GUID))
			fnvlist_add_string(vdev, ZPOOL_CONFIG_PATH, files[i]);
		nvlist_free(label);
	}
}

/* Whether the pool has a distributed spare. */
static boolean_t
has_distributed(nvlist_t *list)
{
	nvlist_t **spares;
	uint_t count = 0;

	(void) nvlist_lookup_nvlist_array(list, ZPOOL_CONFIG_SPARES, &spares,
	    &count);
	for (uint_t i = 0; i < count; i++) {
		if (strcmp(fnvlist_lookup_string(spares[i], ZPOOL_CONFIG_TYPE),
		    VDEV_TYPE_DRAID_SPARE) == 0)
			return (B_TRUE);
	}
	return (B_FALSE);
}

/* What the pool has in a list of spares or cache devices. */
static int
listed(spa_t *spa, spa_aux_vdev_t *aux, nvlist_t **list)
{
	dmu_buf_t *bonus;
	int error;

	*list = NULL;
	if (aux->sav_object == 0 || aux->sav_config != NULL)
		return (0);
	error = dmu_bonus_hold(spa->spa_meta_objset, aux->sav_object, FTAG,
	    &bonus);
	if (error != 0)
		return (error);
	uint64_t size = *(uint64_t *)bonus->db_data;
	char *packed = malloc(size);
	dmu_buf_rele(bonus, FTAG);
	error = dmu_read(spa->spa_meta_objset, aux->sav_object, 0, size,
	    packed, DMU_READ_PREFETCH);
	if (error == 0)
		error = nvlist_unpack(packed, size, list, 0);
	free(packed);
	return (error);
}

/*
 * The kernel's import has the spares and cache devices of the config that it tried before. This library loads none for a
 * pool that is not written to, and so forgets them.
 */
static int
load_aux(void)
{
	spa_t *spa;
	nvlist_t *spares = NULL, *caches = NULL;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	error = listed(spa, &spa->spa_spares, &spares);
	if (error == 0)
		error = listed(spa, &spa->spa_l2cache, &caches);
	spa_config_enter(spa, SCL_ALL, FTAG, RW_WRITER);
	if (error == 0 && spares != NULL && has_distributed(spares)) {
		spa->spa_spares.sav_config = spares;
		spa_load_spares(spa);
	}
	if (error == 0 && caches != NULL) {
		spa->spa_l2cache.sav_config = caches;
		spa_load_l2cache(spa);
	}
	spa_config_exit(spa, SCL_ALL, FTAG);
	if (error == 0 && caches != NULL)
		spa_async_request(spa, SPA_ASYNC_L2CACHE_REBUILD);
	spa_close(spa, FTAG);
	return (error);
}

static int
import(uint64_t flags)
{
	nvlist_t *config = NULL, *root = fnvlist_alloc();
	nvlist_t *tops[64] = { 0 };
	uint64_t children = 0;

	for (int i = 0; i < file_count; i++) {
		nvlist_t *label = label_of(files[i]), *top;
		uint64_t txg = 0;
		if (label == NULL || !nvlist_exists(label, ZPOOL_CONFIG_POOL_GUID))
			continue;
		/* A device that was taken out of the pool. */
		(void) nvlist_lookup_uint64(label, ZPOOL_CONFIG_POOL_TXG, &txg);
		if (txg == 0)
			continue;
		top = fnvlist_lookup_nvlist(label, ZPOOL_CONFIG_VDEV_TREE);
		set_paths(top);
		tops[fnvlist_lookup_uint64(top, ZPOOL_CONFIG_ID) % 64] = top;
		children = fnvlist_lookup_uint64(label,
		    ZPOOL_CONFIG_VDEV_CHILDREN);
		config = fnvlist_dup(label);
	}
	if (config == NULL || children > 64)
		return (ENOENT);
	for (uint64_t i = 0; i < children; i++) {
		if (tops[i] != NULL)
			continue;
		tops[i] = fnvlist_alloc();
		fnvlist_add_string(tops[i], ZPOOL_CONFIG_TYPE, VDEV_TYPE_HOLE);
		fnvlist_add_uint64(tops[i], ZPOOL_CONFIG_ID, i);
		fnvlist_add_uint64(tops[i], ZPOOL_CONFIG_GUID, 0);
	}
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_uint64(root, ZPOOL_CONFIG_ID, 0);
	fnvlist_add_uint64(root, ZPOOL_CONFIG_GUID,
	    fnvlist_lookup_uint64(config, ZPOOL_CONFIG_POOL_GUID));
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, tops, children);
	fnvlist_add_nvlist(config, ZPOOL_CONFIG_VDEV_TREE, root);
	nvlist_t *found = spa_tryimport(config);
	if (found == NULL)
		return (EINVAL);
	int error = spa_import(pool, found, NULL, flags);
	return (error != 0 ? error : load_aux());
}

/* Discards the checkpoint, if there is one, and waits until nothing is left of it. */
static int
discard(void)
{
	pool_checkpoint_stat_t stat;
	spa_t *spa;
	int error = spa_checkpoint_discard(pool);

	if (error != 0 && error != ZFS_ERR_DISCARDING_CHECKPOINT)
		return (error);
	error = spa_open(pool, &spa, FTAG);
	while (error == 0) {
		txg_wait_synced(spa_get_dsl(spa), 0);
		error = spa_checkpoint_get_stats(spa, &stat);
	}
	spa_close(spa, FTAG);
	return (error == ZFS_ERR_NO_CHECKPOINT ? 0 : error);
}

static int
synced(void)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error == 0) {
		txg_wait_synced(spa_get_dsl(spa), 0);
		spa_close(spa, FTAG);
	}
	return (error);
}

static int
features(void)
{
	nvlist_t *props = fnvlist_alloc();
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	all_features(props);
	error = spa_prop_set(spa, props);
	spa_close(spa, FTAG);
	return (error);
}

static int
upgrade(uint64_t version)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	spa_upgrade(spa, version);
	spa_close(spa, FTAG);
	return (0);
}

/* Waits for a scrub of everything. */
static int
scrub(void)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	error = spa_scan(spa, POOL_SCAN_SCRUB);
	while (error == 0 && dsl_scan_scrubbing(spa_get_dsl(spa)))
		txg_wait_synced(spa_get_dsl(spa), 0);
	if (error == 0 && spa_get_errlog_size(spa) != 0)
		error = ECKSUM;
	spa_close(spa, FTAG);
	return (error);
}

/* Begins a scrub, which goes no further than it must in a group. */
static int
begin_scrub(void)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	zfs_scrub_min_time_ms = 0;
	error = spa_scan(spa, POOL_SCAN_SCRUB);
	if (error == 0)
		txg_wait_synced(spa_get_dsl(spa), 0);
	spa_close(spa, FTAG);
	return (error);
}

/* Waits for a scan that is under way. */
static int
end_scan(void)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	while (spa_get_dsl(spa)->dp_scan->scn_phys.scn_state == DSS_SCANNING)
		txg_wait_synced(spa_get_dsl(spa), 0);
	if (spa_get_errlog_size(spa) != 0)
		error = ECKSUM;
	spa_close(spa, FTAG);
	return (error);
}

/* Waits until resilvers have given everything to all devices. */
static int
resilver(void)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);
	boolean_t lacking;

	if (error != 0)
		return (error);
	do {
		txg_wait_synced(spa_get_dsl(spa), 0);
		spa_config_enter(spa, SCL_ALL, FTAG, RW_READER);
		lacking = vdev_resilver_needed(spa->spa_root_vdev, NULL, NULL);
		spa_config_exit(spa, SCL_ALL, FTAG);
	} while (lacking ||
	    spa_get_dsl(spa)->dp_scan->scn_phys.scn_state == DSS_SCANNING);
	if (spa_get_errlog_size(spa) != 0)
		error = ECKSUM;
	spa_close(spa, FTAG);
	return (error);
}

/* The guid of the leaf on a file. */
static uint64_t
guid_of(uint64_t file)
{
	uint64_t guid = 0;
	nvlist_t *label = file < file_count ? label_of(files[file]) : NULL;

	if (label != NULL) {
		(void) nvlist_lookup_uint64(label, ZPOOL_CONFIG_GUID, &guid);
		nvlist_free(label);
	}
	return (guid);
}

static nvlist_t *
leaf_on(uint64_t file)
{
	nvlist_t *leaf = fnvlist_alloc();

	fnvlist_add_string(leaf, ZPOOL_CONFIG_TYPE, VDEV_TYPE_FILE);
	fnvlist_add_string(leaf, ZPOOL_CONFIG_PATH, files[file]);
	fnvlist_add_uint64(leaf, ZPOOL_CONFIG_ASHIFT, 12);
	return (leaf);
}

/* A device joins the vdev of another one. */
static int
join(const char *how, uint64_t old, uint64_t new)
{
	nvlist_t *root = fnvlist_alloc(), *leaf;
	size_t len = strlen(how);
	spa_t *spa;
	int error;

	if (new >= file_count || (error = spa_open(pool, &spa, FTAG)) != 0)
		return (ENOENT);
	leaf = leaf_on(new);
	if (strcmp(how, "spare") == 0)
		fnvlist_add_uint64(leaf, ZPOOL_CONFIG_IS_SPARE, 1);
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, &leaf, 1);
	error = spa_vdev_attach(spa, guid_of(old), root,
	    strncmp(how, "attach", 6) != 0,
	    len > 2 && strcmp(how + len - 2, "-s") == 0);
	if (error == 0)
		txg_wait_synced(spa_get_dsl(spa), 0);
	spa_close(spa, FTAG);
	return (error);
}

/* The guid of a distributed spare that the pool lists; 0: there is none of this name. */
static uint64_t
guid_of_spare(spa_t *spa, const char *name)
{
	for (int i = 0; i < spa->spa_spares.sav_count; i++) {
		vdev_t *spare = spa->spa_spares.sav_vdevs[i];
		if (spare->vdev_path != NULL && strcmp(spare->vdev_path, name) == 0)
			return (spare->vdev_guid);
	}
	return (0);
}

/* A distributed spare steps in for a file. */
static int
stand_in(const char *how, uint64_t old, const char *name)
{
	nvlist_t *root = fnvlist_alloc(), *leaf = fnvlist_alloc();
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	fnvlist_add_string(leaf, ZPOOL_CONFIG_TYPE, VDEV_TYPE_DRAID_SPARE);
	fnvlist_add_string(leaf, ZPOOL_CONFIG_PATH, name);
	fnvlist_add_uint64(leaf, ZPOOL_CONFIG_IS_SPARE, 1);
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, &leaf, 1);
	error = spa_vdev_attach(spa, guid_of(old), root, B_TRUE,
	    strcmp(how, "rebuild") == 0);
	if (error == 0)
		txg_wait_synced(spa_get_dsl(spa), 0);
	spa_close(spa, FTAG);
	return (error);
}

static int
idle(const char *name)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	error = spa_vdev_detach(spa, guid_of_spare(spa, name), 0, 0);
	spa_close(spa, FTAG);
	return (error);
}

static int
add_spare(uint64_t file)
{
	nvlist_t *root = fnvlist_alloc(), *leaf;
	spa_t *spa;
	int error;

	if (file >= file_count || (error = spa_open(pool, &spa, FTAG)) != 0)
		return (ENOENT);
	leaf = leaf_on(file);
	fnvlist_add_uint64(leaf, ZPOOL_CONFIG_IS_SPARE, 1);
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_SPARES, &leaf, 1);
	error = spa_vdev_add(spa, root);
	spa_close(spa, FTAG);
	return (error);
}

static int
add_cache(uint64_t file)
{
	nvlist_t *root = fnvlist_alloc(), *leaf;
	spa_t *spa;
	int error;

	if (file >= file_count || (error = spa_open(pool, &spa, FTAG)) != 0)
		return (ENOENT);
	leaf = leaf_on(file);
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_L2CACHE, &leaf, 1);
	error = spa_vdev_add(spa, root);
	spa_close(spa, FTAG);
	return (error);
}

/* Waits until a figure of the ARC is so large. */
static int
waited(wmsum_t *figure, uint64_t value)
{
	for (int i = 0; i < 300; i++) {
		if (wmsum_value(figure) >= value)
			return (0);
		(void) poll(NULL, 0, 100);
	}
	fprintf(stderr, "%llu of %llu; headers %llu, unfit %llu\n",
	    (u_longlong_t)wmsum_value(figure), (u_longlong_t)value,
	    (u_longlong_t)wmsum_value(
	    &arc_sums.arcstat_l2_rebuild_abort_dh_errors),
	    (u_longlong_t)wmsum_value(
	    &arc_sums.arcstat_l2_rebuild_abort_unsupported));
	return (ETIMEDOUT);
}

/*
 * Waits until log blocks of cache devices were found again. An import that ends it early, as memory seems to be short (which it
 * does at random here), is made once more.
 */
static int
found_again(uint64_t value)
{
	wmsum_t *logs = &arc_sums.arcstat_l2_rebuild_log_blks;
	wmsum_t *low = &arc_sums.arcstat_l2_rebuild_abort_lowmem;

	for (int tries = 0; tries < 20; tries++) {
		uint64_t seen = wmsum_value(logs), ended = wmsum_value(low);
		int error;

		if (tries == 0)
			seen = ended = 0;
		else if ((error = spa_export(pool, NULL, B_FALSE, B_FALSE)) !=
		    0 || (error = import(0)) != 0)
			return (error);
		for (int i = 0; i < 300 && wmsum_value(low) == ended; i++) {
			if (wmsum_value(logs) - seen >= value)
				return (0);
			(void) poll(NULL, 0, 100);
		}
		if (wmsum_value(low) == ended)
			break;
	}
	return (waited(logs, value));
}

static int
cache_hits(uint64_t value)
{
	if (wmsum_value(&arc_sums.arcstat_l2_cksum_bad) != 0 ||
	    wmsum_value(&arc_sums.arcstat_l2_io_error) != 0)
		return (ECKSUM);
	return (wmsum_value(&arc_sums.arcstat_l2_hits) < value ? ENOENT : 0);
}

static int
in_use(uint64_t file, boolean_t use)
{
	vdev_state_t state;
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	error = use ? vdev_online(spa, guid_of(file), 0, &state) :
	    vdev_offline(spa, guid_of(file), 0);
	spa_close(spa, FTAG);
	return (error);
}

static int
leave(uint64_t file)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	error = spa_vdev_detach(spa, guid_of(file), 0, 0);
	spa_close(spa, FTAG);
	return (error);
}

/* What the rebuilds that are under way have read since they began, or went on; 0 without any. */
static uint64_t
rebuilt_bytes(spa_t *spa, boolean_t *active)
{
	vdev_t *root;
	uint64_t bytes = 0;

	/* The tree changes when a rebuild ends. */
	spa_config_enter(spa, SCL_VDEV, FTAG, RW_READER);
	root = spa->spa_root_vdev;
	*active = vdev_rebuild_active(root);
	for (uint64_t i = 0; i < root->vdev_children; i++)
		bytes += *(volatile uint64_t *)
		    &root->vdev_child[i]->vdev_rebuild_config.
		    vr_pass_bytes_issued;
	spa_config_exit(spa, SCL_VDEV, FTAG);
	return (bytes);
}

/*
 * Waits for the end of rebuilds, or until one has done something, and holds it there. Pieces are small, and no group is waited
 * for, so that one is not done before it is held.
 */
static int
rebuilt(boolean_t half)
{
	boolean_t active;
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	if (half) {
		zfs_rebuild_max_segment = 8 << 10;
		zfs_rebuild_vdev_limit = 8 << 10;
	}
	zfs_scan_suspend_progress = 0;
	for (;;) {
		uint64_t bytes = rebuilt_bytes(spa, &active);
		if (!active || (half && bytes != 0))
			break;
		if (half)
			usleep(100);
		else
			txg_wait_synced(spa_get_dsl(spa), 0);
	}
	zfs_scan_suspend_progress = half;
	/* What was read before it is held may have been its last part: the end comes with one of the next groups. */
	for (int i = 0; i < 2; i++)
		txg_wait_synced(spa_get_dsl(spa), 0);
	(void) rebuilt_bytes(spa, &active);
	if (half && !active)
		error = EALREADY;
	spa_close(spa, FTAG);
	return (error);
}

/* Lets a resilver that is held do a part of its work. */
static int
half_resilvered(void)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	dsl_scan_phys_t *phys = &spa_get_dsl(spa)->dp_scan->scn_phys;
	zfs_resilver_min_time_ms = 0;
	zfs_scan_suspend_progress = 0;
	for (int i = 0; i < 3 && phys->scn_state == DSS_SCANNING; i++)
		txg_wait_synced(spa_get_dsl(spa), 0);
	zfs_scan_suspend_progress = 1;
	if (phys->scn_func != POOL_SCAN_RESILVER ||
	    phys->scn_state != DSS_SCANNING)
		error = EALREADY;
	spa_close(spa, FTAG);
	return (error);
}

static int
space(uint64_t size, uint64_t usable, uint64_t slack)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	uint64_t is = metaslab_class_get_space(spa_normal_class(spa)) +
	    metaslab_class_get_space(spa_embedded_log_class(spa)) +
	    metaslab_class_get_space(spa_special_class(spa)) +
	    metaslab_class_get_space(spa_dedup_class(spa));
	uint64_t left = spa_get_dspace(spa) - spa_get_slop_space(spa);
	if (is != size || left < usable || left - usable > slack) {
		fprintf(stderr, "size %llu, usable %llu\n", (u_longlong_t)is,
		    (u_longlong_t)left);
		error = ERANGE;
	}
	spa_close(spa, FTAG);
	return (error);
}

/* Waits until no vdev is being removed. */
static int
end_remove(void)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	while (spa->spa_vdev_removal != NULL)
		txg_wait_synced(spa_get_dsl(spa), 0);
	txg_wait_synced(spa_get_dsl(spa), 0);
	spa_close(spa, FTAG);
	return (0);
}

static int
begin_remove(uint64_t id)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	error = id < spa->spa_root_vdev->vdev_children ? spa_vdev_remove(spa,
	    spa->spa_root_vdev->vdev_child[id]->vdev_guid, B_FALSE) : ENODEV;
	if (error == 0)
		txg_wait_synced(spa_get_dsl(spa), 0);
	spa_close(spa, FTAG);
	return (error);
}

static int
remove_vdev(uint64_t id)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	if (id < spa->spa_root_vdev->vdev_children)
		error = spa_vdev_remove(spa,
		    spa->spa_root_vdev->vdev_child[id]->vdev_guid, B_FALSE);
	else
		error = ENODEV;
	while (error == 0 && spa->spa_vdev_removal != NULL)
		txg_wait_synced(spa_get_dsl(spa), 0);
	if (error == 0)
		txg_wait_synced(spa_get_dsl(spa), 0);
	spa_close(spa, FTAG);
	return (error);
}

static void
start_condensing(void *vdev, dmu_tx_t *tx)
{
	spa_condense_indirect_start_sync(vdev, tx);
}

/* The thread that would go on is stopped before. */
static int
condense(uint64_t id)
{
	spa_t *spa;
	int error = spa_open(pool, &spa, FTAG);

	if (error != 0)
		return (error);
	vdev_t *vdev = id < spa->spa_root_vdev->vdev_children ?
	    spa->spa_root_vdev->vdev_child[id] : NULL;
	if (vdev == NULL || vdev->vdev_obsolete_sm == NULL) {
		error = ENODEV;
	} else {
		zthr_cancel(spa->spa_condense_zthr);
		error = dsl_sync_task(pool, NULL, start_condensing, vdev, 0,
		    ZFS_SPACE_CHECK_NONE);
	}
	spa_close(spa, FTAG);
	return (error);
}

static int
assign(dmu_tx_t *tx)
{
	int error = dmu_tx_assign(tx, TXG_WAIT);
	if (error != 0)
		dmu_tx_abort(tx);
	return (error);
}

static int
write_object(objset_t *os, uint64_t object, char **args)
{
	uint64_t block = number(args[0]), len = number(args[1]);
	uint64_t state = seeded(number(args[2]));
	char *data = malloc(CHUNK);
	int error = 0;

	if (dmu_object_info(os, object, NULL) == ENOENT) {
		dmu_tx_t *tx = dmu_tx_create(os);
		dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
		if ((error = assign(tx)) == 0) {
			error = dmu_object_claim(os, object,
			    DMU_OT_PLAIN_FILE_CONTENTS, block, DMU_OT_NONE, 0, tx);
			dmu_tx_commit(tx);
		}
	}
	for (uint64_t at = 0; at < len && error == 0; at += CHUNK) {
		uint64_t n = MIN(CHUNK, len - at);
		noise(&state, data, n);
		dmu_tx_t *tx = dmu_tx_create(os);
		dmu_tx_hold_write(tx, object, at, n);
		if ((error = assign(tx)) == 0) {
			dmu_write(os, object, at, n, data, tx);
			dmu_tx_commit(tx);
		}
	}
	free(data);
	return (error);
}

static int
check_object(objset_t *os, uint64_t object, char **args)
{
	uint64_t len = number(args[0]), state = seeded(number(args[1]));
	char *data = malloc(CHUNK), *want = malloc(CHUNK);
	int error = 0;

	for (uint64_t at = 0; at < len && error == 0; at += CHUNK) {
		uint64_t n = MIN(CHUNK, len - at);
		noise(&state, want, n);
		error = dmu_read(os, object, at, n, data, DMU_READ_PREFETCH);
		if (error == 0 && memcmp(data, want, n) != 0)
			error = EILSEQ;
	}
	free(data);
	free(want);
	return (error);
}

/* Gang blocks that records of the open group point to. */
static uint64_t gangs, gangs_txg;

static void
logged(zgd_t *zgd, int error)
{
	if (error == 0 && BP_IS_GANG(zgd->zgd_bp))
		__atomic_fetch_add(&gangs, 1, __ATOMIC_SEQ_CST);
	dmu_buf_rele(zgd->zgd_db, zgd);
	free(zgd);
}

/* Has the block that a record is about written for good. */
static int
write_block(void *os, uint64_t generation, lr_write_t *lr, char *buf,
    struct lwb *lwb, zio_t *zio)
{
	zgd_t *zgd = calloc(1, sizeof (zgd_t));

	(void) generation, (void) buf;
	zgd->zgd_lwb = lwb;
	zgd->zgd_bp = &lr->lr_blkptr;
	int error = dmu_buf_hold(os, lr->lr_foid, lr->lr_offset, zgd,
	    &zgd->zgd_db, DMU_READ_NO_PREFETCH);
	if (error != 0) {
		free(zgd);
		return (error);
	}
	error = dmu_sync(zio, lr->lr_common.lrc_txg, logged, zgd);
	if (error != 0)
		logged(zgd, error);
	return (error);
}

static int
write_and_log(objset_t *os, zilog_t *log, uint64_t object, uint64_t at,
    uint64_t block, const char *data)
{
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_write(tx, object, at, block);
	int error = assign(tx);
	if (error != 0)
		return (error);
	if (gangs_txg != dmu_tx_get_txg(tx))
		gangs = 0;
	gangs_txg = dmu_tx_get_txg(tx);
	dmu_write(os, object, at, block, data, tx);
	itx_t *itx = zil_itx_create(TX_WRITE, sizeof (lr_write_t));
	lr_write_t *record = (lr_write_t *)&itx->itx_lr;
	itx->itx_wr_state = WR_INDIRECT;
	record->lr_foid = object;
	record->lr_offset = at;
	record->lr_length = block;
	record->lr_blkoff = 0;
	BP_ZERO(&record->lr_blkptr);
	itx->itx_private = os;
	itx->itx_sync = B_TRUE;
	zil_itx_assign(log, itx, tx);
	dmu_tx_commit(tx);
	zil_commit(log, object);
	return (0);
}

/* Every allocation of so many bytes may fail now, three of a hundred do. Log blocks have fewer. */
#define	DIVIDED		(64 << 10)
/* Most blocks that are written for the sake of gang blocks. */
#define	ATTEMPTS	10000

static int
log_writes(char **words)
{
	uint64_t object = number(words[2]), block = number(words[3]);
	uint64_t len = number(words[4]), state = seeded(number(words[5]));
	char *data = malloc(len);
	objset_t *os;
	int error = dmu_objset_own(words[1], DMU_OST_ANY, B_FALSE, B_FALSE, FTAG,
	    &os);

	if (error != 0)
		return (error);
	zfs_txg_timeout = 3600;
	zilog_t *log = zil_open(os, write_block);
	/* The log begins in a group of its own. */
	noise(&state, data, len);
	if ((error = write_and_log(os, log, object, 0, block, data)) != 0)
		return (error);
	txg_wait_synced(dmu_objset_pool(os), 0);
	metaslab_force_ganging = DIVIDED;
	for (uint64_t i = 0; error == 0 && i < ATTEMPTS &&
	    (i * block < len || gangs < number(words[6])); i++) {
		uint64_t at = i * block % len;
		error = write_and_log(os, log, object, at, block, data + at);
	}
	if (error == 0 && gangs < number(words[6]))
		error = ENOSPC;
	free(data);
	return (error);
}

static int
add_names(objset_t *os, uint64_t object, char **args)
{
	int error = 0;

	if (dmu_object_info(os, object, NULL) == ENOENT) {
		dmu_tx_t *tx = dmu_tx_create(os);
		dmu_tx_hold_zap(tx, DMU_NEW_OBJECT, B_TRUE, NULL);
		if ((error = assign(tx)) == 0) {
			error = zap_create_claim(os, object, DMU_OT_ZAP_OTHER,
			    DMU_OT_NONE, 0, tx);
			dmu_tx_commit(tx);
		}
	}
	for (uint64_t i = number(args[0]); i < number(args[1]) && !error; i++) {
		char name[32];
		snprintf(name, sizeof (name), "name-%llu", (u_longlong_t)i);
		dmu_tx_t *tx = dmu_tx_create(os);
		dmu_tx_hold_zap(tx, object, B_TRUE, name);
		if ((error = assign(tx)) == 0) {
			error = zap_add(os, object, name, 8, 1, &i, tx);
			dmu_tx_commit(tx);
		}
	}
	return (error);
}

static int
find_names(objset_t *os, uint64_t object, char **args)
{
	for (uint64_t i = number(args[0]); i < number(args[1]); i++) {
		char name[32];
		uint64_t value;
		snprintf(name, sizeof (name), "name-%llu", (u_longlong_t)i);
		int error = zap_lookup(os, object, name, 8, 1, &value);
		if (error != 0 || value != i)
			return (error != 0 ? error : EILSEQ);
	}
	return (0);
}

static int
in_objset(char **words, int readonly, int (*what)(objset_t *, uint64_t, char **))
{
	objset_t *os;
	int error = dmu_objset_own(words[1], DMU_OST_ANY, readonly, B_FALSE,
	    FTAG, &os);

	if (error != 0)
		return (error);
	error = what(os, number(words[2]), words + 3);
	if (!readonly)
		txg_wait_synced(dmu_objset_pool(os), 0);
	dmu_objset_disown(os, B_FALSE, FTAG);
	return (error);
}

static int
punch(objset_t *os, uint64_t object, char **args)
{
	return (dmu_free_long_range(os, object, number(args[0]),
	    number(args[1])));
}

static int
free_object(objset_t *os, uint64_t object, char **args)
{
	(void) args;
	return (dmu_free_long_object(os, object));
}

static int
snapshot(char *name)
{
	char *at = strchr(name, '@');
	if (at == NULL)
		return (EINVAL);
	*at = '\0';
	return (dmu_objset_snapshot_one(name, at + 1));
}

static int
bookmark(const char *of, const char *name)
{
	nvlist_t *wanted = fnvlist_alloc(), *errors = fnvlist_alloc();
	fnvlist_add_string(wanted, name, of);
	return (dsl_bookmark_create(wanted, errors));
}

static int
hold(const char *name, const char *tag, int release)
{
	nvlist_t *wanted = fnvlist_alloc(), *errors = fnvlist_alloc();
	if (!release) {
		fnvlist_add_string(wanted, name, tag);
		return (dsl_dataset_user_hold(wanted, 0, errors));
	}
	nvlist_t *tags = fnvlist_alloc();
	fnvlist_add_boolean(tags, tag);
	fnvlist_add_nvlist(wanted, name, tags);
	return (dsl_dataset_user_release(wanted, errors));
}

static int
redact(char **words, int count)
{
	nvlist_t *by = fnvlist_alloc();
	for (int i = 2; i < count; i++)
		fnvlist_add_boolean(by, words[i]);
	return (dmu_redact_snap(words[0], by, words[1]));
}

static int
redact_blocks(objset_t *os, uint64_t object, char **args)
{
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_write(tx, object, number(args[0]), number(args[1]));
	int error = assign(tx);
	if (error != 0)
		return (error);
	dmu_redact(os, object, number(args[0]), number(args[1]), tx);
	dmu_tx_commit(tx);
	return (0);
}

static int
put(objset_t *os, void *data, int len, void *file)
{
	(void) os;
	return (write(*(int *)file, data, len) == len ? 0 : EIO);
}

static int
send(const char *of, const char *path, const char *from, const char *mark)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	offset_t off = 0;
	dmu_send_outparams_t out = { .dso_outfunc = put, .dso_arg = &file };

	if (file < 0)
		return (EINVAL);
	int error = dmu_send(of, *from == '-' ? NULL : from, B_FALSE, B_FALSE,
	    B_FALSE, B_FALSE, B_FALSE, 0, 0, *mark == '-' ? NULL : mark, -1,
	    &off, &out);
	close(file);
	return (error);
}

/* Bytes of a record of a stream. */
#define	RECORD	312

static int
receive(char *name, const char *path, char *origin, boolean_t part)
{
	uint64_t begin[RECORD / sizeof (uint64_t)];
	zfs_file_t file = { .f_fd = open(path, O_RDONLY), .f_dump_fd = -1 };
	dmu_recv_cookie_t cookie;
	offset_t off = RECORD;
	char *at = strchr(name, '@');

	if (at == NULL || file.f_fd < 0 ||
	    read(file.f_fd, begin, RECORD) != RECORD)
		return (EINVAL);
	*at = '\0';
	int error = dmu_recv_begin(name, at + 1, (dmu_replay_record_t *)begin,
	    B_FALSE, part, NULL, NULL, origin, &cookie, &file, &off);
	if (error != 0)
		return (error);
	error = dmu_recv_stream(&cookie, &off);
	close(file.f_fd);
	/* A stream that ends early is to be refused as such. */
	if (part)
		return (error == 0 ? EEXIST : 0);
	return (error != 0 ? error : dmu_recv_end(&cookie, NULL));
}

/* Limits take effect for the datasets below. */
static int
limit(const char *name, uint64_t count)
{
	int error = dsl_dir_activate_fs_ss_limit(name);
	if (error != 0)
		return (error);
	error = dsl_prop_set_int(name, "filesystem_limit", ZPROP_SRC_LOCAL, count);
	return (error != 0 ? error :
	    dsl_prop_set_int(name, "snapshot_limit", ZPROP_SRC_LOCAL, count));
}

static int
run(char **w, int count)
{
	char conflict[ZFS_MAX_DATASET_NAME_LEN];
#define	IS(name, args)	(strcmp(w[0], name) == 0 && count == (args) + 1)
	if (IS("create", 1))
		return (create(w[1]));
	if (IS("draid", 3))
		return (create_draid(number(w[1]), number(w[2]), number(w[3])));
	if (IS("stand-in", 3))
		return (stand_in(w[1], number(w[2]), w[3]));
	if (IS("idle", 1))
		return (idle(w[1]));
	if (IS("import", 0))
		return (import(0));
	if (IS("rewind", 0))
		return (import(ZFS_IMPORT_CHECKPOINT));
	if (IS("checkpoint", 0))
		return (spa_checkpoint(pool));
	if (IS("discard", 0))
		return (discard());
	if (IS("begin-discard", 0))
		return (spa_checkpoint_discard(pool));
	if (IS("export", 0))
		return (spa_export(pool, NULL, B_FALSE, B_FALSE));
	if (IS("crash", 0))
		_exit(0);
	if (IS("sync", 0))
		return (synced());
	if (IS("features", 0))
		return (features());
	if (IS("version", 1))
		return (upgrade(number(w[1])));
	if (IS("scrub", 0))
		return (scrub());
	if (IS("begin-scrub", 0))
		return (begin_scrub());
	if (IS("end-scan", 0))
		return (end_scan());
	if (IS("resilver", 0))
		return (resilver());
	if (IS("join", 3))
		return (join(w[1], number(w[2]), number(w[3])));
	if (IS("spare", 1))
		return (add_spare(number(w[1])));
	if (IS("cache", 1))
		return (add_cache(number(w[1])));
	if (IS("small-caches", 0)) {
		l2arc_rebuild_blocks_min_l2size = 0;
		l2arc_noprefetch = 0;
		l2arc_headroom = 0;
		return (0);
	}
	if (IS("fed", 1))
		return (waited(&arc_sums.arcstat_l2_write_bytes,
		    number(w[1])));
	if (IS("found", 1))
		return (found_again(number(w[1])));
	if (IS("hits", 1))
		return (cache_hits(number(w[1])));
	if (IS("leave", 1))
		return (leave(number(w[1])));
	if (IS("offline", 1) || IS("online", 1))
		return (in_use(number(w[1]), strcmp(w[0], "online") == 0));
	if (IS("hold", 1)) {
		zfs_scan_suspend_progress = (int)number(w[1]);
		return (0);
	}
	if (IS("rebuilt", 0) || IS("half-rebuilt", 0))
		return (rebuilt(w[0][0] == 'h'));
	if (IS("half-resilvered", 0))
		return (half_resilvered());
	if (IS("space", 3))
		return (space(number(w[1]), number(w[2]), number(w[3])));
	if (IS("remove", 1))
		return (remove_vdev(number(w[1])));
	if (IS("begin-remove", 1))
		return (begin_remove(number(w[1])));
	if (IS("end-remove", 0))
		return (end_remove());
	if (IS("segment", 1)) {
		zfs_remove_max_segment = (int)number(w[1]);
		return (0);
	}
	if (IS("condense", 1))
		return (condense(number(w[1])));
	if (IS("dataset", 1))
		return (dmu_objset_create(w[1], DMU_OST_OTHER, 0, NULL, NULL, NULL));
	if (IS("write", 5))
		return (in_objset(w, B_FALSE, write_object));
	if (IS("check", 4))
		return (in_objset(w, B_TRUE, check_object));
	if (IS("log", 6))
		return (log_writes(w));
	if (IS("punch", 4))
		return (in_objset(w, B_FALSE, punch));
	if (IS("free", 2))
		return (in_objset(w, B_FALSE, free_object));
	if (IS("names", 4))
		return (in_objset(w, B_FALSE, add_names));
	if (IS("find", 4))
		return (in_objset(w, B_TRUE, find_names));
	if (IS("snapshot", 1))
		return (snapshot(w[1]));
	if (IS("clone", 2))
		return (dmu_objset_clone(w[2], w[1]));
	if (IS("promote", 1))
		return (dsl_dataset_promote(w[1], conflict));
	if (IS("destroy", 1))
		return (strchr(w[1], '@') ? dsl_destroy_snapshot(w[1], B_FALSE) :
		    dsl_destroy_head(w[1]));
	if (IS("rename", 2))
		return (dsl_dir_rename(w[1], w[2]));
	if (IS("bookmark", 2))
		return (bookmark(w[1], w[2]));
	if (strcmp(w[0], "redact") == 0 && count > 3)
		return (redact(w + 1, count - 1));
	if (IS("redact-blocks", 4)) {
		zfs_allow_redacted_dataset_mount = 1;
		return (in_objset(w, B_FALSE, redact_blocks));
	}
	if (IS("send", 4))
		return (send(w[1], w[2], w[3], w[4]));
	if (IS("hold", 2) || IS("release", 2))
		return (hold(w[1], w[2], w[0][0] == 'r'));
	if (IS("receive", 2) || IS("receive-some", 2))
		return (receive(w[1], w[2], NULL, w[0][7] == '-'));
	if (IS("receive-on", 3))
		return (receive(w[1], w[2], w[3], B_FALSE));
	if (IS("number", 3))
		return (dsl_prop_set_int(w[1], w[2], ZPROP_SRC_LOCAL, number(w[3])));
	if (IS("string", 3))
		return (dsl_prop_set_string(w[1], w[2], ZPROP_SRC_LOCAL, w[3]));
	if (IS("quota", 2))
		return (dsl_dir_set_quota(w[1], ZPROP_SRC_LOCAL, number(w[2])));
	if (IS("reservation", 2))
		return (dsl_dir_set_reservation(w[1], ZPROP_SRC_LOCAL,
		    number(w[2])));
	if (IS("refreservation", 2))
		return (dsl_dataset_set_refreservation(w[1], ZPROP_SRC_LOCAL,
		    number(w[2])));
	if (IS("limit", 2))
		return (limit(w[1], number(w[2])));
	return (ENOTSUP);
}

int
main(int argc, char **argv)
{
	char line[1024], *words[MAX_WORDS];

	if (argc < 3) {
		fprintf(stderr, "usage: %s POOL FILE... < script\n", argv[0]);
		return (2);
	}
	pool = argv[1];
	files = argv + 2;
	file_count = argc - 2;
	spa_config_path = "/nonexistent/zpool.cache";
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	dmu_objset_register_type(DMU_OST_ZFS, owner_of);
	while (fgets(line, sizeof (line), stdin) != NULL) {
		char *shown = strdup(line), *rest = NULL;
		int count = 0;
		for (char *word = strtok_r(line, " \n", &rest);
		    word != NULL && count < MAX_WORDS;
		    word = strtok_r(NULL, " \n", &rest))
			words[count++] = word;
		int error = count == 0 ? 0 : run(words, count);
		if (error != 0) {
			fprintf(stderr, "%s: %s (%d)\n", strtok(shown, "\n"),
			    strerror(error), error);
			_exit(1);
		}
		free(shown);
	}
	kernel_fini();
	return (0);
}
