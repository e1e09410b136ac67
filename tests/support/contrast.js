// The least contrast of any text on a page with what is behind it.
const pixel = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
function luminance(layers) {
  for (const colour of layers) { pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1); }
  const [r, g, b] = [...pixel.getImageData(0, 0, 1, 1).data].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const known = {};
function contrast(text, backgrounds) {
  return known[[text, ...backgrounds]] ??= (() => {
    const both = [luminance(["white", ...backgrounds]), luminance(["white", ...backgrounds, text])].sort((a, b) => a - b);
    return (both[1] + 0.05) / (both[0] + 0.05);
  })();
}
function worst(doc, win) {
  let found = [99, "no text"];
  const nodes = doc.createTreeWalker(doc.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const element = nodes.currentNode.parentElement;
    if (!nodes.currentNode.data.trim() || !element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const backgrounds = [];
    for (let e = element; e; e = e.parentElement) backgrounds.unshift(win.getComputedStyle(e).backgroundColor);
    const style = win.getComputedStyle(element);
    const ratio = contrast(element.closest("svg") ? style.fill : style.color, backgrounds);
    if (ratio < found[0]) found = [ratio, `${element.tagName} ${element.className}: ${nodes.currentNode.data.slice(0, 60)}`];
  }
  return found;
}
