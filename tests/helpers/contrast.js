// Texts whose contrast to what is behind them is below 4.5, the AA of WCAG 2.
() => {
  const parse = (text) => {
    const canvas = parse.canvas || (parse.canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true }));
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const found = parse(getComputedStyle(one).backgroundColor);
      if (found[3] > 250) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const one of document.querySelectorAll('body *')) {
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !one.getClientRects().length || ['SCRIPT', 'STYLE', 'OPTION', 'NOSCRIPT'].includes(one.tagName)) continue;
    if (one.closest('.skip')) continue;
    const style = getComputedStyle(one);
    const [a, b] = [light(parse(one instanceof SVGElement ? style.fill : style.color)), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${one.tagName}.${one.className.baseVal ?? one.className} ${ratio.toFixed(2)} ${one.textContent.slice(0, 30)}`);
  }
  return [...new Set(bad)];
}
