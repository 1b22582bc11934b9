"""The recording of the demo: what a terminal shows, and when."""

import re
import sys
import xml.etree.ElementTree as ElementTree

from record_demo import Screen, choose_frames, draw, find_spans, record


def texts(screen):
    return ["".join(letter for letter, _ in line) for line in screen.show()]


def test_a_screen_obeys_a_terminal_by_hand():
    screen = Screen(6)
    screen.write("abcdefgh\r\n\x1b[32m1/2\x1b[0m\r\nlast")
    assert texts(screen) == ["abcdef", "gh", "1/2", "last"]
    assert screen.show()[2][0] == ("1", "#7ee0a0") and screen.show()[3][0] == ("l", "")
    screen.write("\r\x1b[2K\x1b[1A\x1b[2K2/2\r\n")  # as a progress bar is drawn again
    assert texts(screen) == ["abcdef", "gh", "2/2", ""]
    screen.write("\x1b[1")  # an order may come in two parts
    screen.write("A\x1b[2K3/2")
    assert texts(screen) == ["abcdef", "gh", "3/2", ""]


def test_time_is_squeezed_and_equal_lines_are_drawn_once():
    # 35 seconds in 10, of which the last 3 are rest: a fifth of the pace. 10 s are shown at 2 s.
    told = [(10.0, "one\r\n"), (20.0, "two"), (35.0, "\r\x1b[2Kthree")]
    frames = choose_frames(told, 80, 10.0)
    assert [at for at, _ in frames] == [0.0, 2.0, 4.0, 7.0]
    spans = [("".join(c for c, _ in line), a, b) for _, line, a, b in find_spans(frames, 10.0)]
    assert spans == [("one", 2.0, 10.0), ("two", 4.0, 7.0), ("three", 7.0, 10.0)]


def test_a_picture_is_svg_that_shows_texts_as_texts():
    frames = choose_frames([(1.0, "<b>&\r\n"), (2.0, "\x1b[1mend\x1b[0m")], 20, 10.0)
    picture = draw(frames, 20, 10.0, "$ it")
    root = ElementTree.fromstring(picture)
    drawn = [span.text for span in root.iter("{http://www.w3.org/2000/svg}tspan")]
    assert drawn == ["<b>&", "end"]
    assert len(re.findall("@keyframes", picture)) == 2 and "prefers-reduced-motion" in picture
    assert not re.search("https?://(?!www.w3.org)", picture)


def test_a_command_is_recorded():
    told = record([sys.executable, "-c", "print('grüße')"], 40)
    assert "".join(text for _, text in told) == "grüße\r\n"
