"""A chapter made live in a real browser: cells run, fail, are stopped; the page says what the kernel does."""

import json
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.browser import watch
from tests.live.server import free_port, running

CHAPTER = "chapters/01_one_token_priced"


@pytest.fixture(scope="module")
def url(built_book):
    with running(built_book.parents[1]) as url:
        yield url


@pytest.fixture
def live_page(browser, url):
    """A chapter with a kernel that is ready."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    record = watch(page)
    page.goto(url)
    page.goto(at(url, CHAPTER))
    page.click("text=Make this page live")
    says(page, "ready")
    yield page, record
    context.close()


def at(url, name):
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc}/book/{name}.html"


def says(page, text, timeout=60_000):
    page.wait_for_function(
        "text => document.querySelector('.ne-live-status')?.textContent.includes(text)", arg=text, timeout=timeout
    )


def write(page, number, code):
    """Put `code` into the n-th editor of the page."""
    page.evaluate(
        "([n, code]) => document.querySelectorAll('.thebe-cell .CodeMirror')[n].CodeMirror.setValue(code)",
        [number, code],
    )


def run(page, number):
    page.locator(".thebe-run-button").nth(number).click()


def shows(page, number, text):
    """Wait until the n-th output holds `text`."""
    page.wait_for_function(
        "([n, text]) => document.querySelectorAll('div.cell .cell_output')[n].innerText.includes(text)",
        arg=[number, text],
    )


def price_leaves(page, number, before):
    """Wait until the price panel in the n-th output says something else than `before`."""
    page.wait_for_function(
        """([n, before]) => {
            const price = document.querySelectorAll("div.cell .cell_output")[n].querySelector(".widget-html-content");
            return price && price.innerText !== before;
        }""",
        arg=[number, before],
    )


def output(page, number):
    return page.locator("div.cell .cell_output").nth(number)


def test_a_changed_cell_runs_and_shows_its_output(live_page, url):
    page, record = live_page
    write(page, 0, "print(6 * 7)")
    run(page, 0)
    shows(page, 0, "42")
    assert record.outside(url.split("/book/")[0], url.split("/book/")[0].replace("http", "ws")) == []
    assert record.errors == []


def test_it_runs_where_the_chapter_lies(live_page):
    page, _ = live_page
    write(page, 0, "import os; print(os.path.basename(os.getcwd()))")
    run(page, 0)
    page.wait_for_function("document.querySelectorAll('div.cell .cell_output')[0].innerText.trim() === 'chapters'")


def test_a_chart_a_picture_and_a_panel_are_drawn(live_page):
    page, _ = live_page
    write(
        page,
        0,
        "from nanoengine import DeviceSpec, ModelSpec, viz\nfrom nanoengine.viz import charts\nviz.setup()\n"
        "charts.token_price(ModelSpec.from_config('qwen3-0.6b'), DeviceSpec.named('rtx-4070'))",
    )
    run(page, 0)
    page.wait_for_selector("div.cell .cell_output .ne-vega[data-drawn]", timeout=60_000)
    write(page, 1, "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])")
    run(page, 1)
    page.wait_for_function("document.querySelectorAll('div.cell .cell_output')[1].querySelector('img')", timeout=60_000)
    write(page, 2, "from nanoengine.viz.panels import price_panel\nprice_panel()")
    run(page, 2)
    page.wait_for_selector(".cell_output .widget-vbox, .cell_output .jupyter-widgets", timeout=60_000)
    panel = output(page, 2)
    before = panel.locator(".widget-html-content").inner_text()
    panel.locator("select").first.select_option("llama-3.1-8b")
    price_leaves(page, 2, before)


def test_a_widget_s_slider_moves_something(live_page):
    page, _ = live_page
    write(page, 0, "from nanoengine.viz.panels import price_panel\nprice_panel()")
    run(page, 0)
    handle = page.locator(
        "div.cell .cell_output .widget-slider .noUi-handle, div.cell .cell_output [role=slider]"
    ).first
    handle.wait_for(timeout=60_000)
    says(page, "ready")
    before = output(page, 0).locator(".widget-html-content").inner_text()
    handle.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    price_leaves(page, 0, before)


def test_an_error_is_shown_and_the_kernel_goes_on(live_page):
    page, _ = live_page
    write(page, 0, "1 / 0")
    run(page, 0)
    shows(page, 0, "ZeroDivisionError")
    write(page, 0, "print('still here')")
    run(page, 0)
    shows(page, 0, "still here")


def test_a_cell_that_never_ends_can_be_stopped(live_page):
    page, _ = live_page
    write(page, 0, "while True: pass")
    run(page, 0)
    says(page, "running")
    page.click("text=Interrupt")
    shows(page, 0, "KeyboardInterrupt")
    says(page, "ready")


def test_restart_forgets_everything(live_page):
    page, _ = live_page
    write(page, 0, "kept = 1")
    run(page, 0)
    says(page, "ready")
    page.click(".ne-live >> text=Restart")
    says(page, "all variables are gone")
    write(page, 0, "print('kept' in globals())")
    run(page, 0)
    shows(page, 0, "False")


def test_two_tabs_have_a_kernel_each(live_page, browser, url):
    """Two readers of one chapter, each in a window of their own."""
    page, _ = live_page
    context = browser.new_context()
    other = context.new_page()
    other.goto(url)
    other.goto(at(url, CHAPTER))
    other.click("text=Make this page live")
    says(other, "ready")
    write(other, 0, "mine = 1; print('set')")
    run(other, 0)
    shows(other, 0, "set")
    write(page, 0, "print('mine' in globals())")
    run(page, 0)
    shows(page, 0, "False")
    context.close()


def test_a_kernel_that_was_killed_is_said(live_page):
    page, _ = live_page
    write(page, 0, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    run(page, 0)
    says(page, "the last one died; all variables are gone")
    write(page, 0, "print('back again')")
    run(page, 0)
    shows(page, 0, "back again")
    page.wait_for_function("document.querySelector('.ne-live-status').textContent === 'ready'")


def test_a_server_that_went_away_is_said(browser, built_book):
    context = browser.new_context()
    page = context.new_page()
    with running(built_book.parents[1], free_port()) as url:
        page.goto(url)
        page.goto(at(url, CHAPTER))
        page.click("text=Make this page live")
        says(page, "ready")
    says(page, "does not answer")
    assert page.locator("article h1").is_visible()
    context.close()


@pytest.mark.parametrize("name", ["index", CHAPTER, "chapters/10_what_a_fit_rests_on"])
def test_a_page_is_light(browser, url, name):
    """Bytes over the wire, compressed: on a first visit, and once fonts and scripts are cached."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url.replace("/book/index.html", "/api/status"))  # logs in, loads nothing of the book
    record = watch(page)
    page.goto(at(url, name))
    page.wait_for_load_state("networkidle")
    first, record.wire_bytes = record.wire_bytes, 0
    page.goto(at(url, name))
    page.wait_for_load_state("networkidle")
    print(f"{name}: {first / 1e6:.2f} MB first, {record.wire_bytes / 1e3:.0f} kB after")
    assert 0 < first < 1.5e6
    assert record.wire_bytes < 300e3
    context.close()


def test_the_chapter_opens_in_jupyterlab(live_page, url):
    page, _ = live_page
    href = page.locator(".ne-live-lab").get_attribute("href")
    assert href.endswith(f"/lab/tree/{CHAPTER}.ipynb")
    token = url.split("token=")[1]
    request = urllib.request.Request(f"{url.split('/book/')[0]}/api/contents/{CHAPTER}.ipynb?content=0&token={token}")
    assert json.load(urllib.request.urlopen(request, timeout=30))["type"] == "notebook"
