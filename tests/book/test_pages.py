"""The built pages in a real browser, straight from the disk: whole, quiet, legible, and their knobs move things."""

from pathlib import Path

import pytest

from tests.browser import watch

CHAPTERS = tuple(
    f"chapters/{path.stem}" for path in sorted(Path(__file__).resolve().parents[2].glob("chapters/*.ipynb"))
)
PAGES = ("index", *CHAPTERS, "book/method", "book/data", "book/notation", "book/glossary", "book/live")
KNOBS = ".ne-vega .vega-bind input[type=range], .ne-vega .vega-bind select"
DRAWN = "svg path, svg text, svg line"
MARKS = """els => els.map(
    el => ["d", "transform", "fill"].map(name => el.getAttribute(name)).concat(el.textContent).join()).join("|")"""


@pytest.fixture
def open_page(browser, built_book):
    contexts = []

    def open_page(name, theme="light", width=1280):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        record = watch(page)
        page.goto(f"file://{built_book}/{name}.html")
        page.wait_for_function("[...document.querySelectorAll('.ne-vega')].every(e => e.hasAttribute('data-drawn'))")
        return page, record

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_nothing_outside_and_complains_of_nothing(open_page, built_book, name, theme):
    page, record = open_page(name, theme)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert record.outside(f"file://{built_book}") == []
    assert record.errors == []


@pytest.mark.parametrize("name", PAGES)
def test_nothing_overflows_a_phone(open_page, name):
    page, _ = open_page(name, width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_has_a_text(open_page, name):
    page, _ = open_page(name)
    texts = page.eval_on_selector_all(".ne-vega", "els => els.map(e => e.getAttribute('aria-label'))")
    texts += page.eval_on_selector_all("article img", "els => els.map(e => e.getAttribute('alt'))")
    assert all(text and len(text) > 40 for text in texts)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_title_a_language_and_one_heading_of_the_first_rank(open_page, name):
    page, _ = open_page(name)
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.title()
    assert page.locator("article h1").count() == 1


def knobs():
    """Every knob of every figure: (page, its number on the page)."""
    counts = {
        "chapters/01_one_token_priced": 2,
        "chapters/02_average_history": 3,
        "chapters/03_one_read_many_tokens": 1,
        "chapters/04_the_floor": 2,
        "chapters/05_the_other_side": 1,
        "chapters/07_paged_decode": 1,
        "chapters/08_rerun_the_context_sweep": 1,
        "chapters/09_two_frameworks_on_a_dgx_spark": 1,
        "chapters/10_what_a_fit_rests_on": 2,
        "chapters/11_which_card_was_it": 1,
        "chapters/12_pricing_the_headline": 1,
    }
    return [(name, number) for name, count in counts.items() for number in range(count)]


@pytest.mark.parametrize(("name", "number"), knobs())
def test_a_knob_moves_marks_with_no_kernel(open_page, name, number):
    page, _ = open_page(name)
    knob = page.locator(KNOBS).nth(number)
    chart = knob.locator("xpath=ancestor::div[contains(concat(' ', @class, ' '), ' ne-vega ')]")
    before = chart.locator(DRAWN).evaluate_all(MARKS)
    knob.evaluate(
        """el => {
            if (el.tagName === "SELECT") el.selectedIndex = el.options.length - 2;
            else el.value = el.max;
            el.dispatchEvent(new Event(el.tagName === "SELECT" ? "change" : "input"));
        }"""
    )
    page.wait_for_timeout(300)
    assert chart.locator(DRAWN).evaluate_all(MARKS) != before


def test_every_knob_of_the_book_is_tested(open_page):
    found = [(name, i) for name in PAGES for i in range(open_page(name)[0].locator(KNOBS).count())]
    assert found == knobs()


def test_charts_follow_the_theme_and_keep_what_the_reader_set(open_page):
    page, _ = open_page("chapters/01_one_token_priced")
    title = ".ne-vega svg .role-title text"
    light = page.locator(title).first.get_attribute("fill")
    slider = page.locator(".ne-vega input[type=range]").first
    slider.evaluate("el => { el.value = 32; el.dispatchEvent(new Event('input')); }")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(f"document.querySelector('{title}')?.getAttribute('fill') !== '{light}'")
    page.wait_for_timeout(300)
    assert page.locator(".ne-vega input[type=range]").first.input_value() == "32"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_says_when_and_where_its_outputs_were_made(open_page, name):
    page, _ = open_page(name)
    assert page.locator(".ne-provenance").inner_text().startswith("Outputs of this page: made on 20")


def test_a_panel_without_a_kernel_says_what_it_needs(open_page):
    page, _ = open_page("chapters/01_one_token_priced")
    assert "needs a running kernel" in page.locator(".ne-needs-kernel").first.inner_text()


def test_a_page_from_the_disk_offers_no_kernel(open_page):
    page, _ = open_page("chapters/01_one_token_priced")
    assert page.locator(".ne-live").count() == 0


def test_the_icons_show(open_page, built_book):
    page, _ = open_page("index")
    assert page.evaluate("document.fonts.check('900 16px \"Font Awesome 6 Free\"', '\\uf0c9')")
    assert not list(built_book.glob("_static/vendor/fontawesome/*"))


def test_search_finds_a_chapter(open_page, built_book):
    page, record = open_page("search")
    page.goto(f"file://{built_book}/search.html?q=weights")
    page.wait_for_selector("#search-results li a")
    assert record.outside(f"file://{built_book}") == []
