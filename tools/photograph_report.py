"""Take a picture of a report page, as docs/report.png: needs chromium (`make browser`).

python tools/photograph_report.py REPORT.html PICTURE.png [--dark] [--width 1280] [--whole]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__)
    about.add_argument("report", type=Path)
    about.add_argument("picture", type=Path)
    about.add_argument("--dark", action="store_true")
    about.add_argument("--width", type=int, default=1280)
    about.add_argument("--height", type=int, default=1150)
    about.add_argument("--section", default="", help="what stands at the top: conversation, ...")
    about.add_argument("--whole", action="store_true", help="the whole page, however long")
    photograph(about.parse_args())


def photograph(how: argparse.Namespace) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or sys.exit("there is no chromium here: make browser")
    scheme = "dark" if how.dark else "light"
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(
            viewport={"width": how.width, "height": how.height},
            color_scheme="dark" if how.dark else "light",
            reduced_motion="reduce",
        )
        page.goto(how.report.resolve().as_uri() + (f"#{how.section}" if how.section else ""))
        page.wait_for_selector("#settings")
        page.screenshot(path=how.picture, full_page=how.whole)
        browser.close()
    print(f"wrote {how.picture} ({scheme})")


if __name__ == "__main__":
    main()
