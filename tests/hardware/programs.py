"""Programs that are started here and end with this one, however it ends."""

import ctypes
import json
import os
import select
import signal
import subprocess
import time

from report import NotPossible

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Programs:
    """All that run; the last is ended first."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, name, command, environment=(), reads=False):
        """Starts a program; what it prints, or with `reads` its errors alone, goes to NAME.log."""
        log = open(self.folder / f"{name}.log", "ab")
        pipe = subprocess.PIPE if reads else None
        try:
            process = subprocess.Popen(
                [str(part) for part in command], stdin=pipe or subprocess.DEVNULL, stdout=pipe or log, stderr=log,
                env={**os.environ, **dict(environment)}, start_new_session=True, preexec_fn=end_with_parent)
        except OSError as error:
            raise NotPossible(f"{command[0]} does not start: {error.strerror}") from error
        finally:
            log.close()
        program = Program(name, process, self.folder / f"{name}.log")
        self.running.append(program)
        return program

    def run(self, name, command, seconds, environment=()):
        """Runs a program to its end and returns its exit status and output; its errors go to NAME.log."""
        program = self.start(name, command, environment, reads=True)
        try:
            output, _ = program.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            raise NotPossible(f"{name} has not ended in {seconds:.0f} s") from late
        finally:
            self.end(program)
        return program.process.returncode, output.decode(errors="replace")

    def end(self, program, wait=10):
        """Ends a program by SIGTERM and, where that does not help, its process group by SIGKILL."""
        if program in self.running:
            self.running.remove(program)
        process = program.process
        if process.stdin:
            try:
                process.stdin.close()
            except OSError:
                pass
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                program.kill()
        if process.stdout:
            process.stdout.close()

    def end_all(self):
        while self.running:
            self.end(self.running[-1], 3)


def end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    def __init__(self, name, process, log):
        self.name, self.process, self.log = name, process, log

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        """kill -9 for it and what it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def tail(self):
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-200:] if lines else f"{self.name} says nothing"


class Worker:
    """A load program (worker.py) that obeys one command at a time."""

    def __init__(self, program):
        self.program, self.pid = program, program.process.pid
        self.pending = b""

    def ask(self, **command):
        """Gives a command without waiting for its answer."""
        try:
            self.program.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.program.process.stdin.flush()
        except OSError as error:
            raise NotPossible(f"{self.program.name} has ended: {self.program.tail()}") from error

    def answer(self, seconds, meanwhile=lambda: None):
        """The next answer, within so many seconds; meanwhile something is done, about twice a second."""
        deadline = time.monotonic() + seconds
        stream = self.program.process.stdout
        while b"\n" not in self.pending:
            if select.select([stream], [], [], 0.5)[0]:
                piece = os.read(stream.fileno(), 1 << 16)
                if not piece:
                    raise NotPossible(f"{self.program.name} has ended: {self.program.tail()}")
                self.pending += piece
            elif time.monotonic() > deadline:
                raise NotPossible(f"{self.program.name} has not answered in {seconds:.0f} s")
            meanwhile()
        line, _, self.pending = self.pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise NotPossible(f"{self.program.name}: {answer['error']}")
        return answer

    def do(self, seconds, meanwhile=lambda: None, **command):
        self.ask(**command)
        return self.answer(seconds, meanwhile)
