"""The number of threads follows what others leave of the machine. On clocks that pass when told to."""

from engine.cpu_threads import LONGEST_PATIENCE_SECONDS, PATIENCE_SECONDS, ThreadGovernor

STEP_SECONDS = 0.05


class Machine:
    """A machine of some cores, on which others keep `taken` cores busy; each step takes `STEP_SECONDS`."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.taken = 0.0
        self.wall = 100.0
        self.busy = 0.0
        self.threads_set: list[int] = []
        self.governor = ThreadGovernor(
            cores, set_threads=self.threads_set.append, wall=lambda: self.wall, busy=lambda: self.busy
        )

    def run(self, seconds: float, step_seconds: float = STEP_SECONDS) -> list[int]:
        """Step for a while; return the threads of each step."""
        threads = []
        for _ in range(round(seconds / step_seconds)):
            self.governor.begin()
            threads.append(self.threads_set[-1] if self.cores > 1 else 1)
            self.wall += step_seconds
            self.busy += step_seconds * min(threads[-1], self.cores - self.taken)
            self.governor.end()
        return threads


def test_machine_of_ones_own_uses_all_cores() -> None:
    assert set(Machine(4).run(10)) == {4}


def test_busy_core_is_left_to_others_and_taken_back() -> None:
    machine = Machine(2)
    machine.run(1)
    machine.taken = 1.0
    crowded = machine.run(20)
    assert crowded[-1] == 1
    assert crowded.count(1) > 0.8 * len(crowded)
    machine.taken = 0.0
    assert machine.run(LONGEST_PATIENCE_SECONDS)[-1] == 2


def test_several_busy_cores_cost_as_many_threads() -> None:
    machine = Machine(8)
    machine.taken = 5.0
    assert 2 <= machine.run(5)[-1] <= 4


def test_tries_in_vain_become_rare() -> None:
    machine = Machine(2)
    machine.taken = 1.0
    first, later = machine.run(60), machine.run(600)
    assert later.count(2) / len(later) < first.count(2) / len(first)
    assert later.count(2) < 0.02 * len(later)


def test_short_disturbance_is_forgotten_soon() -> None:
    machine = Machine(2)
    machine.taken = 1.0
    machine.run(0.5)
    machine.taken = 0.0
    assert machine.run(2 * PATIENCE_SECONDS)[-1] == 2


def test_moment_of_other_work_gives_up_no_thread() -> None:
    machine = Machine(2)
    for _ in range(20):
        machine.taken = 0.0
        assert set(machine.run(1.0, 0.005)) == {2}
        machine.taken = 1.0
        assert set(machine.run(0.06, 0.005)) == {2}


def test_long_step_among_others_is_enough() -> None:
    machine = Machine(2)
    machine.taken = 1.5
    assert machine.run(20.0, 10.0) == [2, 1]


def test_between_steps_torch_has_all_threads() -> None:
    machine = Machine(2)
    machine.taken = 1.0
    assert machine.run(2.0)[-1] == 1
    assert machine.threads_set[-1] == 2


def test_one_thread_is_left_alone() -> None:
    machine = Machine(1)
    machine.taken = 0.9
    machine.run(5)
    assert machine.threads_set == []
