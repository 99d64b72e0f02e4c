"""The HTML page in a real browser: no error, no request, usable by eye, thumb and keyboard, in light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from documents import CURVES, RESULTS, audited, audits, document, error, result

from amp_checks.core import Status
from amp_checks.report import FORMATS
from amp_checks.report.document import Document

pytest.importorskip("jinja2", reason="the optional extra `report` is not installed")
pytest.importorskip("matplotlib", reason="the optional extra `report` is not installed")
pytestmark = pytest.mark.skipif(chromium.find() is None, reason="no Chromium on this machine (AMP_CHROMIUM names one)")

DESKTOP, PHONE = (1280, 900), (390, 844)
MANY = tuple(
    result(f"op_{n}.overload", Status.FAILED if n % 9 == 0 else Status.PASSED, error(4.0 if n % 9 == 0 else n / 200))
    for n in range(200)
)
LONG = "torch.utils.checkpoint.set_checkpoint_early_stop(False)" * 2
WORDY = tuple(
    result(f"{LONG}.{status}", status, error(4.0), message=LONG, detail=LONG if status is Status.ERROR else "")
    for status in Status
    if status is not Status.PASSED
)

CONTRAST = """
(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const part = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const poor = [];
  for (const e of document.querySelectorAll("body *")) {
    if (!e.textContent.trim() || e.tagName === "SCRIPT") continue;
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(parse(e.ownerSVGElement ? style.fill : style.color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${e.tagName}.${e.className} ${e.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.page(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def show(page: chromium.Page, tmp_path: Path) -> Any:
    """Opens a document's page; gives the browser, with its notes emptied."""

    def opened(content: Document, *, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> chromium.Page:
        file = tmp_path / "report.html"
        file.write_text(FORMATS["html"].render(content), encoding="utf-8")
        page.size(*size, mobile=size == PHONE)
        page.scheme(scheme)
        for notes in (page.requests, page.console, page.errors):
            notes.clear()
        page.open(file)
        return page

    return opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("results", [RESULTS, MANY, WORDY], ids=["few", "many", "long words"])
def test_it_loads_clean_fits_the_screen_and_can_be_read(show: Any, results: Any, size: Any, scheme: str) -> None:
    page = show(document(results, curves=CURVES if results is RESULTS else []), size=size, scheme=scheme)
    assert page.errors == []
    assert page.console == []
    assert [url for url in page.requests if not url.startswith(("data:", "file://"))] == []
    assert len([url for url in page.requests if url.startswith("file://")]) == 1
    assert page.run("document.documentElement.scrollWidth") <= size[0]
    assert page.run(CONTRAST) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_audits_alone_and_beside_results_can_be_read(show: Any, size: Any, scheme: str) -> None:
    for content in (audits(audited()), document(RESULTS, audits=audited())):
        page = show(content, size=size, scheme=scheme)
        assert page.errors == []
        assert page.console == []
        assert page.run("document.documentElement.scrollWidth") <= size[0]
        assert page.run(CONTRAST) == []
        assert page.run("document.querySelectorAll('[id^=audit-]').length") == 2
        assert "tight" in page.run("document.querySelector('#modules-1 td.failed').textContent")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_every_failing_item_is_one_click_from_the_top(show: Any, size: Any) -> None:
    failing = [one.id for one in MANY if one.status is Status.FAILED]
    page = show(document(MANY), size=size)
    for name in (failing[0], failing[-1]):
        page.run("scrollTo(0, 0)")
        page.click(f".index a[href={json.dumps('#item-' + name)}]")
        card = f"document.getElementById({json.dumps('item-' + name)})"
        assert page.run("decodeURIComponent(location.hash)") == f"#item-{name}"
        top = page.run(f"{card}.getBoundingClientRect().top")
        assert 0 <= top < size[1]
        assert f"amp-checks run --item {name}" in page.run(f"{card}.innerText")
    assert page.run("[...document.querySelectorAll('.index a')].length") == len(failing)
    assert page.errors == []


def test_a_failing_cell_of_the_table_leads_to_its_item(show: Any) -> None:
    page = show(document(RESULTS))
    page.click("td.failed a")
    assert page.run("location.hash").startswith("#item-check_")


def test_the_keyboard_alone_reaches_a_failing_item_and_shows_where_it_is(show: Any) -> None:
    page = show(document(RESULTS))
    page.press("Tab", code=9)
    assert page.run("document.activeElement.className") == "skip"
    assert page.run("document.activeElement.getBoundingClientRect().left") >= 0
    for _ in range(40):
        page.press("Tab", code=9)
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if page.run("document.activeElement.matches('.index a')"):
            break
    page.press("Enter", code=13, text="\r")
    assert page.run("document.querySelector(':target').matches('.card')")


def test_cells_say_in_words_what_they_say_in_colour(show: Any) -> None:
    page = show(document(RESULTS))
    cells = page.run("[...document.querySelectorAll('.heat td')].map(e => [e.className, e.textContent.trim()])")
    assert cells
    for kind, text in cells:
        word = kind.split(" heat-")[0].replace("-", " ")
        assert text == "·" if kind == "muted" else word in text


def test_the_filter_hides_rows_and_says_how_many_are_left(show: Any) -> None:
    page = show(document(MANY))
    page.run("document.querySelector('.filter input[type=search]').focus()")
    for letter in "op_18":
        page.press(letter, code=ord(letter.upper()), text=letter)
    assert page.run("document.querySelector('.filter output').textContent") == "11 of 200"
    page.click(".filter input[type=checkbox]")
    assert page.run("[...document.querySelectorAll('.heat tbody tr')].filter(e => !e.hidden).length") == 3
    assert page.errors == []


def test_the_command_can_be_copied_or_is_selected(show: Any) -> None:
    page = show(document(RESULTS))
    page.click(".command button")
    told = page.run(
        "new Promise(done => setTimeout(() => done(document.querySelector('.command button').textContent), 500))"
    )
    assert told in ("copied", "selected")
    assert page.errors == []
