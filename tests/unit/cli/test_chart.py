"""The drawing of when layers came."""

from kvcs.cli.demo.board import PUBLISHER, Board
from kvcs.cli.demo.chart import COLUMNS, ChartRow, draw_chart
from kvcs.cli.demo.messages import LayerPassed


def test_nothing_is_drawn_where_nothing_came():
    assert draw_chart([ChartRow("live")]) == []


def test_level_rises_from_the_first_layer_to_the_full_block_of_the_last_one():
    row = ChartRow("live", seconds=[float(second) for second in range(1, 5)])

    head, line = draw_chart([row])
    cells = line.split()[1]

    assert "a column" in head
    assert len(cells) == COLUMNS
    assert cells[0] == "·"
    assert cells[-1] == "█"
    assert list(cells) == sorted(cells, key="·▁▂▃▄▅▆▇█".index)
    assert cells.count("█") == 1
    assert line.endswith("4.00 s")


def test_row_that_begins_later_is_moved_and_stops_at_its_last_layer():
    whole = ChartRow("live", seconds=[1.0, 10.0])
    later = ChartRow("mid-join", start=5.0, seconds=[1.0, 2.0])

    *_, line = draw_chart([whole, later])
    cells = line.removeprefix("mid-join  ")

    assert cells.startswith(" " * (COLUMNS // 2))
    assert cells[COLUMNS // 2] != " "
    assert len(cells.rstrip(" s.0123456789")) == int(7.0 / 10 * COLUMNS) + 1
    assert line.endswith("2.00 s")


def test_full_block_is_for_all_layers_alone():
    row = ChartRow("live", seconds=[0.1] * 29 + [1.0])

    cells = draw_chart([row])[1].split()[1]

    assert set(cells[:-1]) <= set("·▁▂▃▄▅▆▇")
    assert cells[-1] == "█"


def test_terminal_without_unicode_gets_digits():
    lines = draw_chart([ChartRow("live", seconds=[0.5, 1.0])], is_plain=True)

    assert all(line.isascii() for line in lines)
    assert lines[1].split()[1].endswith("8")


class _Quiet:
    interactive = False


def layer(index, seconds):
    return LayerPassed(layer_index=index, size_bytes=1, digests=[], seconds=seconds)


def test_board_has_the_publisher_first_and_takes_layers_before_it_is_told_who_begins():
    board = Board(_Quiet())
    board.open(layers=2)
    board.receive_layer("late", layer(0, 0.5))
    board.begin(PUBLISHER)
    board.publish_layer(layer(0, 1.0))
    board.begin("late", note="(came later)")

    _, first, second = board.chart(is_plain=True)

    assert first.startswith("publisher")
    assert second.startswith("late")
    assert second.endswith("0.50 s (came later)")
