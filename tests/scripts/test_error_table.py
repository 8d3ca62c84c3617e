"""docs/ERRORS.md names every place that raises one of our errors."""

from __future__ import annotations

from executorch_wgpu.scripts.error_table import PAGE, known_messages, listed, sites


def test_the_page_is_complete() -> None:
    """Lay it out anew with: python -m executorch_wgpu.scripts.error_table --update"""
    found = {site.digest: site for site in sites()}
    missing = [f"{s.file}:{s.first}: {s.template}" for d, s in found.items() if d not in listed()]
    assert not missing
    assert len(found) > 200


def test_most_messages_come_from_tests() -> None:
    cells = known_messages()
    provoked = [cell for cell in cells.values() if not cell.startswith("*")]
    assert len(provoked) > 0.7 * len(cells)
    assert "/tmp" not in PAGE.read_text() and "site-packages" not in PAGE.read_text()
