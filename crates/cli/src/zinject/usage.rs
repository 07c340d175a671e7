//! The usage message of `zinject`.

/// Forms of the command, and what they do.
pub const USAGE: &str = "\
usage:

	zinject

		Lists the handlers that there are.

	zinject -c <id|all>

		Removes the handler with this number, or all of them.

	zinject -d device [-e errno] [-T <read|write|flush|trim|probe|all>]
		[-f frequency] [-a] [-q] pool

		Requests of a device fail. 'errno' is 'nxio' (the default),
		'io', 'dtl', 'corrupt', 'io-prefail' or 'noop'.

	zinject -d device -L <nvlist|uber|pad1|pad2> [-e <io|nxio>] [-a] [-q] pool

		Requests to a part of a device's labels fail.

	zinject -d device -A <degrade|fault> pool

		Degrades a device, or faults it.

	zinject -d device -D latency:lanes [-T <read|write|all>] [-f frequency] pool

		Requests of a device take at least 'latency' milliseconds, and
		as many as there are lanes are done at once. Handlers add up.

	zinject -P import|export -s <seconds> pool

		The next import or export of a pool takes so long at least.

	zinject -b objset:object:level:blkid[:last] [-e errno] [-a] [-q] pool

		A block, or several, cannot be read. The numbers are hexadecimal.

	zinject -t <data|dnode> [-C dvas] [-e errno] [-l level] [-r start[,end]]
		[-f frequency] [-a] [-m] [-q] <path|dataset:object>

		Blocks of a file, or of its dnode, cannot be read. 'errno' is
		'io' (the default), 'checksum', 'decompress' or 'decrypt'.

	zinject -t <mos|mosdir|metaslab|config|bpobj|spacemap|errlog>
		[-e errno] [-f frequency] [-a] [-q] pool

		Blocks of the pool's own objects cannot be read.

	zinject -a

		Empties the caches.

	-C	only these copies of blocks, as in '0,2'
	-f	only so many percent of the time, from 0.0001 to 100
	-m	the file system is mounted anew
	-q	only the handler's number is printed
";
