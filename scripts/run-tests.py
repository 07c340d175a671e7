#!/usr/bin/env python3
"""Runs the test programs of the workspace a few at a time, so that one that waits leaves no processor idle.

    scripts/run-tests.py [JOBS]     JOBS: how many at once (default: two more than there are processors)

Builds them with cargo first. Each runs as cargo would run it: in the directory of its package, by scripts/run-test.sh.
A line for each tells its result, its seconds and the processor time that it took; what a program that failed printed
follows at once. Exits with 1 if one failed. The tests in documentation run last.
"""
import json
import os
import queue
import subprocess
import sys
import threading
import time

CARGO = os.environ.get("CARGO", "cargo")
RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run-test.sh")
# Packages whose programs take longest go first: what begins last should be short.
FIRST = ["torture", "vopr", "engine", "cli"]


def programs():
    """The test programs: (name, path, directory of the package), those of FIRST in front."""
    build = subprocess.run(
        [CARGO, "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"],
        stdout=subprocess.PIPE, text=True)
    if build.returncode != 0:
        sys.exit(build.returncode)
    found = {}
    for line in build.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            package = os.path.dirname(message["manifest_path"])
            name = f"{os.path.basename(package)}::{message['target']['name']}"
            found[message["executable"]] = (name, message["executable"], package)

    def rank(program):
        crate = os.path.basename(program[2])
        return FIRST.index(crate) if crate in FIRST else len(FIRST)

    return sorted(found.values(), key=rank)


def main():
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else (os.cpu_count() or 1) + 2
    waiting = queue.SimpleQueue()
    for program in programs():
        waiting.put(program)
    failed = []
    printing = threading.Lock()

    def work():
        while True:
            try:
                name, path, package = waiting.get_nowait()
            except queue.Empty:
                return
            begun = time.monotonic()
            process = subprocess.Popen([RUNNER, path], cwd=package, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            output = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            with printing:
                result = "ok" if process.returncode == 0 else f"FAILED ({process.returncode})"
                print(f"{name}: {result}, {time.monotonic() - begun:.0f} s, "
                      f"processor {usage.ru_utime + usage.ru_stime:.0f} s", flush=True)
                if process.returncode != 0:
                    failed.append(name)
                    sys.stdout.buffer.write(output)
                    sys.stdout.flush()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if subprocess.run([CARGO, "test", "--workspace", "--locked", "--doc"]).returncode != 0:
        failed.append("documentation")
    if failed:
        sys.exit("failed: " + ", ".join(failed))


main()
