"""Questions: each is answered once, and only to the leader that asked."""

from __future__ import annotations

from nearcast.core.controller.effects import Questions


class Doubling:
    name = "doubling"

    def decide(self, view: int) -> int:
        return 2 * view


def test_an_answer_goes_to_who_asked_and_is_heard_once() -> None:
    questions, heard = Questions(term=3), list[tuple[str, int | None, float]]()
    questions.ask(Doubling(), 4, lambda answer, now_s: heard.append(("first", answer, now_s)))
    questions.ask(Doubling(), 5, lambda answer, now_s: heard.append(("second", answer, now_s)))
    first, second = questions.take()
    questions.answered(second.number, second.decide(), 1.0)
    questions.answered(first.number, None, 2.0)  # it failed
    questions.answered(second.number, 99, 3.0)
    assert heard == [("second", 10, 1.0), ("first", None, 2.0)]
    assert questions.take() == []


def test_no_two_leaders_give_a_question_the_same_number() -> None:
    numbers = set[int]()
    for term in (1, 2):
        questions = Questions(term)
        for view in range(3):
            questions.ask(Doubling(), view, lambda answer, now_s: None)
        numbers |= {asked.number for asked in questions.take()}
    assert len(numbers) == 6
