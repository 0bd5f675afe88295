"""What a page must have whatever it shows, looked for by a browser (browser.py): text that can be read, and nothing that
sticks out sideways.
Source of the contrast: WCAG 2.2, success criterion 1.4.3 and its relative luminance."""

LEAST_CONTRAST = 4.5

CONTRAST = """(() => {
  const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const linear = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const below = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const paint = channels(getComputedStyle(at).backgroundColor);
      if (paint.length === 3 || paint[3] === 1) return paint;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !element.checkVisibility() || element.closest("script, style, .unseen")) continue;
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [luminance(channels(ink)), luminance(below(element))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.slice(0, 40)]);
  }
  return found;
})()"""


def audit(case, browser, width):
    """Judges what is on the screen; returns how many texts there were."""
    case.assertLessEqual(browser.evaluate("document.documentElement.scrollWidth"), width)
    texts = browser.evaluate(CONTRAST)
    case.assertEqual([each for each in texts if each[0] < LEAST_CONTRAST], [])
    return len(texts)
