"""A picture of ratios: two panels of horizontal bars, with a line where both are equally fast."""

from html import escape

ROW, GAP, LEFT, PANEL, TOP = 18, 14, 250, 300, 46
INK, EQUAL = "#444", "#c33"


def text(x, y, words, anchor="start", weight="normal"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'


def svg(bars):
    """bars: (group, label, decode ratio, prefill ratio)."""
    most = max([2.0, *(max(row[2:]) for row in bars)])
    scale = (PANEL - 50) / most
    parts, y, group = [], TOP, None
    for name, label, *ratios in bars:
        if name != group:
            y += GAP + ROW
            parts.append(text(8, y - 5, name, weight="bold"))
            group = name
        parts.append(text(LEFT - 8, y + ROW - 5, label, "end"))
        for panel, ratio in enumerate(ratios):
            x = LEFT + panel * (PANEL + 20)
            fill = "#4a7" if ratio >= 1 else "#b95"
            parts.append(f'<rect x="{x}" y="{y + 2}" width="{ratio * scale:.1f}" height="{ROW - 4}" fill="{fill}"/>')
            parts.append(text(x + ratio * scale + 4, y + ROW - 5, f"{ratio:.2f}"))
        y += ROW
    for panel, name in enumerate(["decode", "prefill"]):
        x = LEFT + panel * (PANEL + 20)
        parts.append(text(x, TOP - 8, f"{name}: times llama.cpp", weight="bold"))
        parts.append(f'<path d="M{x + scale:.1f} {TOP}V{y + 6}" stroke="{EQUAL}" stroke-dasharray="4 3"/>')
    width, height = LEFT + 2 * PANEL + 40, y + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">\n<rect width="{width}" height="{height}" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
