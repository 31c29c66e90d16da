"""The lines of a session: its main line and its branches, with the numbers of their turns, and what a cut leaves."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from infersiege.records import Branch, Session, Turn


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """Turns that follow each other: the main line of a session, or one of its branches."""

    first_turn: int
    """Number of its first turn in the session; 0 is the main line's."""
    turns: tuple[Turn, ...]
    after: int | None = None
    """The turn of another line whose end starts it; None: it starts with the session."""
    joined_by: int | None = None
    """The turn of another line that waits for its end; None: none does."""
    inherits: bool = False
    """It begins with the history of the line that it starts from."""

    @property
    def end(self) -> int:
        """Number of its last turn, and one."""
        return self.first_turn + len(self.turns)

    def holds(self, turn: int | None) -> bool:
        return turn is not None and self.first_turn <= turn < self.end


def lines_of(session: Session) -> tuple[SessionLine, ...]:
    """The main line, then the branches, as their turns are numbered."""
    lines = [SessionLine(first_turn=0, turns=session.turns)]
    for branch in session.branches:
        lines.append(
            SessionLine(
                first_turn=lines[-1].end,
                turns=branch.turns,
                after=branch.after,
                joined_by=branch.joined_by,
                inherits=branch.inherits,
            )
        )
    return tuple(lines)


def begins_with_main(session: Session) -> bool:
    """Whether the main line's first turn is the session's start; False: branches start with the session, too, and that
    turn's delay counts from there."""
    return all(branch.after is not None for branch in session.branches)


def cut_session(session: Session, max_turns: int | None) -> Session:
    """The session with a main line of at most so many turns; its turns are numbered anew.

    A branch that starts after a turn that is no more is no more either, nor is what starts from it. One that such a
    turn would have waited for stays, and nothing waits for it.
    """
    if max_turns is None or len(session.turns) <= max_turns:
        return session
    main, *branches = lines_of(session)
    kept = [msgspec.structs.replace(main, turns=main.turns[:max_turns])]
    left = branches
    # A branch may start from one that stands after it, so until nothing is found any more.
    while found := [line for line in left if line.after is None or any(one.holds(line.after) for one in kept)]:
        kept += found
        taken = {line.first_turn for line in found}
        left = [line for line in left if line.first_turn not in taken]
    kept.sort(key=lambda line: line.first_turn)
    number = dict(_renumbered(kept))
    return msgspec.structs.replace(
        session,
        turns=kept[0].turns,
        branches=tuple(
            Branch(
                turns=line.turns,
                after=None if line.after is None else number[line.after],
                joined_by=None if line.joined_by is None else number.get(line.joined_by),
                inherits=line.inherits,
            )
            for line in kept[1:]
        ),
    )


def _renumbered(lines: list[SessionLine]) -> Iterator[tuple[int, int]]:
    """(number before, number now) of every turn."""
    now = 0
    for line in lines:
        for before in range(line.first_turn, line.end):
            yield before, now
            now += 1
