#!/usr/bin/env bash
# What cargo runs programs with (.cargo/config.toml): a test program is ended when it takes longer than
# CENOTE_TEST_DEADLINE (default: 20 minutes; 0: never), so that no test can hang for ever. Others run as they are.
case $1 in
    */deps/*)
        # Where it may, each has mounts of its own: namespaces that the tests of another program make would copy them.
        own=(unshare --mount --propagation private)
        "${own[@]}" true 2>/dev/null || own=()
        exec timeout --foreground --kill-after=10 "${CENOTE_TEST_DEADLINE:-1200}" "${own[@]}" "$@" ;;
    *) exec "$@" ;;
esac
