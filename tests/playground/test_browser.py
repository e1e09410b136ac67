"""The playground as people meet it: the command's own server, in a headless Chromium, on a phone and a desktop."""

import re

import pytest

from tests.support import browser
from tests.support.cases import a_third
from tests.support.served import PATIENCE, serving

pytest.importorskip("gradio", reason="the extra `playground` is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="the extra `test` is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    with serving("playground") as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as found:
        yield found


def opened(chromium, address, width, scheme):
    page, said = browser.opened(chromium, width, (address, "data:", "blob:"), scheme)
    page.goto(address)
    page.locator("#run").wait_for()
    return page, said


@pytest.mark.parametrize("width, scheme", a_third([(browser.PHONE, "dark"), (browser.DESKTOP, "light")]))
def test_a_prompt_is_run_and_its_rounds_are_stepped_through(chromium, address, width, scheme):
    page, said = opened(chromium, address, width, scheme)
    browser.check(page, scheme)
    page.locator("#run").click()
    page.locator("#stepper").wait_for(timeout=1000 * PATIENCE)

    plain, own = (page.locator(f"#{name} .hs-text").inner_text() for name in ("plain", "own"))
    assert plain == own and len(plain) > 200
    assert "96 tokens" in page.locator("#plain").inner_text()
    assert "the same text" in page.locator("#plots").inner_text() and page.locator("#plots svg.hs-chart").count() == 2
    drafted = page.locator("#own .hs-draft")
    assert drafted.count() > 10 and "target" in drafted.first.get_attribute("title")
    page.locator("button", has_text="More settings").click()
    page.locator("text=How drafts are judged").wait_for()
    browser.check(page, scheme)

    token = page.locator("#own .hs-own", has_text=re.compile(r"\w")).nth(3)
    number, chosen = page.locator("#round input[type=number]"), int(token.get_attribute("data-round")) + 1
    token.click()
    playwright.expect(number).to_have_value(str(chosen))
    page.locator("#after").click()
    playwright.expect(number).to_have_value(str(chosen + 1))
    first = page.locator("#details .hs-place").first
    first.click()
    playwright.expect(first).to_have_attribute("aria-pressed", "true")
    assert page.locator("#details .hs-fill-target").count() >= 5
    assert page.locator("#details .hs-fill-draft").count() >= 5
    browser.check(page, scheme)
    assert not said
    page.close()


def test_a_run_is_stopped(chromium, address):
    page, said = opened(chromium, address, browser.DESKTOP, "light")
    page.locator("input[type=number]").first.fill("512")
    page.locator("input[type=number]").first.press("Enter")
    page.locator("#run").click()
    page.locator("#own .hs-draft").first.wait_for(timeout=1000 * PATIENCE)
    page.locator("#stop").click()
    page.locator("#stepper").wait_for(timeout=1000 * PATIENCE)
    assert "512 tokens" not in page.locator("#plain").inner_text()
    assert not said
    page.close()
