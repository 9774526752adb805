"""The bound on open handles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.storage.open_files import OpenFiles


class Holder:
    def __init__(self) -> None:
        self.recently_used = False
        self.is_open = False

    def release(self) -> None:
        self.is_open = False


def use(open_files: OpenFiles, holder: Holder) -> None:
    holder.recently_used = True
    if not holder.is_open:
        holder.is_open = True
        open_files.enrol(holder)


def test_the_one_not_used_must_go() -> None:
    open_files = OpenFiles(2)
    a, b, c = Holder(), Holder(), Holder()
    use(open_files, a)
    use(open_files, b)
    a.recently_used = b.recently_used = False
    use(open_files, a)
    use(open_files, c)
    assert (a.is_open, b.is_open, c.is_open) == (True, False, True)


def test_withdrawn_holders_do_not_count() -> None:
    open_files = OpenFiles(1)
    a, b = Holder(), Holder()
    use(open_files, a)
    open_files.withdraw(a)
    use(open_files, b)
    assert a.is_open and len(open_files) == 1


@given(st.integers(1, 5), st.lists(st.integers(0, 9), max_size=60))
def test_never_more_than_the_capacity_and_always_the_one_in_use(capacity: int, uses: list[int]) -> None:
    open_files, holders = OpenFiles(capacity), [Holder() for _ in range(10)]
    for place in uses:
        use(open_files, holders[place])
        assert holders[place].is_open
        assert sum(holder.is_open for holder in holders) == len(open_files) <= capacity
