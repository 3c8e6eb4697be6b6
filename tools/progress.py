"""Run a long command and show its progress; show its output only if it fails.

``python tools/progress.py LABEL STEPS PATTERN COMMAND...``: each line of output that matches the
regular expression is a step. A terminal shows a bar, other outputs a line every five seconds.
"""

import re
import subprocess
import sys
import threading
import time

WIDTH, SECONDS = 30, 5.0


class Progress:
    """Progress of a command."""

    def __init__(self, label, steps):
        self.label, self.steps, self.done = label, steps, 0
        self.start = time.monotonic()
        self.bar = sys.stderr.isatty()
        self.ended = threading.Event()

    def show(self, end=""):
        """Update the bar, or write another line."""
        done = min(self.done, self.steps)
        spent = f"{done}/{self.steps}, {time.monotonic() - self.start:.0f} s"
        if self.bar:
            full = WIDTH * done // self.steps
            bar = "#" * full + "." * (WIDTH - full)
            sys.stderr.write(f"\r{self.label} [{bar}] {spent} {end}")
        else:
            sys.stderr.write(f"{self.label}: {spent}\n")
        sys.stderr.flush()

    def watch(self):
        """Show the progress until the command has ended."""
        while not self.ended.wait(0.5 if self.bar else SECONDS):
            self.show()


def main(label, steps, pattern, *command):
    """Run the command; return its exit code."""
    progress, lines = Progress(label, int(steps)), []
    watcher = threading.Thread(target=progress.watch, daemon=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watcher.start()
    for line in process.stdout:
        lines.append(line)
        progress.done += re.search(pattern, line) is not None
    code = process.wait()
    progress.ended.set()
    watcher.join()
    if code:
        sys.stderr.write("\n" + "".join(lines) + f"error: {label} failed\n")
    else:
        progress.done = progress.steps
        progress.show("\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
