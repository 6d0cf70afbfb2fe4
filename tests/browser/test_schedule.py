"""The schedule player: steps with their differences; editing, compiling and comparing."""

from __future__ import annotations

import re

from explorer_page import ExplorerPage
from playwright.sync_api import Locator, expect


def player(known: ExplorerPage) -> Locator:
    known.open(["a/schedule:1"], story="0")
    pane = known.pane("schedule")
    expect(pane.locator("[data-step]").first).to_be_visible()
    return pane


def step_of(pane: Locator) -> Locator:
    return pane.locator(".count[data-step]")


def test_stepping_shows_what_each_primitive_did(known: ExplorerPage) -> None:
    pane = player(known)
    pane.get_by_role("button", name="First step").click()
    expect(step_of(pane)).to_have_attribute("data-step", "0")
    first = pane.locator(".nest").first.inner_text()
    pane.get_by_role("button", name="Last step").click()
    expect(step_of(pane)).not_to_have_attribute("data-step", "0")
    expect(pane.get_by_role("button", name="Last step")).to_be_disabled()
    assert pane.locator(".nest").first.inner_text() != first
    pane.get_by_role("button", name="Step back").click()
    before = step_of(pane).get_attribute("data-step")
    # The step is in the URL.
    known.page.reload()
    expect(step_of(known.pane("schedule"))).to_have_attribute("data-step", str(before))


def test_a_step_is_chosen_from_the_list_and_by_key(known: ExplorerPage) -> None:
    pane = player(known)
    pane.locator("li[data-step='2'] button").first.click()
    expect(step_of(pane)).to_have_attribute("data-step", "2")
    expect(pane.locator("li[aria-current=step]")).to_have_attribute("data-step", "2")
    known.page.keyboard.press("ArrowRight")
    expect(step_of(pane)).to_have_attribute("data-step", "3")


def test_an_edited_schedule_is_compiled_and_compared(known: ExplorerPage) -> None:
    pane = player(known)
    pane.locator("[data-action=edit]").click()
    fields = pane.locator("li[data-edit] input")
    expect(fields.first).to_be_visible()
    # Without its last step the kernel computes the same.
    count = fields.count()
    fields.last.focus()
    pane.locator(f'[aria-label="Delete step {count}"]').click()
    expect(fields).to_have_count(count - 1)
    pane.locator("[data-action=try]").click()
    result = pane.get_by_role("region", name="Result")
    expect(result).to_be_visible()
    expect(result).to_have_attribute("data-same", re.compile("true|false|^$"))
    expect(result).to_contain_text("recorded")


def test_a_wrong_step_is_shown_where_it_stands(known: ExplorerPage) -> None:
    pane = player(known)
    pane.locator("[data-action=edit]").click()
    field = pane.locator("li[data-edit='1'] input")
    field.fill("split(loop='no such loop', factor=8)")
    field.press("Enter")
    pane.locator("[data-action=try]").click()
    wrong = pane.locator("li[data-edit='1'] [role=alert]")
    expect(wrong).to_be_visible()
    expect(wrong.locator("code")).to_contain_text(re.compile(r"^[A-Z]\d{3}$"))


def test_a_wrong_line_of_the_text_is_shown_where_it_stands(known: ExplorerPage) -> None:
    pane = player(known)
    pane.locator("[data-action=edit]").click()
    pane.get_by_role("button", name="as text").click()
    field = pane.get_by_label("Schedule as text")
    lines = field.input_value().split("\n")
    lines[1] = "split(loop='no such loop', factor=8)"
    field.fill("\n".join(lines))
    pane.locator("[data-action=try]").click()
    wrong = pane.get_by_role("alert")
    expect(wrong).to_be_visible()
    expect(wrong).to_contain_text("line 2")
    expect(wrong).to_contain_text("no such loop")
    expect(wrong.locator(".error-code")).to_have_text(re.compile(r"^[A-Z]\d{3}$"))
    expect(pane.locator(".line-numbers li.failed")).to_have_attribute("data-line", "2")
    expect(field).to_have_attribute("aria-invalid", "true")
    # One click tries what was typed: leaving the field does not move the button away.
    lines[2] = "unroll(loop='nor this one')"
    field.fill("\n".join([*lines[:1], *lines[2:]]))
    pane.locator("[data-action=try]").click()
    expect(wrong).to_contain_text("nor this one")
    # As steps it stands at the same one.
    pane.get_by_role("button", name="as steps").click()
    expect(pane.locator("li[data-edit='2'] [role=alert]")).to_be_visible()
